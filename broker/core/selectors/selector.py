"""A selector, parsed once and matched against many messages; what cannot be parsed is refused.

A number of prefixes may stand before it, as in Artemis and Classic:

- ``hyphenated_props:`` lets names have hyphens, which otherwise need ``"double-quotes"``;
- ``no_convert_string_expressions:`` leaves texts that stand beside numbers what they are, and
  ``convert_string_expressions:`` undoes that. Conversion is the default, as where Classic serves
  protocols whose properties are all texts.
"""

from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Final

from lark import Lark, UnexpectedInput, UnexpectedToken

from orthia.broker.core.selectors.grammar import parser
from orthia.broker.core.selectors.nodes import Build, Evaluate
from orthia.broker.core.selectors.refused import SelectorRefused
from orthia.broker.core.selectors.said import MOST_CHARACTERS, Said
from orthia.broker.quoting import quoted
from orthia.journal.message import Message

MAX_LENGTH: Final = 4_096
"""Characters of a selector: parsing and matching take a time that is in proportion."""
_PREFIXES: Final = {
    "convert_string_expressions:": ("converts", True),
    "no_convert_string_expressions:": ("converts", False),
    "hyphenated_props:": ("hyphenated", True),
    "no_hyphenated_props:": ("hyphenated", False),
}


class Selector:
    """Says of messages whether they are wanted; equal to another of the same text."""

    __slots__ = ("_evaluate", "text")

    def __init__(self, text: str, evaluate: Evaluate) -> None:
        self.text = text
        self._evaluate = evaluate

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Selector) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"Selector({self.text!r})"

    def matches(self, message: Message) -> bool:
        """Return whether a message is wanted."""
        return self._evaluate(Said(message)) is True

    def accepts(self, said: Said) -> bool:
        """Return whether a message is wanted that other selectors are asked of, too."""
        said.characters = MOST_CHARACTERS
        return self._evaluate(said) is True


@lru_cache(maxsize=16)  # a subscription to several destinations asks for one at each
def parse(text: str) -> Selector:
    """Return the selector that ``text`` is; raises SelectorRefused, which says where it is wrong.

    Columns are counted from 1, in all of ``text``.
    """
    if len(text) > MAX_LENGTH:
        raise SelectorRefused(
            f"it has {len(text)} characters, and a selector may have {MAX_LENGTH}"
        )
    options = {"converts": True, "hyphenated": False}
    before = 0
    for prefix in _prefixes(text):
        option, value = _PREFIXES[prefix]
        options[option] = value
        before += len(prefix)
    expression = text[before:]
    if not expression.strip():
        raise SelectorRefused("it is empty; leave it out to get every message")
    try:
        return Selector(text, _evaluation(expression, **options))
    except SelectorRefused as error:
        if error.column is None or not before:
            raise
        raise SelectorRefused(error.problem, before + error.column) from None


def _prefixes(text: str) -> Iterator[str]:
    before = 0
    while True:
        found = next((one for one in _PREFIXES if text.startswith(one, before)), None)
        if found is None:
            return
        yield found
        before += len(found)


def _evaluation(text: str, *, converts: bool, hyphenated: bool) -> Evaluate:
    try:
        evaluate: Evaluate = _parser(converts=converts, hyphenated=hyphenated).parse(text)  # type: ignore[assignment]
    except UnexpectedInput as error:
        raise SelectorRefused(_problem(error, text), _place(error, text)) from None
    return evaluate


@cache
def _parser(*, converts: bool, hyphenated: bool) -> Lark:
    return parser(Build(converts=converts), hyphenated=hyphenated)


def _place(error: UnexpectedInput, text: str) -> int:
    at = error.pos_in_stream
    if isinstance(error, UnexpectedToken) and error.token.type == "$END":
        at = len(text)
    return 1 + (at or 0)


def _problem(error: UnexpectedInput, text: str) -> str:
    if isinstance(error, UnexpectedToken):
        if error.token.type == "$END":
            return "it ends too early"
        return f"{quoted(error.token[:40])} is not expected"
    rest = text[error.pos_in_stream :]
    if rest[0] in "'\"":
        return f"the {rest[0]} is never closed"
    return f"{quoted(rest[:20])} cannot be read"
