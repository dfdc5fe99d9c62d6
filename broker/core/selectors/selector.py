"""A selector, parsed once and matched against many messages; what cannot be parsed is refused.

A number of prefixes may stand before it, as in Artemis and Classic:

- ``hyphenated_props:`` lets names have hyphens, which otherwise need ``"double-quotes"``;
- ``convert_string_expressions:`` reads texts that stand beside numbers as numbers, and
  ``no_convert_string_expressions:`` leaves them what they are. Without either, that depends on the
  message: texts are read as numbers where its protocol has only texts.
"""

from collections import OrderedDict
from collections.abc import Iterator
from functools import cache
from typing import Final
from weakref import WeakValueDictionary

from orthia.broker.core.selectors.grammar import Parser
from orthia.broker.core.selectors.lexer import tokens
from orthia.broker.core.selectors.nodes import Build, Node
from orthia.broker.core.selectors.properties import MOST_CHARACTERS, MessageProperties
from orthia.broker.core.selectors.refused import SelectorRefused
from orthia.broker.core.selectors.values import Converts, always, if_untyped, never
from orthia.broker.core.slices import Finding, found
from orthia.journal.model.message import Message

MAX_LENGTH: Final = 4_096
"""Characters of a selector: parsing and matching take a time that is in proportion."""
CHARACTER_BYTES: Final = 100
"""What each character of a parsed selector takes at most, measured of the costliest."""
_KEPT_BYTES: Final = 4 * 1024 * 1024
"""Of all selectors that are kept parsed though nobody uses them."""
_CONVERSIONS: Final[dict[str, Converts]] = {
    "convert_string_expressions:": always,
    "no_convert_string_expressions:": never,
}
_HYPHENS: Final = {"hyphenated_props:": True, "no_hyphenated_props:": False}
_PREFIXES: Final = (*_CONVERSIONS, *_HYPHENS)


class Selector:
    """A parsed selector; equal to another of the same text."""

    __slots__ = ("__weakref__", "_evaluate", "operations", "text")

    def __init__(self, text: str, parsed: Node) -> None:
        self.text = text
        self.operations = parsed.operations
        """How many it does of a message at most: what it costs is in proportion."""
        self._evaluate = parsed.evaluate

    @property
    def bytes(self) -> int:
        """What it takes of memory at most."""
        return CHARACTER_BYTES * len(self.text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Selector) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"Selector({self.text!r})"

    def matches(self, message: Message) -> bool:
        """Return whether a message matches."""
        return self.accepts(MessageProperties(message))

    def accepts(self, properties: MessageProperties) -> bool:
        """Return whether a message matches, whose properties other selectors read, too."""
        properties.characters = MOST_CHARACTERS
        try:
            return self._evaluate(properties) is True
        except (ArithmeticError, ValueError, RecursionError):
            return False  # what cannot be computed is unknown, to whoever asks


class SelectorCache:
    """Selectors that were parsed, shared by all that have the same text.

    One that is in use is here as long as it is. Of those that were used last some are kept besides,
    bounded by what they take: the least recently used goes first, and is parsed again when it is
    wanted.
    """

    def __init__(self, most_bytes: int) -> None:
        self._in_use: WeakValueDictionary[str, Selector] = WeakValueDictionary()
        self._recent: OrderedDict[str, Selector] = OrderedDict()
        self._most_bytes = most_bytes
        self.bytes = 0
        """What all of those take together that were used last."""

    def get(self, text: str) -> Selector:
        """Return a selector; see ``parse``."""
        return found(self.parsing(text))

    def parsing(self, text: str) -> Finding[Selector]:
        """Parse a selector in steps, unless it is known."""
        selector = self._in_use.get(text)
        if selector is None:
            parsed = yield from _parse(text)
            selector = self._in_use.setdefault(text, parsed)  # somebody else may have been quicker
        self._keep(text, selector)
        return selector

    def _keep(self, text: str, selector: Selector) -> None:
        recent = self._recent
        if text in recent:
            recent.move_to_end(text)
            return
        recent[text] = selector
        self.bytes += selector.bytes
        while self.bytes > self._most_bytes and len(recent) > 1:
            _, oldest = recent.popitem(last=False)
            self.bytes -= oldest.bytes


_CACHE: Final = SelectorCache(_KEPT_BYTES)


def parse(text: str) -> Selector:
    """Return the selector that ``text`` is; raises SelectorRefused, which says where it is wrong.

    Columns are counted from 1, in all of ``text``.
    """
    return _CACHE.get(text)


def parsing(text: str) -> Finding[Selector]:
    """Parse a selector in steps, so that ``parse`` finds it known."""
    return _CACHE.parsing(text)


def _parse(text: str) -> Finding[Selector]:
    if len(text) > MAX_LENGTH:
        raise SelectorRefused(
            f"it has {len(text)} characters, and a selector may have {MAX_LENGTH}"
        )
    converts: Converts = if_untyped
    hyphenated = False
    before = 0
    for prefix in _prefixes(text):
        converts = _CONVERSIONS.get(prefix, converts)
        hyphenated = _HYPHENS.get(prefix, hyphenated)
        before += len(prefix)
    expression = text[before:]
    if not expression.strip():
        raise SelectorRefused("it is empty; leave it out to get every message")
    try:
        parsed = yield from _parsed(expression, converts, hyphenated=hyphenated)
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


def _parsed(text: str, converts: Converts, *, hyphenated: bool) -> Finding[Node]:
    build = _build(converts)
    node = yield from Parser(tokens(text, hyphenated=hyphenated), build).parse()
    return build.start(node)


@cache
def _build(converts: Converts) -> Build:
    return Build(converts)
