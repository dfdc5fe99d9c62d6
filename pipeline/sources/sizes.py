"""How large a store is: exactly if it is small, else as far as its database keeps count."""

import logging
from pathlib import Path
from typing import Final, NamedTuple

from sqlalchemy import Connection, MetaData, Table, func, select, text

from orthia.config.dialects import Dialect
from orthia.config.errors import OrthiaError
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database, translate_errors
from orthia.journal.sql.tables import (
    bindings_table,
    history_table,
    large_messages_table,
    messages_table,
)
from orthia.nodemanager.tables import failover_log
from orthia.pipeline.sources.file_journal import FileReference

LOGGER: Final = logging.getLogger("orthia.pipeline")
SMALL_ROWS: Final = 50_000
"""So many rows of a table are worth one task, and no more."""
_FEW_ROWS: Final = 20_000
_SMALL_PIECES: Final = 500
_SMALL_BYTES: Final = 64 * 1024 * 1024
_ESTIMATES: Final = {
    Dialect.POSTGRESQL: "SELECT reltuples FROM pg_class WHERE oid = to_regclass(:name)",
    Dialect.MYSQL: "SELECT table_rows FROM information_schema.tables"
    " WHERE table_schema = DATABASE() AND table_name = :name",
}
"""What a database keeps count of anyway."""


class Size(NamedTuple):
    """The size of a store's messages and history."""

    is_small: bool
    """Whether each of its tables is worth one task."""
    messages: int | None = None
    history: int | None = None
    """The rows of each, about; None where nobody keeps count."""
    has_few_others: bool = False
    """Whether bindings and failover log, too, are some thousand rows at most."""


UNKNOWN: Final = Size(is_small=False)


def size_of_store(database: Database, settings: DatabaseStoreSettings) -> Size:
    """Return the size of a store; what cannot be read there counts as large."""
    metadata, dialect = MetaData(), database.dialect
    messages = messages_table(metadata, settings.message_table_name, dialect)
    history = history_table(metadata, settings.message_history_table_name, dialect)
    pieces = large_messages_table(metadata, settings.large_message_table_name, dialect)
    bindings = bindings_table(metadata, settings.bindings_table_name, dialect)
    events = failover_log(metadata, settings.failover_log_table_name, dialect)
    try:
        with translate_errors("count the rows"), database.engine.connect() as connection:
            waiting, left, parts = (
                _up_to(connection, table, bound + 1)
                for table, bound in (
                    (messages, SMALL_ROWS),
                    (history, SMALL_ROWS),
                    (pieces, _SMALL_PIECES),
                )
            )
            is_small = max(waiting, left) <= SMALL_ROWS and parts <= _SMALL_PIECES
            if waiting > SMALL_ROWS:
                waiting = _estimated(connection, messages, dialect)
            if left > SMALL_ROWS:
                left = _estimated(connection, history, dialect)
            size = Size(is_small, waiting or None, left or None)
    except OrthiaError as error:
        # A job may need fewer rights than this.
        LOGGER.info("the size of %s is not known: %s", settings.jdbc_connection_url, error)
        return UNKNOWN
    try:
        with translate_errors("count the rows"), database.engine.connect() as connection:
            others = [_up_to(connection, table, _FEW_ROWS + 1) for table in (bindings, events)]
    except OrthiaError:
        return size
    return size._replace(has_few_others=max(others) <= _FEW_ROWS)


def _up_to(connection: Connection, table: Table, bound: int) -> int:
    some = select(table.c.id).limit(bound).subquery()
    return int(connection.execute(select(func.count()).select_from(some)).scalar_one())


def _estimated(connection: Connection, table: Table, dialect: Dialect) -> int:
    statement = _ESTIMATES.get(dialect)
    if statement is None:
        return 0
    found = connection.execute(text(statement), {"name": table.name}).scalar()
    return max(0, int(found or 0))


def size_of_files(journal: FileReference) -> Size:
    """Return the size of a file journal."""
    directories = (journal.directory, journal.large_messages_directory)
    files = (path for one in directories for path in Path(one).glob("*"))
    is_small = sum(path.stat().st_size for path in files if path.is_file()) <= _SMALL_BYTES
    return Size(is_small, has_few_others=is_small)
