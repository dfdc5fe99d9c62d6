"""Finds the ends of TLS records in a client's bytes, and the announced length of its hello.

OpenSSL handles all bytes it is given in one piece, while nobody else has a turn, and a record
without data, as a key update, costs it more than a large full one. So it is given a few at a time.
It also allocates memory for a hello when its length is announced, before the rest has come. So the
length that a client without a login may announce is bounded here.
"""

from typing import Final

MOST_HELLO_BYTES: Final = 16_384
"""Clients' hellos have some hundred bytes, two thousand with post-quantum keys."""
_HEAD_BYTES: Final = 5
_MESSAGE_HEAD_BYTES: Final = 4
_HANDSHAKE: Final = 22
_CLIENT_HELLO: Final = 1
_ASKS_FOR_ANOTHER: Final = bytes.fromhex(
    "cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c"
)
"""The random number of a HelloRetryRequest (RFC 8446)."""


class Records:
    """Follows all the bytes of one client, in order."""

    __slots__ = ("_expects_hello", "_head", "_is_hello", "_left", "_message", "_skip")

    def __init__(self) -> None:
        self._head = b""
        """The head of a record, as far as it has come."""
        self._left: int | None = None
        """How many bytes of a record are to come, once its head has."""
        self._is_hello = False
        """Whether that record may have a hello."""
        self._expects_hello = True
        self._message = b""
        """The head of a handshake message, as far as it has come."""
        self._skip = 0
        """How many bytes of that message are to come."""

    @property
    def is_hello_too_long(self) -> bool:
        """Whether a hello was announced that is too long."""
        head = self._message
        return (
            len(head) == _MESSAGE_HEAD_BYTES
            and head[0] == _CLIENT_HELLO
            and int.from_bytes(head[1:], "big") > MOST_HELLO_BYTES
        )

    def answered(self, data: bytes) -> None:
        """Note bytes sent in the handshake: the client answers a HelloRetryRequest by a hello."""
        self._expects_hello = _ASKS_FOR_ANOTHER in data
        self._message, self._skip = b"", 0

    def cut(self, data: bytes, start: int, end: int, most: int) -> tuple[int, int]:
        """Follow ``data`` from ``start`` to ``end``, or to the end of the last of ``most`` records.

        Return the offset reached, and how many records ended before it.
        """
        at, ended = start, 0
        while at < end:
            left = self._left
            if left is None:
                head = self._head + data[at : min(end, at + _HEAD_BYTES - len(self._head))]
                at += len(head) - len(self._head)
                self._head = head
                if len(head) < _HEAD_BYTES:
                    break
                self._head = b""
                self._is_hello = self._expects_hello and head[0] == _HANDSHAKE
                left = head[3] << 8 | head[4]
            step = min(left, end - at)
            if self._is_hello:
                self._look(data[at : at + step])
            at += step
            self._left = left - step
            if left == step:
                self._left = None
                ended += 1
                if ended == most:
                    break
        return at, ended

    def _look(self, data: bytes) -> None:
        """Find the heads of messages, each of which may span several records."""
        at = 0
        while at < len(data) and not self.is_hello_too_long:
            if len(self._message) < _MESSAGE_HEAD_BYTES:
                missing = _MESSAGE_HEAD_BYTES - len(self._message)
                self._message += data[at : at + missing]
                at += missing
                self._skip = int.from_bytes(self._message[1:], "big")
            elif self._skip > len(data) - at:
                self._skip -= len(data) - at
                break
            else:
                at += self._skip
                self._message = b""
