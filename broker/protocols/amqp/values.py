"""AMQP's values that Python has no type of their own for.

Each is a Python value that also says its AMQP type, so that what was decoded is encoded as it was.
In an apart module: mypyc compiles no class that derives from ``str`` or ``int``.
"""

from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

from orthia.config.errors import OrthiaError


class AmqpError(OrthiaError):
    """What this package raises, for bytes and for values."""


class AmqpDecodeError(AmqpError, ValueError):
    """Bytes are not AMQP 1.0, or more than may be."""

    def __init__(self, at: int, expected: str) -> None:
        super().__init__(f"at byte {at}: expected {expected}")
        self.at = at
        """Where, in bytes from the beginning of what was decoded."""
        self.expected = expected


class AmqpCutOffError(AmqpDecodeError):
    """Bytes end before what they begin does."""

    def __init__(self, at: int) -> None:
        super().__init__(at, "more bytes: what begins before is cut off here")


class AmqpFramingError(AmqpDecodeError):
    """What should be a frame is none, or is longer than may be."""


class AmqpEncodeError(AmqpError):
    """A value has no AMQP type, or is out of the range of its type."""


class Symbol(str):
    """A name in ASCII, of a protocol: of a capability, an annotation, an error."""

    __slots__ = ()


class Char(str):
    """One character."""

    __slots__ = ()


class UByte(int):
    """8 bits, without a sign."""

    __slots__ = ()


class UShort(int):
    """16 bits, without a sign."""

    __slots__ = ()


class UInt(int):
    """32 bits, without a sign."""

    __slots__ = ()


class ULong(int):
    """64 bits, without a sign."""

    __slots__ = ()


class Byte(int):
    """8 bits."""

    __slots__ = ()


class Short(int):
    """16 bits."""

    __slots__ = ()


class Int(int):
    """32 bits. A plain ``int`` is a long, of 64."""

    __slots__ = ()


class Timestamp(int):
    """Milliseconds since 1970 UTC, 64 bits."""

    __slots__ = ()


class Float(float):
    """32 bits. A plain ``float`` is a double, of 64."""

    __slots__ = ()


class Decimal(NamedTuple):
    """A decimal of IEEE 754, which nobody here computes with: its 4, 8 or 16 bytes."""

    raw: bytes


class Described(NamedTuple):
    """A value with a descriptor that says what it is of."""

    descriptor: Any
    """A ``ULong`` or a ``Symbol``, of all that are defined."""
    value: Any


class Array(NamedTuple):
    """Values of one type."""

    code: int
    """The format code of each, as it came: of an empty array it says the type."""
    values: tuple[Any, ...]
    descriptor: Any = None
    """That of each value, if they are described; None if not."""


def plain_int(value: int) -> int:
    """Return a number without the AMQP type that it says, which compiled ``int`` leaves it."""
    return int(value)


def plain_float(value: float) -> float:
    """Return a number as ``plain_int`` does."""
    return float(value)


def plain_text(value: str) -> str:
    """Return a text as ``plain_int`` does a number."""
    return str(value)


Value: TypeAlias = (
    bool
    | int
    | float
    | str
    | bytes
    | UUID
    | list[Any]
    | dict[Any, Any]
    | Decimal
    | Described
    | Array
    | None
)
"""Whatever AMQP can say: an ``int`` is a long, a ``float`` a double, ``bytes`` a binary."""
