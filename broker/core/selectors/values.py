"""Numbers, comparisons and arithmetic of selectors; with None, unknown, the result is unknown.

In some protocols all properties are texts. If a selector *converts* those of a message, a text
beside a number is read as a number, and a text beside TRUE or FALSE as one of those; if it is
neither, the two values are not comparable.
"""

import math
import operator
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from orthia.broker.core.selectors.properties import MessageProperties, Value

_NUMBER: Final = re.compile(r"[+-]?+(?=\.?\d)\d{0,308}+(?:\.\d{0,308}+)?+(?:[eE][+-]?+\d{1,4}+)?+")
"""Without backtracking: the time is in proportion to the length."""
_LARGEST: Final = 2**63
_LONGEST: Final = 1_024
"""The longest text that is read as a number or a truth value."""
_TRUTHS: Final = {"true": True, "false": False}
Relation = Callable[[Any, Any], bool]
Compare = Callable[[MessageProperties, Value, Value], bool | None]
Compute = Callable[[MessageProperties, Value, Value], Value]
Converts = Callable[[MessageProperties], bool]
"""Whether texts of a message are converted: asked only where one stands beside something else."""


def always(_: MessageProperties) -> bool:
    """Convert the texts of every message."""
    return True


def never(_: MessageProperties) -> bool:
    """Convert no texts."""
    return False


def if_untyped(properties: MessageProperties) -> bool:
    """Convert the texts of a message that can have nothing else."""
    return not properties.are_typed


def number(text: str) -> int | float | None:
    """Return a text as a number; None if it is none."""
    return None if len(text) > _LONGEST else _number(text)


@lru_cache(maxsize=256)  # a selector may read one property a thousand times
def _number(text: str) -> int | float | None:
    text = text.strip()
    if _NUMBER.fullmatch(text) is None:
        return None
    return float(text) if not text.lstrip("+-").isdecimal() else bounded(int(text))


def truth(text: str) -> bool | None:
    """Return a text as true or false; None if it is neither."""
    if len(text) > _LONGEST:
        return None
    return _TRUTHS.get(text.strip().lower())


def bounded(value: float) -> int | float:
    """Return an integer of more than 64 bits as a float, so that results stay small."""
    return float(value) if isinstance(value, int) and not -_LARGEST <= value < _LARGEST else value


def is_number(value: Value) -> bool:
    """Return whether a value is a number; TRUE and FALSE are none."""
    return type(value) is int or type(value) is float


def comparison(compare: Relation, converts: Converts) -> Compare:
    """Return a function that compares two values; values of different kinds are not equal."""

    def compared(properties: MessageProperties, left: Value, right: Value) -> bool | None:
        if left is None or right is None:
            return None
        if type(left) is not type(right) and not (is_number(left) and is_number(right)):
            if not converts(properties):
                return False
            left, right = _alike(left, right)
            if left is None or right is None:
                return False
        return compare(left, right)

    return compared


def _alike(left: Value, right: Value) -> tuple[Value, Value]:
    """Convert two values of different kinds to one kind; None for what cannot be converted."""
    if isinstance(left, str):
        return _read_as(right, left), right
    if isinstance(right, str):
        return left, _read_as(left, right)
    return None, None  # a number and a truth value


def _read_as(model: Value, text: str) -> Value:
    return truth(text) if isinstance(model, bool) else number(text)


EQUAL: Final[Relation] = operator.eq
GREATER: Final[Relation] = operator.gt
GREATER_OR_EQUAL: Final[Relation] = operator.ge
LESS: Final[Relation] = operator.lt
LESS_OR_EQUAL: Final[Relation] = operator.le


def arithmetic(compute: Callable[[float, float], float], converts: Converts) -> Compute:
    """Return a function that computes with two values; unknown if they are no numbers."""

    def operand(properties: MessageProperties, value: Value) -> int | float | None:
        if isinstance(value, bool) or value is None:
            return None
        if isinstance(value, str):
            return number(value) if converts(properties) else None
        return value

    def computed(properties: MessageProperties, left: Value, right: Value) -> Value:
        first, second = operand(properties, left), operand(properties, right)
        if first is None or second is None:
            return None
        return bounded(compute(first, second))

    return computed


def sums(converts: Converts) -> Compute:
    """Return a function that adds two values, or appends to a text that is no number."""
    add = arithmetic(operator.add, converts)

    def added(properties: MessageProperties, left: Value, right: Value) -> Value:
        if isinstance(left, str) and right is not None:
            is_sum = is_number(right) and converts(properties) and number(left) is not None
            return add(properties, left, right) if is_sum else left + shown(right)
        return add(properties, left, right)

    return added


def shown(value: Value) -> str:
    """Return a value as a text."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def divide(dividend: float, divisor: float) -> float:
    """Divide as Java's doubles do: by zero the result is infinite, or NaN."""
    if divisor:
        return dividend / divisor
    if not dividend or math.isnan(dividend):
        return math.nan
    return math.copysign(math.inf, dividend) * math.copysign(1, divisor)


def remainder(dividend: float, divisor: float) -> float:
    """Return the remainder as Java does, with the sign of the dividend."""
    if not divisor or math.isinf(dividend):
        return math.nan
    return math.fmod(dividend, divisor)
