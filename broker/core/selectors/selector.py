"""A selector, parsed once and matched against many messages; what cannot be parsed is refused.

A number of prefixes may stand before it, as in Artemis and Classic:

- ``hyphenated_props:`` lets names have hyphens, which otherwise need ``"double-quotes"``;
- ``no_convert_string_expressions:`` leaves texts that stand beside numbers what they are, and
  ``convert_string_expressions:`` undoes that. Conversion is the default, as where Classic serves
  protocols whose properties are all texts.
"""

from collections import OrderedDict
from collections.abc import Iterator
from functools import cache
from typing import Final

from orthia.broker.core.selectors.grammar import Parser
from orthia.broker.core.selectors.lexer import tokens
from orthia.broker.core.selectors.nodes import Build, Node
from orthia.broker.core.selectors.refused import SelectorRefused
from orthia.broker.core.selectors.said import MOST_CHARACTERS, Said
from orthia.broker.core.slices import Finding, found
from orthia.journal.model.message import Message

MAX_LENGTH: Final = 4_096
"""Characters of a selector: parsing and matching take a time that is in proportion."""
_KEPT_BYTES: Final = 32 * 1024 * 1024
"""Of all selectors that are kept parsed."""
_OPERATION_BYTES: Final = 64
_CHARACTER_BYTES: Final = 48
"""What a parsed selector takes at most, measured on CPython 3.11."""
_PREFIXES: Final = {
    "convert_string_expressions:": ("converts", True),
    "no_convert_string_expressions:": ("converts", False),
    "hyphenated_props:": ("hyphenated", True),
    "no_hyphenated_props:": ("hyphenated", False),
}


class Selector:
    """Says of messages whether they are wanted; equal to another of the same text."""

    __slots__ = ("_evaluate", "operations", "text")

    def __init__(self, text: str, parsed: Node) -> None:
        self.text = text
        self.operations = parsed.operations
        """How many it does of a message at most: what it costs is in proportion."""
        self._evaluate = parsed.evaluate

    @property
    def bytes(self) -> int:
        """What it takes of memory, about."""
        return _OPERATION_BYTES * self.operations + _CHARACTER_BYTES * len(self.text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Selector) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"Selector({self.text!r})"

    def matches(self, message: Message) -> bool:
        """Return whether a message is wanted."""
        return self.accepts(Said(message))

    def accepts(self, said: Said) -> bool:
        """Return whether a message is wanted that other selectors are asked of, too."""
        said.characters = MOST_CHARACTERS
        try:
            return self._evaluate(said) is True
        except (ArithmeticError, ValueError, RecursionError):
            return False  # what cannot be computed is unknown, to whoever asks


class SelectorCache:
    """Selectors that were parsed, shared by all that have the same text.

    Bounded by what they take: those that were not used for longest go first, and are parsed again
    when they are wanted.
    """

    def __init__(self, most_bytes: int) -> None:
        self._known: OrderedDict[str, Selector] = OrderedDict()
        self._most_bytes = most_bytes
        self.bytes = 0
        """What all of them take together."""

    def get(self, text: str) -> Selector:
        """Return a selector; see ``parse``."""
        selector = self._known.get(text)
        if selector is not None:
            self._known.move_to_end(text)
            return selector
        return found(self.parsing(text))

    def parsing(self, text: str) -> Finding[Selector]:
        """Find out what a selector is, in steps."""
        known = self._known
        selector = known.get(text)
        if selector is not None:
            known.move_to_end(text)
            return selector
        selector = yield from _parse(text)
        if text in known:
            return known[text]  # somebody else was quicker
        known[text] = selector
        self.bytes += selector.bytes
        while self.bytes > self._most_bytes:
            _, oldest = known.popitem(last=False)
            self.bytes -= oldest.bytes
        return selector


_CACHE: Final = SelectorCache(_KEPT_BYTES)


def parse(text: str) -> Selector:
    """Return the selector that ``text`` is; raises SelectorRefused, which says where it is wrong.

    Columns are counted from 1, in all of ``text``.
    """
    return _CACHE.get(text)


def parsing(text: str) -> Finding[Selector]:
    """Find out, in steps, what ``parse`` returns, which takes nothing then."""
    return _CACHE.parsing(text)


def _parse(text: str) -> Finding[Selector]:
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
        parsed = yield from _parsed(expression, **options)
        return Selector(text, parsed)
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


def _parsed(text: str, *, converts: bool, hyphenated: bool) -> Finding[Node]:
    build = _build(converts=converts)
    node = yield from Parser(tokens(text, hyphenated=hyphenated), build).parse()
    return build.start(node)


@cache
def _build(*, converts: bool) -> Build:
    return Build(converts=converts)
