"""The part of a manifest that describes the tables of a whole export, for an import.

A partial export has none.
"""

import operator
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self


@dataclass(frozen=True)
class TableDigest:
    """The number of a table's rows, and checksums of all their bits, whatever their order."""

    rows: int = 0
    sum: str = "0"
    xor: int = 0


@dataclass(frozen=True)
class Contents:
    """The contents of an export."""

    beside_a_node: bool = True
    """Whether a node may have served during the export, which then shows no single instant."""
    tables: dict[str, TableDigest] = field(default_factory=dict)
    left: list[int] = field(default_factory=list)
    """Large messages (``seq``) without their body, which left their queue during the export."""
    damaged: list[int] = field(default_factory=list)
    """Large messages without their body that are still stored."""

    def to_fields(self) -> dict[str, Any]:
        """Return the fields that ``from_fields`` reads."""
        return asdict(self)

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Self:
        """Read a manifest's fields, ignoring those of a later version.

        Raises ValueError for fields that no export writes.
        """
        found = cls(**{name: fields[name] for name in cls.__dataclass_fields__ if name in fields})
        try:
            tables = {name: TableDigest(**one) for name, one in fields["tables"].items()}
            for seq in (*found.left, *found.damaged):
                operator.index(seq)
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"contents: {error}") from error
        return replace(found, tables=tables)
