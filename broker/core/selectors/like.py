"""LIKE, without the backtracking of regular expressions.

A pattern is cut into runs at its ``%``. Each run is looked for from the left, and the first match
is taken, which leaves the most room for what follows. The time is in proportion to the length of
the text, whatever the pattern is.
"""

import re
from collections.abc import Callable
from typing import Final

_ANY: Final = "%"
_ONE: Final = "_"
_SEGMENT: Final = re.compile("0+")
_OFTEN: Final = 16
"""How often each character occurs in a run on average, at least, for its table to be kept. The
table takes an eighth of a byte for each different character and each character of the run."""
_Token = tuple[str, bool]
"""A character, and whether it is a wildcard."""


def like(pattern: str, escape: str | None) -> Callable[[str], bool]:
    """Return a function that says whether a text is LIKE ``pattern``.

    ``escape`` before ``%``, ``_`` or itself makes that a plain character.
    """
    runs: list[list[_Token]] = [[]]
    for token in _tokens(pattern, escape):
        if token == (_ANY, True):
            runs.append([])
        else:
            runs[-1].append(token)
    first, *others = (_Run(run) for run in runs)
    if not others:
        size, stands_at = first.size, first.stands_at
        return lambda text: len(text) == size and stands_at(text, 0)
    last = others.pop()
    between = [run for run in others if run.size]

    def matches(text: str) -> bool:
        start, end = first.size, len(text) - last.size
        if start > end or not first.stands_at(text, 0) or not last.stands_at(text, end):
            return False
        for run in between:
            found = run.find(text, start, end)
            if found < 0:
                return False
            start = found + run.size
        return True

    return matches


def _tokens(pattern: str, escape: str | None) -> list[_Token]:
    tokens: list[_Token] = []
    index = 0
    while index < len(pattern):
        character = pattern[index]
        following = pattern[index + 1 : index + 2]
        if character == escape and following and following in (_ANY, _ONE, escape):
            tokens.append((following, False))
            index += 1
        else:
            tokens.append((character, character in (_ANY, _ONE)))
        index += 1
    return tokens


class _Run:
    """A run: the characters of a pattern between two ``%``."""

    __slots__ = ("_kept", "_shape", "_text", "size")

    def __init__(self, tokens: list[_Token]) -> None:
        self.size = len(tokens)
        self._text = "".join(text for text, _ in tokens)
        shape = "".join("1" if is_one else "0" for _, is_one in tokens)
        self._shape = shape if "1" in shape else ""
        """A 1 for each wildcard, a 0 for each other character; empty if there is no wildcard."""
        self._kept: dict[str, int] | None = None

    def stands_at(self, text: str, at: int) -> bool:
        """Return whether it matches a text at a place, which has room for it."""
        if not self._shape:
            return text.startswith(self._text, at)
        return all(
            text.startswith(self._text[segment.start() : segment.end()], at + segment.start())
            for segment in _SEGMENT.finditer(self._shape)
        )

    def find(self, text: str, start: int, end: int) -> int:
        """Return where it first matches between two places of a text; -1 if it does not."""
        if not self._shape:
            return text.find(self._text, start, end)
        # Shift-and: bit n says whether the first n + 1 characters match just before this place.
        any_character, last = int(self._shape[::-1], 2), 1 << (self.size - 1)
        accepts = self._accepts(text, any_character)
        standing = 0
        for place in range(start, end):
            standing = (standing << 1 | 1) & accepts.get(text[place], any_character)
            if standing & last:
                return place + 1 - self.size
        return -1

    def _accepts(self, text: str, any_character: int) -> dict[str, int]:
        """Return for each character of a text the places of the run it matches, as bits."""
        if self._kept is not None:
            return self._kept
        characters = set(self._text)
        keeps = len(characters) * _OFTEN <= self.size
        if not keeps:
            characters.intersection_update(text)
        accepts = dict.fromkeys(characters, any_character)
        for place, character in enumerate(self._text):
            if character in accepts:
                accepts[character] |= 1 << place
        if keeps:
            self._kept = accepts
        return accepts
