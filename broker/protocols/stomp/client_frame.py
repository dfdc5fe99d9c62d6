# mypyc compiles this module.
"""A client's frame, whole or, if its body is large, in pieces."""

from collections.abc import Iterable
from typing import Final, NamedTuple

from orthia.broker.protocols.stomp.frames import (
    ProtocolError,
    Version,
    canonical,
    is_whole_number,
    unescape,
)
from orthia.broker.quoting import quoted

_BACKSLASH: Final = 92
FLAGS: Final = frozenset({"true", "false", ""})
_V1_2: Final = Version.V1_2  # asked for every frame: an enumeration looks its members up


class Repeating(dict[bytes, bytes]):
    """Headers of which some are repeated; as a mapping it has the first of each."""

    def __init__(self) -> None:
        super().__init__()
        self.repeats: list[tuple[bytes, bytes]] = []
        """The further ones, in their order."""


class Frame:
    """A frame with its keys and values as they came; of a repeated header it has the first."""

    __slots__ = ("body", "command", "raw", "version")

    def __init__(
        self, command: str, raw: dict[bytes, bytes], body: bytes, version: Version
    ) -> None:
        self.command = command
        self.raw = raw
        self.body = body
        self.version = version

    def get(self, name: bytes) -> str | None:
        """Return a header's value, unescaped; None if it is absent. Raises ProtocolError."""
        value = self.raw.get(name)
        if value is None:
            return None
        return (value if _BACKSLASH not in value else unescape(value, self.version)).decode()

    def required(self, name: bytes) -> str:
        """Return a header's value; raises ProtocolError if it is absent or empty."""
        value = self.get(name)
        if not value:
            raise ProtocolError(f"{self.command} has no {name.decode()} header")
        return value

    def number(self, name: bytes, default: int) -> int:
        """Return a header's value as a number, ``default`` if it is absent or empty.

        Raises ProtocolError.
        """
        text = self.get(name)
        if not text:
            return default
        if not is_whole_number(text):
            raise ProtocolError(
                f"header {name.decode()} is {quoted(text)}; expected a whole number of at"
                " most 18 digits"
            )
        return int(text)

    def flag(self, name: bytes, *, default: bool) -> bool:
        """Return whether a header is true, in either case of letters, as Artemis reads it.

        ``default`` if it is absent or empty; raises ProtocolError.
        """
        text = (self.get(name) or "").strip().lower()
        if text not in FLAGS:
            given = quoted(self.get(name) or "")
            raise ProtocolError(f"header {name.decode()} is {given}; expected true or false")
        return text == "true" if text else default

    def user_headers(self, without: frozenset[bytes]) -> bytes:
        """Return the headers not in ``without`` as 1.2-escaped lines."""
        version = self.version
        headers: Iterable[tuple[bytes, bytes]] = self.raw.items()
        if isinstance(self.raw, Repeating):
            headers = (*headers, *self.raw.repeats)
        if version is _V1_2:
            return b"".join(
                [key + b":" + value + b"\n" for key, value in headers if key not in without]
            )
        return b"".join(
            canonical(key, version) + b":" + canonical(value, version) + b"\n"
            for key, value in headers
            if key not in without
        )


def with_repeat(raw: dict[bytes, bytes], key: bytes, value: bytes) -> Repeating:
    """Return ``raw`` with one more header, of a name that is there already."""
    if not isinstance(raw, Repeating):
        first, raw = raw, Repeating()
        raw.update(first)
    raw.repeats.append((key, value))
    return raw


class LargeFrame(Frame):
    """The head of a SEND whose body follows in pieces."""

    __slots__ = ()


class BodyPiece(NamedTuple):
    """A part of the body of the LargeFrame before it."""

    data: bytes
    """May be empty."""
    is_last: bool
