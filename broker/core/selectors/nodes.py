"""The compiler of selectors: a closure for each part, which returns a value or None.

A list of conditions, or of terms, is one closure however long it is: so calls nest only as deep as
the expression, and its depth is bounded.
"""

import operator
from collections.abc import Callable, Sequence
from enum import Enum, auto
from functools import lru_cache
from typing import Any, Final, NamedTuple

from orthia.broker.core.selectors import values
from orthia.broker.core.selectors.lexer import Token
from orthia.broker.core.selectors.like import like
from orthia.broker.core.selectors.properties import BROKERS_OWN, MessageProperties, Value
from orthia.broker.core.selectors.refused import SelectorRefused

MAX_DEPTH: Final = 100
"""How deep parts of a selector may nest."""
_MAX_DIGITS: Final = 40
Evaluate = Callable[[MessageProperties], Value]
_ORDERS: Final = {
    ">": values.GREATER,
    ">=": values.GREATER_OR_EQUAL,
    "<": values.LESS,
    "<=": values.LESS_OR_EQUAL,
}


class Kind(Enum):
    """How a part of a selector may be used."""

    CONDITION = auto()
    NAME = auto()
    """Also a condition: a property may be true or false."""
    TEXT = auto()
    NUMBER = auto()


class Node(NamedTuple):
    """A part of a selector."""

    evaluate: Evaluate
    kind: Kind
    column: int
    depth: int = 0
    constant: Value = None
    operations: int = 1
    """How many operations it takes, its own included."""


class Build:
    """Makes nodes of the parser's rules, from the inside out; raises SelectorRefused."""

    def __init__(self, converts: values.Converts) -> None:
        self._converts = converts
        self._equal = values.comparison(values.EQUAL, converts)
        self._orders = {
            sign: values.comparison(compare, converts) for sign, compare in _ORDERS.items()
        }
        self._computes = {
            "+": values.sums(converts),
            "-": values.arithmetic(operator.sub, converts),
            "*": values.arithmetic(operator.mul, converts),
            "/": values.arithmetic(values.divide, converts),
            "%": values.arithmetic(values.remainder, converts),
        }

    def start(self, part: Node) -> Node:
        """Return the condition that selects messages."""
        return self._condition(part)

    # --- operands

    def name(self, parts: Sequence[Token]) -> Node:
        """Return the value of a property."""
        return _named(str(parts[0]), parts[0])

    def quoted_name(self, parts: Sequence[Token]) -> Node:
        """Return the value of a property whose name is in quotes."""
        return _named(parts[0][1:-1].replace('""', '"'), parts[0])

    def text(self, parts: Sequence[Token]) -> Node:
        """Return a text."""
        return _constant(_unquoted(parts[0]), Kind.TEXT, parts[0])

    def integer(self, parts: Sequence[Token]) -> Node:
        """Return an exact number: decimal, hexadecimal or, with a leading zero, octal."""
        token = parts[0]
        digits = token.lower().rstrip("l")
        base = 16 if digits.startswith("0x") else 8 if digits.startswith("0") else 10
        if len(digits) > _MAX_DIGITS:
            raise SelectorRefused(f"a number of {len(digits)} digits is too long", token.column)
        try:
            number = values.bounded(int(digits, base))
        except ValueError:
            problem = f"{token} has a leading zero and so is octal, which has the digits 0 to 7"
            raise SelectorRefused(problem, token.column) from None
        return _constant(number, Kind.NUMBER, token)

    def float_number(self, parts: Sequence[Token]) -> Node:
        """Return an approximate number."""
        return _constant(float(parts[0].rstrip("fFdD")), Kind.NUMBER, parts[0])

    def true(self, parts: Sequence[Token]) -> Node:
        """Return TRUE."""
        return Node(lambda _: True, Kind.CONDITION, parts[0].column)

    def false(self, parts: Sequence[Token]) -> Node:
        """Return FALSE."""
        return Node(lambda _: False, Kind.CONDITION, parts[0].column)

    def xpath(self, parts: Sequence[Token]) -> Node:
        """Refuse XPath and XQuery, which look into bodies."""
        raise SelectorRefused(f"{parts[0].upper()} is not supported", parts[0].column)

    # --- logic

    def disjunction(self, parts: Sequence[Node]) -> Node:
        """Return whether any is true; unknown if none is and one is unknown."""
        conditions = [self._condition(part).evaluate for part in parts]

        def evaluate(properties: MessageProperties) -> Value:
            answer: Value = False
            for condition in conditions:
                value = condition(properties)
                if value:
                    return True
                if value is None:
                    answer = None
            return answer

        return _node(evaluate, Kind.CONDITION, *parts)

    def conjunction(self, parts: Sequence[Node]) -> Node:
        """Return whether all are true; unknown if none is false and one is unknown."""
        conditions = [self._condition(part).evaluate for part in parts]

        def evaluate(properties: MessageProperties) -> Value:
            answer: Value = True
            for condition in conditions:
                value = condition(properties)
                if value is None:
                    answer = None
                elif not value:
                    return False
            return answer

        return _node(evaluate, Kind.CONDITION, *parts)

    def negation(self, parts: Sequence[Any]) -> Node:
        """Return whether a condition is false."""
        return _negated(self._condition(parts[1]))

    # --- comparisons

    def equal(self, parts: Sequence[Any]) -> Node:
        """Return whether two values are equal, or not."""
        left, sign, right = parts
        node = _node(self._equality(left, right), Kind.CONDITION, left, right)
        return node if sign == "=" else _negated(node)

    def _equality(self, left: Node, right: Node) -> Evaluate:
        first, compare = left.evaluate, self._equal
        if right.kind is Kind.TEXT:
            text = right.constant

            def is_text(properties: MessageProperties) -> Value:
                value = first(properties)
                if type(value) is str:
                    return value == text
                return compare(properties, value, text)

            return is_text
        return _with(compare, first, right)

    def order(self, parts: Sequence[Any]) -> Node:
        """Return whether two numbers are in a relation."""
        left, sign, right = parts
        return self._ordered(left, sign, right)

    def _ordered(self, left: Node, sign: str, right: Node) -> Node:
        for side in (left, right):
            if side.kind in (Kind.CONDITION, Kind.TEXT):
                problem = f"{sign} compares numbers, and this is none"
                raise SelectorRefused(problem, side.column)
        compare, first = self._orders[sign], left.evaluate
        return _node(_with(compare, first, right), Kind.CONDITION, left, right)

    def between(self, parts: Sequence[Any]) -> Node:
        """Return whether a number is between two others, or one of them."""
        left, negated, low, high = parts
        if negated:
            both = [self._ordered(left, "<", low), self._ordered(left, ">", high)]
            return self.disjunction(both)
        return self.conjunction([self._ordered(left, ">=", low), self._ordered(left, "<=", high)])

    def like(self, parts: Sequence[Any]) -> Node:
        """Return whether a text is like a pattern; a value of another kind is not."""
        left, negated, pattern, escape = parts
        _refuse_condition(left, "LIKE")
        character = None if escape is None else _unquoted(escape)
        if character is not None and len(character) != 1:
            raise SelectorRefused("ESCAPE takes one character", escape.column)
        first, is_like = left.evaluate, like(_unquoted(pattern), character)

        def evaluate(properties: MessageProperties) -> Value:
            value = first(properties)
            if value is None:
                return None
            if not isinstance(value, str):
                return False
            return is_like(value) if properties.may_search(len(value)) else None

        node = _node(evaluate, Kind.CONDITION, left)
        return _negated(node) if negated else node

    def in_list(self, parts: Sequence[Any]) -> Node:
        """Return whether a text is one of several; unknown for other kinds."""
        left, negated, *texts = parts
        if left.kind is not Kind.NAME:
            raise SelectorRefused("IN takes the name of a property on its left", left.column)
        first, wanted, when_in = left.evaluate, frozenset(map(_unquoted, texts)), not negated

        def evaluate(properties: MessageProperties) -> Value:
            value = first(properties)
            return (value in wanted) is when_in if isinstance(value, str) else None

        return _node(evaluate, Kind.CONDITION, left)

    def is_null(self, parts: Sequence[Node]) -> Node:
        """Return whether a value is unknown."""
        first = parts[0].evaluate
        return _node(lambda properties: first(properties) is None, Kind.CONDITION, *parts)

    def is_not_null(self, parts: Sequence[Any]) -> Node:
        """Return whether a value is known."""
        first = parts[0].evaluate
        return _node(lambda properties: first(properties) is not None, Kind.CONDITION, parts[0])

    # --- arithmetic

    def sum(self, parts: Sequence[Any]) -> Node:
        """Return the sum of terms, from the left."""
        return self._computed(parts)

    def product(self, parts: Sequence[Any]) -> Node:
        """Return what factors make, from the left."""
        return self._computed(parts)

    def _computed(self, parts: Sequence[Any]) -> Node:
        operands: Sequence[Node] = parts[::2]
        for operand in operands:
            _refuse_condition(operand, parts[1])
        first = operands[0].evaluate
        rest = [
            (self._computes[sign], operand.evaluate)
            for sign, operand in zip(parts[1::2], operands[1:], strict=True)
        ]

        def evaluate(properties: MessageProperties) -> Value:
            value = first(properties)
            for compute, operand in rest:
                value = compute(properties, value, operand(properties))
                if isinstance(value, str) and not properties.may_search(len(value)):
                    return None
            return value

        return _node(evaluate, Kind.NUMBER, *operands)

    def sign(self, parts: Sequence[Any]) -> Node:
        """Return a number, or the negative of it."""
        sign, operand = parts
        _refuse_condition(operand, sign)
        compute, first = self._computes[sign], operand.evaluate

        def evaluate(properties: MessageProperties) -> Value:
            return compute(properties, 0, first(properties))

        return _node(evaluate, Kind.NUMBER, operand)

    def _condition(self, node: Node) -> Node:
        """Return a node as a condition; raises SelectorRefused if it is none."""
        if node.kind is Kind.CONDITION:
            return node
        if node.kind is not Kind.NAME:
            raise SelectorRefused("a condition is expected, and this is a value", node.column)
        first, converts = node.evaluate, self._converts

        def evaluate(properties: MessageProperties) -> Value:
            value = first(properties)
            if isinstance(value, str) and converts(properties):
                value = values.truth(value)
                return False if value is None else value
            return value if value is None or isinstance(value, bool) else False

        return node._replace(evaluate=evaluate, kind=Kind.CONDITION)


def _node(evaluate: Evaluate, kind: Kind, *parts: Node) -> Node:
    depth = 1 + max(part.depth for part in parts)
    if depth > MAX_DEPTH:
        problem = f"more than {MAX_DEPTH} parts are within one another"
        raise SelectorRefused(problem, parts[0].column)
    operations = 1 + sum([part.operations for part in parts])
    return Node(evaluate, kind, parts[0].column, depth, operations=operations)


def _constant(value: Value, kind: Kind, token: Token) -> Node:
    return Node(lambda _: value, kind, token.column, constant=value)


def _named(name: str, token: Token) -> Node:
    return Node(BROKERS_OWN.get(name) or _property(name), Kind.NAME, token.column)


@lru_cache(maxsize=1_024)  # most selectors name few properties
def _property(name: str) -> Evaluate:
    return lambda properties: properties.get(name)


def _with(compute: values.Compute, first: Evaluate, right: Node) -> Evaluate:
    """Return a function of two operands; of a constant only its value is kept."""
    value, second = right.constant, right.evaluate
    if value is not None:
        return lambda properties: compute(properties, first(properties), value)
    return lambda properties: compute(properties, first(properties), second(properties))


def _negated(node: Node) -> Node:
    condition = node.evaluate

    def evaluate(properties: MessageProperties) -> Value:
        value = condition(properties)
        return None if value is None else not value

    return _node(evaluate, Kind.CONDITION, node)


def _refuse_condition(node: Node, sign: str) -> None:
    if node.kind is Kind.CONDITION:
        raise SelectorRefused(f"{sign} takes values, and this is a condition", node.column)


def _unquoted(token: Token) -> str:
    return token[1:-1].replace("''", "'")
