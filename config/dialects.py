"""The databases Orthia speaks to."""

from enum import Enum


class Dialect(Enum):
    """A DBMS, as far as SQL differs between them; MariaDB is MYSQL."""

    POSTGRESQL = "postgresql"
    MYSQL = "mysql"
    SQLITE = "sqlite"
