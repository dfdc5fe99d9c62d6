"""Names an operator chooses that end up in SQL: table names, the one thing SQL cannot bind."""

import re
from typing import Final

from orthia.config.errors import ConfigurationError

MAXIMUM_TABLE_NAME_LENGTH: Final = 48
"""The room left below MAXIMUM_IDENTIFIER_LENGTH is for the suffixes of our tables and indexes."""

MAXIMUM_IDENTIFIER_LENGTH: Final = 63
"""PostgreSQL cuts identifiers there."""

_TABLE_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def validate_table_name(name: str, maximum_length: int = MAXIMUM_TABLE_NAME_LENGTH) -> str:
    """Return ``name`` if it can be a table's on every DBMS, else raise ConfigurationError."""
    if not _TABLE_NAME.fullmatch(name):
        raise ConfigurationError(
            f"{name!r} is not a table name; expected letters, digits and underscores,"
            " starting with a letter or underscore"
        )
    if len(name) > maximum_length:
        raise ConfigurationError(
            f"the table name {name!r} has {len(name)} characters; expected at most {maximum_length}"
        )
    return name
