"""How a table's configured name is spelt in each DBMS."""

from orthia.config.dialects import Dialect
from orthia.config.names import MAXIMUM_IDENTIFIER_LENGTH, validate_table_name


def fold_table_name(dialect: Dialect, name: str) -> str:
    """Return the name under which the table of this configured name exists, or what belongs to it.

    PostgreSQL folds unquoted names to lower case and Artemis' provider for it creates tables so;
    the other DBMS keep the configured spelling. Raises ConfigurationError on an invalid name.
    """
    validate_table_name(name, MAXIMUM_IDENTIFIER_LENGTH)
    return name.lower() if dialect is Dialect.POSTGRESQL else name
