"""Names of management objects as JMX has them: ``domain:key=value,key="quoted value"``.

A name with ``*`` or ``?`` outside of an escape is a pattern, and ``,*`` at its end stands for any
further keys. Values are compared by what they say, whether they are quoted or not.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from orthia.broker.management.errors import WrongArgument
from orthia.broker.quoting import quoted

_ESCAPES: Final = {"n": "\n", '"': '"', "\\": "\\", "*": "*", "?": "?"}
_NEEDS_ESCAPE: Final = re.compile(r'(["\\*?])')
_LONGEST: Final = 4_096


class Value(NamedTuple):
    """What a name says of one key."""

    text: str
    """Without quotes and escapes."""
    pattern: re.Pattern[str] | None
    """What it matches; None if it is no pattern."""

    def matches(self, text: str) -> bool:
        """Return whether an object of that value is meant."""
        return self.text == text if self.pattern is None else bool(self.pattern.fullmatch(text))


class ObjectName(NamedTuple):
    """The name of one object, or a pattern of names."""

    domain: Value
    keys: Mapping[str, Value]
    open: bool
    """Whether an object may have further keys."""

    @property
    def is_pattern(self) -> bool:
        """Whether it may be of several objects."""
        values = (self.domain, *self.keys.values())
        return self.open or any(one.pattern is not None for one in values)

    def matches(self, domain: str, keys: Mapping[str, str], any_of: str) -> bool:
        """Return whether an object is meant; of key ``any_of`` any value is, if it is named."""
        if not self.domain.matches(domain):
            return False
        if not (self.keys.keys() <= keys.keys() if self.open else self.keys.keys() == keys.keys()):
            return False
        return all(name == any_of or one.matches(keys[name]) for name, one in self.keys.items())


def quote(text: str) -> str:
    """Return a value in quotes."""
    return '"' + _NEEDS_ESCAPE.sub(r"\\\1", text).replace("\n", "\\n") + '"'


def parse(text: str) -> ObjectName:
    """Return the name that a text is; raises WrongArgument."""
    domain, colon, rest = text.partition(":")
    if not colon or not rest or len(text) > _LONGEST:
        raise _wrong(text, "expected DOMAIN:KEY=VALUE,KEY=VALUE")
    keys: dict[str, Value] = {}
    is_open = False
    for key, value in _pairs(text, rest):
        if value is None:
            is_open = True
        elif key in keys:
            raise _wrong(text, f"key {quoted(key)} is there twice")
        else:
            keys[key] = value
    return ObjectName(_plain(domain), keys, is_open)


def _pairs(text: str, rest: str) -> Iterator[tuple[str, Value | None]]:
    """Yield keys and values; ``*``, for any further keys, has none."""
    place = 0
    while place <= len(rest):
        if rest.startswith("*", place) and rest[place + 1 : place + 2] in ("", ","):
            yield "*", None
            place += 2
            continue
        equals = rest.find("=", place)
        key = rest[place:equals]
        if equals < 0 or not key or "," in key:
            raise _wrong(text, f"expected KEY=VALUE at {quoted(rest[place : place + 40])}")
        place = equals + 1
        if rest.startswith('"', place):
            value, place = _quoted(text, rest, place + 1)
        else:
            comma = rest.find(",", place)
            end = len(rest) if comma < 0 else comma
            value, place = _plain(rest[place:end]), end
        if place < len(rest) and rest[place] != ",":
            raise _wrong(text, f"expected a comma at {quoted(rest[place : place + 40])}")
        yield key, value
        if place == len(rest):
            return
        place += 1


def _plain(text: str) -> Value:
    """Return a value without quotes."""
    if "*" not in text and "?" not in text:
        return Value(text, None)
    return Value(text, _pattern([(one, one in "*?") for one in text]))


def _quoted(text: str, rest: str, place: int) -> tuple[Value, int]:
    """Return the value behind an opening quote, and where what follows it begins."""
    found: list[tuple[str, bool]] = []
    while place < len(rest):
        one = rest[place]
        if one == '"':
            value = "".join(letter for letter, _ in found)
            is_pattern = any(wild for _, wild in found)
            return Value(value, _pattern(found) if is_pattern else None), place + 1
        if one == "\\":
            place += 1
            escaped = rest[place : place + 1]
            if escaped not in _ESCAPES:
                raise _wrong(text, f"\\{escaped} is no escape")
            found.append((_ESCAPES[escaped], False))
        else:
            found.append((one, one in "*?"))
        place += 1
    raise _wrong(text, "a quote is not closed")


def _pattern(letters: list[tuple[str, bool]]) -> re.Pattern[str]:
    """Return what letters match, of which some are wildcards."""
    parts = [""]
    for letter, is_wild in letters:
        if is_wild and letter == "*":
            parts.append("")
        else:
            parts[-1] += "." if is_wild else re.escape(letter)
    # What is between two stars is where it comes first, so that no match takes long.
    first, *rest = parts
    between = "".join(f"(?>.*?{one})" for one in rest[:-1])
    return re.compile(first + between + (f".*{rest[-1]}" if rest else ""), re.DOTALL)


def _wrong(text: str, problem: str) -> WrongArgument:
    return WrongArgument("mbean", f"{quoted(text[:300])} is no name of an object: {problem}")
