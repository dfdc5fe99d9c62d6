"""Java's ``.properties`` files: read as Java reads them, and changed one entry at a time.

An entry is ``NAME = VALUE``; ``:`` or white space may stand for the ``=``. A line that ends with an
odd number of backslashes goes on in the next, ``#`` and ``!`` begin comments, and a backslash
takes the meaning from the character after it, or stands with it for another.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from orthia.config.errors import ConfigurationError

_BLANKS: Final = " \t\f"
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_WRITTEN: Final = {"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f", "\\": "\\\\"}
_ESCAPED: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|u|.)", re.DOTALL)


@dataclass(frozen=True)
class _Entry:
    """Lines of a file; ``name`` is None for comments and empty lines."""

    lines: str
    number: int
    name: str | None = None
    value: str = ""


class PropertiesFile:
    """The text of a file, of which entries can be changed; the rest stays as it is."""

    def __init__(self, text: str) -> None:
        """Read ``text``; raises ConfigurationError for a backslash that means nothing.

        What it says begins with the number of the line.
        """
        self._entries = list(_entries(text))

    @property
    def values(self) -> Mapping[str, str]:
        """What each name has; of several entries for one the last counts."""
        return {one.name: one.value for one in self._entries if one.name is not None}

    def line_of(self, name: str) -> int:
        """Return the number of the line where the entry that counts begins."""
        return max(one.number for one in self._entries if one.name == name)

    def set(self, name: str, value: str) -> None:
        """Set ``name`` to ``value``, in its place or at the end."""
        line = f"{_written(name, name=True)} = {_written(value, name=False)}\n"
        new = _Entry(line, 0, name, value)
        places = [place for place, one in enumerate(self._entries) if one.name == name]
        if places:
            self._entries[places[-1]] = new
            return
        if self._entries and not self._entries[-1].lines.endswith("\n"):
            self._entries.append(_Entry("\n", 0))
        self._entries.append(new)

    def remove(self, name: str) -> None:
        """Remove the entry of this name."""
        self._entries = [one for one in self._entries if one.name != name]

    def render(self) -> str:
        """Return the text of the file."""
        return "".join(one.lines for one in self._entries)


def decode_properties(data: bytes) -> str:
    """Return the text of a file: UTF-8, or else ISO-8859-1, which is what Java takes it for."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("iso-8859-1")


def _entries(text: str) -> Iterator[_Entry]:
    lines = re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+\Z", text)
    number = 0
    while number < len(lines):
        first = number
        logical = lines[number].rstrip("\r\n").lstrip(_BLANKS)
        number += 1
        if not logical or logical[0] in "#!":
            yield _Entry(lines[first], first + 1)
            continue
        while _goes_on(logical):
            logical = logical[:-1]
            if number == len(lines):
                break
            logical += lines[number].rstrip("\r\n").lstrip(_BLANKS)
            number += 1
        try:
            name, value = (_plain(part) for part in _split(logical))
        except ConfigurationError as error:
            raise ConfigurationError(f"{first + 1}: {error}") from None
        yield _Entry("".join(lines[first:number]), first + 1, name, value)


def _goes_on(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _split(line: str) -> tuple[str, str]:
    """Return name and value, as they are written."""
    end = 0
    while end < len(line) and line[end] not in f"=:{_BLANKS}":
        end += 2 if line[end] == "\\" else 1
    rest = line[end:].lstrip(_BLANKS)
    if rest[:1] in {"=", ":"}:
        rest = rest[1:].lstrip(_BLANKS)
    return line[:end], rest


def _plain(text: str) -> str:
    def meaning(found: re.Match[str]) -> str:
        escaped = found[1]
        if escaped == "u":
            raise ConfigurationError(r"\u is not followed by four hexadecimal digits")
        if escaped[0] == "u":
            return chr(int(escaped[1:], 16))
        return _ESCAPES.get(escaped, escaped)

    try:
        # Java writes a character beyond the first 65,536 as two escapes, and knows it by both. Half
        # of one is no text: it could be compared with none, and not be sent or stored.
        return _ESCAPED.sub(meaning, text).encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError:
        raise ConfigurationError(
            r"one of \ud800 to \udfff is half a character; expected both halves, as \ud83d\ude00"
        ) from None


def _written(text: str, *, name: bool) -> str:
    special = "=:#! " if name else ""
    found = "".join(_WRITTEN.get(each, f"\\{each}" if each in special else each) for each in text)
    # Blanks before a value are not of it, unless they are escaped.
    return f"\\{found}" if found.startswith(" ") and not name else found
