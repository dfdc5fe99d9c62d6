"""Opening the journal: reading what there is, and one fenced transaction that reserves ids.

It reads bindings and counters, never messages: a takeover costs the same however much waits.
"""

from dataclasses import dataclass

from sqlalchemy import Connection, Engine, MetaData, func, insert, select, text, update
from sqlalchemy import column as sql_column
from sqlalchemy import table as sql_table

from orthia.config.dialects import Dialect
from orthia.config.settings import DatabaseStoreSettings
from orthia.database import fold_table_name, for_share, translate_errors, write_transaction
from orthia.journal.codec import decode_binding
from orthia.journal.errors import Fenced
from orthia.journal.records import FENCE_ROW_ID, ID_COUNTER_SEQ, RecordType, UserRecordType
from orthia.journal.tables import bindings_table, messages_table
from orthia.journal.unit import Binding


@dataclass(frozen=True)
class Recovered:
    """What was found when the journal was opened."""

    bindings: list[Binding]
    horizon: int
    """The highest id that may ever have been given out."""


def recover(
    engine: Engine, s: DatabaseStoreSettings, dialect: Dialect, *, token: int, id_block: int
) -> Recovered:
    """Read the bindings and reserve ``id_block`` ids above every id ever given out.

    Raises Fenced if ``token`` is not the newest, StoreError, and CorruptRecord for a binding that
    cannot be read: without it a queue and its messages would be missing, so a person must look.
    """
    metadata = MetaData()
    messages = messages_table(metadata, s.message_table_name, dialect)
    bindings = bindings_table(metadata, s.bindings_table_name, dialect)
    # In no transaction: the session's would be ended while very many bindings are fetched. Nobody
    # writes meanwhile, for the fence was advanced to ``token``; if it moves on, the proof fails.
    with translate_errors("read the bindings"), engine.connect() as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT")
        stored = connection.execute(select(bindings).order_by(bindings.c.seq)).all()
        highest = connection.execute(select(func.max(messages.c.seq))).scalar_one() or 0
    horizon = max(highest, *(max(row.seq, row.id) for row in stored), 0)
    limit = {"id": horizon + id_block, "epoch": token}
    counter = bindings.c.seq == ID_COUNTER_SEQ
    with write_transaction(engine, "open the journal") as connection:
        prove_fence(connection, s, dialect, token)
        if connection.execute(update(bindings).where(counter).values(limit)).rowcount == 0:
            connection.execute(insert(bindings).values(limit | _COUNTER_ROW))
    return Recovered(
        [
            decode_binding(row.user_record_type, bytes(row.record), row.seq)
            for row in stored
            if row.seq != ID_COUNTER_SEQ
        ],
        horizon,
    )


_COUNTER_ROW = {
    "seq": ID_COUNTER_SEQ,
    "record_type": int(RecordType.ADD_RECORD),
    "user_record_type": int(UserRecordType.ID_COUNTER),
    "record": b"",
}


def prove_fence(
    connection: Connection, s: DatabaseStoreSettings, dialect: Dialect, token: int
) -> None:
    """Lock the fence against a successor until the transaction ends; raises Fenced."""
    store = sql_table(
        fold_table_name(dialect, s.node_manager_store_table_name),
        sql_column("id"),
        sql_column("holder_token"),
    )
    newest = select(text("1")).where(store.c.id == FENCE_ROW_ID, store.c.holder_token == token)
    if connection.execute(for_share(newest.select_from(store), dialect)).first() is None:
        raise Fenced(token)
