"""A client of OpenSSL itself, for what Python's ``ssl`` has no way to send."""

import ctypes
import ctypes.util
import socket
from typing import Final

_POINTER: Final = ctypes.c_void_p
_FUNCTIONS: Final = {
    "TLS_client_method": (_POINTER, ()),
    "SSL_CTX_new": (_POINTER, (_POINTER,)),
    "SSL_CTX_free": (None, (_POINTER,)),
    "SSL_CTX_ctrl": (ctypes.c_long, (_POINTER, ctypes.c_int, ctypes.c_long, _POINTER)),
    "SSL_new": (_POINTER, (_POINTER,)),
    "SSL_free": (None, (_POINTER,)),
    "SSL_set_fd": (ctypes.c_int, (_POINTER, ctypes.c_int)),
    "SSL_connect": (ctypes.c_int, (_POINTER,)),
    "SSL_do_handshake": (ctypes.c_int, (_POINTER,)),
    "SSL_key_update": (ctypes.c_int, (_POINTER, ctypes.c_int)),
    "SSL_renegotiate": (ctypes.c_int, (_POINTER,)),
    "SSL_write": (ctypes.c_int, (_POINTER, ctypes.c_char_p, ctypes.c_int)),
    "SSL_read": (ctypes.c_int, (_POINTER, ctypes.c_char_p, ctypes.c_int)),
}
_SET_MAX_VERSION: Final = 124
_TLS_1_2: Final = 0x0303
_BUFFER: Final = 65_536


def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(ctypes.util.find_library("ssl"))
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name)  # what libcrypto has is found by it, too
        function.restype, function.argtypes = result, arguments
    return library


class OpenSslClient:
    """Speaks TLS on a socket, and verifies nothing."""

    def __init__(self, plain: socket.socket, *, is_old: bool = False) -> None:
        """Do the handshake, of TLS 1.2 if ``is_old``."""
        plain.settimeout(None)  # OpenSSL reads and writes by itself
        self.socket = plain
        self._library = library = _library()
        self._context = library.SSL_CTX_new(library.TLS_client_method())
        if is_old:
            library.SSL_CTX_ctrl(self._context, _SET_MAX_VERSION, _TLS_1_2, None)
        self._ssl = library.SSL_new(self._context)
        library.SSL_set_fd(self._ssl, plain.fileno())
        assert library.SSL_connect(self._ssl) == 1, "no TLS came about"

    def __enter__(self) -> "OpenSslClient":
        return self

    def __exit__(self, *_: object) -> None:
        self._library.SSL_free(self._ssl)
        self._library.SSL_CTX_free(self._context)
        self.socket.close()

    def send(self, data: bytes) -> bool:
        """Send, in one record if it is short; return whether the socket took it."""
        return int(self._library.SSL_write(self._ssl, data, len(data))) > 0

    def receive(self) -> bytes:
        """Return what comes; nothing once the connection is over."""
        buffer = ctypes.create_string_buffer(_BUFFER)
        count = self._library.SSL_read(self._ssl, buffer, _BUFFER)
        return buffer.raw[: max(0, count)]

    def update_keys(self, *, both: bool) -> bool:
        """Have the keys renewed, those of ``both`` sides or its own; False once that fails."""
        self._library.SSL_key_update(self._ssl, int(both))
        return int(self._library.SSL_do_handshake(self._ssl)) == 1

    def renegotiate(self) -> bool:
        """Begin another handshake within this one; return whether it came about."""
        self._library.SSL_renegotiate(self._ssl)
        return int(self._library.SSL_do_handshake(self._ssl)) == 1
