"""What a whole export says of its tables, so that it can be brought back: a part of its manifest.

An export of some messages only has none.
"""

import operator
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self


@dataclass(frozen=True)
class TableDigest:
    """The rows of a table: how many, and what depends on every bit of them in any order."""

    rows: int = 0
    sum: str = "0"
    xor: int = 0


@dataclass(frozen=True)
class Contents:
    """What an export holds."""

    beside_a_node: bool = True
    """Whether a node may have served while it was written: then it is of no one instant."""
    tables: dict[str, TableDigest] = field(default_factory=dict)
    left: list[int] = field(default_factory=list)
    """Large messages (``seq``) without their body, which left their queue meanwhile."""
    damaged: list[int] = field(default_factory=list)
    """Large messages without their body that are still there."""

    def to_fields(self) -> dict[str, Any]:
        """Return what ``from_fields`` reads."""
        return asdict(self)

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Self:
        """Read what a manifest has; what a later version may have added is left out.

        Raises ValueError for what no export writes.
        """
        found = cls(**{name: fields[name] for name in cls.__dataclass_fields__ if name in fields})
        try:
            tables = {name: TableDigest(**one) for name, one in fields["tables"].items()}
            for seq in (*found.left, *found.damaged):
                operator.index(seq)
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"contents: {error}") from error
        return replace(found, tables=tables)
