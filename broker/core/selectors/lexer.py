"""The lexer of selectors: yields words, each with its column."""

import re
from collections.abc import Iterator
from enum import Enum, auto
from functools import cache
from typing import Final

from orthia.broker.core.selectors.refused import SelectorRefused
from orthia.broker.quoting import quoted

_IN_NAME: Final = r"\w$"
_LINE_COMMENT: Final = r"--[^\r\n]*[\r\n]|"
_TERMINALS: Final = r"""
    (?P<IGNORED>[ \t\r\n\f]+|LINE_COMMENT/\*(?:[^*]|\*(?!/))*\*/)
    |(?P<OR>(?i:or)(?![IN_NAME]))
    |(?P<AND>(?i:and)(?![IN_NAME]))
    |(?P<NOT>(?i:not)(?![IN_NAME]))
    |(?P<BETWEEN>(?i:between)(?![IN_NAME]))
    |(?P<LIKE>(?i:like)(?![IN_NAME]))
    |(?P<ESCAPE>(?i:escape)(?![IN_NAME]))
    |(?P<IN>(?i:in)(?![IN_NAME]))
    |(?P<IS>(?i:is)(?![IN_NAME]))
    |(?P<NULL>(?i:null)(?![IN_NAME]))
    |(?P<TRUE>(?i:true)(?![IN_NAME]))
    |(?P<FALSE>(?i:false)(?![IN_NAME]))
    |(?P<XPATH>(?i:x(?:path|query))(?![IN_NAME]))
    |(?P<FLOAT>(?i:(?:(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|[0-9]+e[+-]?[0-9]+)[fd]?)(?![\w$]))
    |(?P<INTEGER>(?i:0x[0-9a-f]+|[0-9]+l?)(?![\w$]))
    |(?P<NAME>(?![0-9])[\w$][IN_NAME]*)
    |(?P<TEXT>'(?:[^']|'')*')
    |(?P<QUOTED_NAME>"(?:[^"]|"")*")
    |(?P<EQUAL>=|<>)
    |(?P<ORDER>>=|<=|>|<)
    |(?P<SIGN>[+-])
    |(?P<TIMES>[*/%])
    |(?P<OPEN>\()
    |(?P<CLOSE>\))
    |(?P<COMMA>,)
"""
"""In the order in which they are tried."""


class Kind(Enum):
    """The kind of a word."""

    OR = auto()
    AND = auto()
    NOT = auto()
    BETWEEN = auto()
    LIKE = auto()
    ESCAPE = auto()
    IN = auto()
    IS = auto()
    NULL = auto()
    TRUE = auto()
    FALSE = auto()
    XPATH = auto()
    FLOAT = auto()
    INTEGER = auto()
    NAME = auto()
    TEXT = auto()
    QUOTED_NAME = auto()
    EQUAL = auto()
    ORDER = auto()
    SIGN = auto()
    TIMES = auto()
    OPEN = auto()
    CLOSE = auto()
    COMMA = auto()
    END = auto()


_KINDS: Final = dict(Kind.__members__)


class Token(str):
    """A word of a selector."""

    __slots__ = ("column", "kind")

    column: int
    kind: Kind


def token(kind: Kind, text: str, column: int) -> Token:
    """Return a word at a column; columns count from 1."""
    made = Token(text)
    made.kind, made.column = kind, column
    return made


def tokens(text: str, *, hyphenated: bool) -> Iterator[Token]:
    """Yield the words of a selector, the last of which is its END.

    With ``hyphenated`` a name may have hyphens, and a minus needs a space before it. Raises
    SelectorRefused where no word begins.
    """
    match = _terminals(hyphenated=hyphenated, line_comments=True).match
    at, end = 0, len(text)
    # After the last line end two minus signs are no comment. Looking for the line's end at each of
    # them would take a time that grows with the square of their number.
    last_line = max(text.rfind("\n"), text.rfind("\r"))
    while at < end:
        if at > last_line:
            match = _terminals(hyphenated=hyphenated, line_comments=False).match
            last_line = end
        found = match(text, at)
        if found is None:
            raise SelectorRefused(_unreadable(text[at:]), at + 1)
        name = found.lastgroup
        if name != "IGNORED":
            yield token(_KINDS[name or ""], found.group(), at + 1)
        at = found.end()
    yield token(Kind.END, "", end + 1)


@cache
def _terminals(*, hyphenated: bool, line_comments: bool) -> re.Pattern[str]:
    in_name = _IN_NAME + "-" if hyphenated else _IN_NAME
    terminals = _TERMINALS.strip().replace("\n    ", "").replace("IN_NAME", in_name)
    return re.compile(terminals.replace("LINE_COMMENT", _LINE_COMMENT if line_comments else ""))


def _unreadable(rest: str) -> str:
    if rest[0] in "'\"":
        return f"the {rest[0]} is never closed"
    return f"{quoted(rest[:20])} cannot be read"
