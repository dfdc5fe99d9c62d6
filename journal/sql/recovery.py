"""Recovery: reads the journal's bindings, and reserves ids in one fenced transaction.

It reads bindings and counters, never messages: the cost of a takeover does not depend on the
backlog.
"""

from sqlalchemy import Engine, MetaData, func, insert, select, update

from orthia.config.dialects import Dialect
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import StoreError, translate_errors, write_transaction
from orthia.journal.engine.abc import Recovered
from orthia.journal.model.codec import decode_binding
from orthia.journal.model.records import ID_COUNTER_SEQ, RecordType, UserRecordType
from orthia.journal.sql.fence import prove_fence
from orthia.journal.sql.tables import bindings_table, messages_table


def recover(
    engine: Engine, s: DatabaseStoreSettings, dialect: Dialect, *, token: int, id_block: int
) -> Recovered:
    """Read the bindings and reserve ``id_block`` ids above every id ever given out.

    Raises Fenced if ``token`` is not the newest, StoreError, and CorruptRecord for a binding that
    cannot be read: without it a queue and its messages would be missing, so an operator must
    decide.
    """
    metadata = MetaData()
    messages = messages_table(metadata, s.message_table_name, dialect)
    bindings = bindings_table(metadata, s.bindings_table_name, dialect)
    # Without a transaction: the server could end it while very many bindings are fetched. No node
    # writes meanwhile, since the fence was advanced to ``token``; if it moves on, the proof fails.
    try:
        with translate_errors("read the bindings"), engine.connect() as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT")
            stored = connection.execute(select(bindings).order_by(bindings.c.seq)).all()
            highest = connection.execute(select(func.max(messages.c.seq))).scalar_one() or 0
    except StoreError:
        # A connection that is lost as it returns to transactions never comes back to its pool,
        # which has room for no other.
        engine.dispose()
        raise
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
