"""The headers of a stored message: ``key:value\\n`` lines, escaped as STOMP 1.2 does."""

from collections.abc import Iterator, Mapping
from typing import Final

_UNESCAPED: Final = {"r": "\r", "n": "\n", "c": ":", "\\": "\\"}
_ESCAPES: Final = str.maketrans(
    {character: f"\\{letter}" for letter, character in _UNESCAPED.items()} | {"\0": " "}
)
"""STOMP cannot say NUL, which ends frames; it becomes a space."""


def header_lines(headers: Mapping[str, str]) -> bytes:
    """Return the stored form of ``headers``."""
    return "".join(
        f"{name.translate(_ESCAPES)}:{value.translate(_ESCAPES)}\n"
        for name, value in headers.items()
    ).encode()


def headers_map(headers: bytes) -> dict[str, str]:
    """Decode a ``MessageRecord.headers`` block; the first of repeated headers counts.

    Raises ValueError if a line has no colon or an escape STOMP 1.2 does not know.
    """
    decoded: dict[str, str] = {}
    for line in headers.decode().split("\n"):
        if line:
            key, colon, value = line.partition(":")
            if not colon:
                raise ValueError(f"the header line {line!r} has no colon")
            decoded.setdefault(_unescape(key), _unescape(value))
    return decoded


def _unescape(text: str) -> str:
    return "".join(_unescaped_parts(text)) if "\\" in text else text


def _unescaped_parts(text: str) -> Iterator[str]:
    characters = iter(text)
    for character in characters:
        if character != "\\":
            yield character
            continue
        escape = next(characters, "")
        if escape not in _UNESCAPED:
            raise ValueError(f"\\{escape} in the header text {text!r} is no STOMP 1.2 escape")
        yield _UNESCAPED[escape]
