"""The grammar of selectors, and its parser, which keeps a stack of its own.

    disjunction: conjunction (OR conjunction)*
    conjunction: negation (AND negation)*
    negation:    NOT negation | equality
    equality:    relation | equality ("=" | "<>") relation | equality IS [NOT] NULL
    relation:    sum | relation (">" | ">=" | "<" | "<=") sum
               | relation [NOT] BETWEEN sum AND sum
               | relation [NOT] LIKE text [ESCAPE text]
               | relation [NOT] IN "(" text ("," text)* ")"
    sum:         product (("+" | "-") product)*
    product:     signed (("*" | "/" | "%") signed)*
    signed:      ("+" | "-") signed | operand
    operand:     name | text | number | TRUE | FALSE | "(" disjunction ")"

The parser goes by the precedence of operators: its time is in proportion to the length, and
parentheses do not nest calls. As in SQL-92, NOT applies to a whole comparison. In Artemis and
Classic it applies to the next operand, so that ``NOT a = 1`` means something else there, and
everybody writes ``NOT (a = 1)``.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Final, NamedTuple

from orthia.broker.core.selectors.lexer import Kind, Token
from orthia.broker.core.selectors.nodes import Build, Node
from orthia.broker.core.selectors.refused import SelectorRefused
from orthia.broker.quoting import quoted

_IN_A_STEP: Final = 64
"""Operators and operands of one step, which takes a quarter of a millisecond."""
_RELATIONS: Final = (Kind.NOT, Kind.BETWEEN, Kind.LIKE, Kind.IN)
_GROUP: Final = 0
"""Precedence of an open parenthesis."""
_OR: Final = 1
_AND: Final = 2
_NOT: Final = 3
_EQUALITY: Final = 4
_RELATION: Final = 5
_SUM: Final = 6
_PRODUCT: Final = 7
_SIGN: Final = 8
_OPERAND: Final = 9
_BINARY: Final = {
    Kind.OR: _OR,
    Kind.AND: _AND,
    Kind.EQUAL: _EQUALITY,
    Kind.ORDER: _RELATION,
    Kind.SIGN: _SUM,
    Kind.TIMES: _PRODUCT,
}
_LISTS: Final = (_OR, _AND, _SUM, _PRODUCT)
"""Operators of which any number in a row make one node, so that a long list does not nest calls."""


class _Pending(NamedTuple):
    """An operator whose right side is not complete."""

    precedence: int
    word: Token
    negated: Token | None = None
    """The NOT before a BETWEEN."""
    is_open: bool = False
    """Whether it is a BETWEEN that waits for its AND."""


class Parser:
    """Parses one selector."""

    def __init__(self, words: Iterator[Token], build: Build) -> None:
        """``build`` makes the node of each rule."""
        self._words = words
        self._build = build
        self._nodes: list[Node] = []
        self._level = _OPERAND
        """The precedence of the last node: it cannot be an operand of a higher one."""
        self._pending: list[_Pending] = []
        self._operands: dict[Kind, Callable[[Sequence[Token]], Node]] = {
            Kind.NAME: build.name,
            Kind.QUOTED_NAME: build.quoted_name,
            Kind.TEXT: build.text,
            Kind.FLOAT: build.float_number,
            Kind.INTEGER: build.integer,
            Kind.TRUE: build.true,
            Kind.FALSE: build.false,
        }
        self._reductions: dict[int, Callable[[Sequence[Any]], Node]] = {
            _EQUALITY: build.equal,
            _RELATION: build.order,
            _SUM: build.sum,
            _PRODUCT: build.product,
        }
        self._word = next(words)

    def parse(self) -> Generator[bool, None, Node]:
        """Parse the selector in steps; raises SelectorRefused."""
        wants_value, count = True, 0
        while wants_value or self._word.kind is not Kind.END:
            wants_value = self._operand() if wants_value else self._operator()
            count += 1
            if not count % _IN_A_STEP:
                yield False
        self._reduce(_OR)
        if self._pending:
            raise self._unexpected()  # a parenthesis is not closed
        return self._nodes.pop()

    def _advance(self) -> Token:
        word = self._word
        self._word = next(self._words)
        return word

    def _expect(self, kind: Kind) -> Token:
        if self._word.kind is not kind:
            raise self._unexpected()
        return self._advance()

    def _unexpected(self) -> SelectorRefused:
        word = self._word
        if word.kind is Kind.END:
            return SelectorRefused("it ends too early", word.column)
        return SelectorRefused(f"{quoted(word[:40])} is not expected", word.column)

    def _operand(self) -> bool:
        """Take a value, or what may precede one; return whether a value must follow."""
        kind = self._word.kind
        make = self._operands.get(kind)
        if make is not None:
            self._nodes.append(make((self._advance(),)))
            self._level = _OPERAND
            return False
        if kind is Kind.SIGN:
            self._pending.append(_Pending(_SIGN, self._advance()))
        elif kind is Kind.OPEN:
            self._pending.append(_Pending(_GROUP, self._advance()))
        elif kind is Kind.NOT and (not self._pending or self._pending[-1].precedence <= _NOT):
            self._pending.append(_Pending(_NOT, self._advance()))
        elif kind is Kind.XPATH:
            xpath = self._advance()
            self._build.xpath((xpath, self._expect(Kind.TEXT)))
        else:
            raise self._unexpected()
        return True

    def _operator(self) -> bool:
        """Take what may follow a value; return whether another value must follow."""
        kind = self._word.kind
        precedence = _BINARY.get(kind)
        if precedence is not None:
            if precedence > self._level:
                raise self._unexpected()
            if kind is Kind.AND and self._ends_between():
                return True
            # A list becomes one node when it ends.
            self._reduce(precedence + 1 if precedence in _LISTS else precedence)
            self._pending.append(_Pending(precedence, self._advance()))
            return True
        if kind is Kind.CLOSE:
            self._close()
        elif kind is Kind.IS:
            self._is()
        elif kind in _RELATIONS and self._level >= _RELATION:
            return self._relation()
        else:
            raise self._unexpected()
        return False

    def _ends_between(self) -> bool:
        """Take the AND of a BETWEEN, if it is that."""
        self._reduce(_SUM)
        if not self._pending or not self._pending[-1].is_open:
            return False
        self._pending[-1] = self._pending[-1]._replace(is_open=False)
        self._advance()
        return True

    def _close(self) -> None:
        self._reduce(_OR)
        if not self._pending:
            raise self._unexpected()
        self._pending.pop()
        self._advance()
        self._level = _OPERAND

    def _is(self) -> None:
        self._reduce(_EQUALITY)
        self._advance()
        negated = self._advance() if self._word.kind is Kind.NOT else None
        self._expect(Kind.NULL)
        build = self._build
        left = self._nodes.pop()
        self._nodes.append(build.is_null([left]) if negated is None else build.is_not_null([left]))
        self._level = _EQUALITY

    def _relation(self) -> bool:
        """Take a LIKE, an IN or the word BETWEEN; return whether a value must follow."""
        self._reduce(_RELATION)
        negated = self._advance() if self._word.kind is Kind.NOT else None
        word = self._word
        if word.kind is Kind.BETWEEN:
            self._pending.append(_Pending(_RELATION, self._advance(), negated, is_open=True))
            return True
        left = self._nodes.pop()
        if word.kind is Kind.LIKE:
            self._advance()
            pattern, escape = self._expect(Kind.TEXT), None
            if self._word.kind is Kind.ESCAPE:
                self._advance()
                escape = self._expect(Kind.TEXT)
            node = self._build.like([left, negated, pattern, escape])
        else:
            self._expect(Kind.IN)
            self._expect(Kind.OPEN)
            texts = [self._expect(Kind.TEXT)]
            while self._word.kind is Kind.COMMA:
                self._advance()
                texts.append(self._expect(Kind.TEXT))
            self._expect(Kind.CLOSE)
            node = self._build.in_list([left, negated, *texts])
        self._nodes.append(node)
        self._level = _RELATION
        return False

    def _reduce(self, least: int) -> None:
        """Make nodes of all pending operators of at least a precedence."""
        pending = self._pending
        while pending and pending[-1].precedence >= least:
            top = pending.pop()
            if top.is_open:
                raise self._unexpected()
            self._nodes.append(self._reduced(top))

    def _reduced(self, top: _Pending) -> Node:
        """Return the node of an operator, with all operators of the same list."""
        nodes, build = self._nodes, self._build
        right = nodes.pop()
        precedence = top.precedence
        if precedence == _SIGN:
            return build.sign([top.word, right])
        if precedence == _NOT:
            return build.negation([top.word, right])
        if top.word.kind is Kind.BETWEEN:
            low = nodes.pop()
            return build.between([nodes.pop(), top.negated, low, right])
        parts: list[Any] = [right, top.word, nodes.pop()]
        if precedence in _LISTS:
            while self._pending and self._pending[-1].precedence == precedence:
                parts += (self._pending.pop().word, nodes.pop())
        parts.reverse()
        if precedence == _OR:
            return build.disjunction(parts[::2])
        if precedence == _AND:
            return build.conjunction(parts[::2])
        return self._reductions[precedence](parts)
