"""LIKE, without regular expressions that go back over what they have read.

A pattern is cut at its ``%``. What is between two of them is looked for from the left, and the
first place where it stands is taken, which leaves the most room for what follows. The time is
in proportion to the length of the text, whatever the pattern is.
"""

import re
from collections.abc import Callable
from typing import Final

_ANY: Final = "%"
_ONE: Final = "_"
_Token = tuple[str, bool]
"""A character, and whether it is a wildcard."""


def like(pattern: str, escape: str | None) -> Callable[[str], bool]:
    """Return what says whether a text is LIKE ``pattern``.

    ``escape`` before ``%``, ``_`` or itself has that stand for itself; elsewhere it is a character.
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
    """Characters of a pattern between two ``%``."""

    __slots__ = ("_accepts", "_any", "_expression", "_last", "_text", "size")

    def __init__(self, tokens: list[_Token]) -> None:
        self.size = len(tokens)
        self._text = "".join(text for text, _ in tokens)
        self._expression: re.Pattern[str] | None = None
        if any(is_one for _, is_one in tokens):
            # Without a quantifier: it fails after at most ``size`` steps.
            parts = ("." if is_one else re.escape(text) for text, is_one in tokens)
            self._expression = re.compile("".join(parts), re.DOTALL)
            self._last = 1 << (self.size - 1)
            self._any = sum(1 << place for place, (_, is_one) in enumerate(tokens) if is_one)
            self._accepts: dict[str, int] = {}
            for place, (text, is_one) in enumerate(tokens):
                if not is_one:
                    self._accepts[text] = self._accepts.get(text, self._any) | 1 << place

    def stands_at(self, text: str, at: int) -> bool:
        """Return whether it is in a text at a place."""
        if self._expression is None:
            return text.startswith(self._text, at)
        return self._expression.match(text, at) is not None

    def find(self, text: str, start: int, end: int) -> int:
        """Return where it first stands in a stretch of a text; -1 if it does not."""
        if self._expression is None:
            return text.find(self._text, start, end)
        # Shift-and: bit n says whether the first n + 1 characters stand just before this place.
        accepts, any_character, last = self._accepts, self._any, self._last
        standing = 0
        for place in range(start, end):
            standing = (standing << 1 | 1) & accepts.get(text[place], any_character)
            if standing & last:
                return place + 1 - self.size
        return -1
