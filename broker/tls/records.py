"""Where the records of TLS end in what a client sends, and how long a hello is that it announces.

OpenSSL takes whatever has come at once, and nobody has a turn meanwhile: a record that carries
nothing, as one that asks for new keys, costs it more than a large one that is full. So it is given
a few at a time. And it makes room for a hello when that is announced, before the rest of it is
there. So what a client that has not logged in may announce is bounded here.
"""

from typing import Final

MOST_HELLO_BYTES: Final = 16_384
"""Those of clients have some hundred bytes, with keys of the newest kind two thousand."""
_HEAD_BYTES: Final = 5
_MESSAGE_HEAD_BYTES: Final = 4
_HANDSHAKE: Final = 22
_CLIENT_HELLO: Final = 1
_ASKS_FOR_ANOTHER: Final = bytes.fromhex(
    "cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c"
)
"""The random number of a server's hello that asks for another one of the client (RFC 8446)."""


class Records:
    """Walks along all that one client sends, in order."""

    __slots__ = ("_expects_hello", "_head", "_is_hello", "_left", "_message", "_skip")

    def __init__(self) -> None:
        self._head = b""
        """Of a record, as far as it has come."""
        self._left: int | None = None
        """What is to come of a record whose head is there."""
        self._is_hello = False
        """Whether that record is looked into."""
        self._expects_hello = True
        self._message = b""
        """The head of a message of the handshake, as far as it has come."""
        self._skip = 0
        """What is to come of that message."""

    @property
    def is_hello_too_long(self) -> bool:
        """Whether a hello was announced that is longer than one may be."""
        head = self._message
        return (
            len(head) == _MESSAGE_HEAD_BYTES
            and head[0] == _CLIENT_HELLO
            and int.from_bytes(head[1:], "big") > MOST_HELLO_BYTES
        )

    def answered(self, data: bytes) -> None:
        """Note what a client is sent amid its handshake: a hello comes before, or is asked for."""
        self._expects_hello = _ASKS_FOR_ANOTHER in data
        self._message, self._skip = b"", 0

    def cut(self, data: bytes, start: int, end: int, most: int) -> tuple[int, int]:
        """Go on from ``start`` to ``end``, or to where the last of ``most`` records ends.

        Return where that is, and how many have ended by then.
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
        """Look for the heads of messages, of which each may be in several records."""
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
