"""Encodes and parses the STOMP 1.2 frames of Orthia's own client."""

from collections.abc import Mapping
from typing import Final

# NUL has no escape, and brokers refuse it; a message of an older journal may have one.
_ESCAPES: Final = (("\\", "\\\\"), ("\n", "\\n"), ("\r", "\\r"), (":", "\\c"), ("\0", " "))
_UNESCAPED: Final = {"\\\\": "\\", "\\n": "\n", "\\r": "\r", "\\c": ":"}


def encode(
    command: str, headers: Mapping[str, str], body: bytes = b"", *, escape: bool = True
) -> bytes:
    """Return a frame; without ``escape`` its headers are not escaped."""
    change = _escaped if escape else str
    lines = [command, *(f"{change(name)}:{change(value)}" for name, value in headers.items())]
    return "\n".join([*lines, "\n"]).encode() + body + b"\0"


def _escaped(text: str) -> str:
    for plain, escape in _ESCAPES:
        text = text.replace(plain, escape)
    return text


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    parts, at = [], 0
    while at < len(text):
        pair = text[at : at + 2]
        parts.append(_UNESCAPED.get(pair, text[at]))
        at += 2 if pair in _UNESCAPED else 1
    return "".join(parts)


def parse_head(head: bytes) -> tuple[str, dict[str, str]]:
    """Return command and headers of a frame; the first of repeated headers counts."""
    command, *lines = head.decode(errors="replace").split("\n")
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = line.removesuffix("\r").partition(":")
        headers.setdefault(_unescaped(name), _unescaped(value))
    return command.removesuffix("\r"), headers
