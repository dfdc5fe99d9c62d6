"""A takeover of very many queues, most of them idle."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from sqlalchemy import MetaData, Table, insert

from orthia.config.address_settings import RoutingType
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database
from orthia.journal import Message, QueueBinding, encode_message
from orthia.journal.model.records import RecordType, UserRecordType
from orthia.journal.model.unit import binding_row
from orthia.journal.sql.tables import bindings_table, messages_table
from tests.process.clients import Producer, receive_all
from tests.process.nodes import cluster
from tests.support.schema import make_tables
from tests.support.servers import url_with_password

pytestmark = pytest.mark.extended

QUEUES = 50_000
_ROWS_AT_ONCE = 5_000


def store(database: Database, table: Table, rows: Iterable[dict[str, object]]) -> None:
    """Insert rows as an earlier node left them."""
    left = list(rows)
    with database.engine.begin() as connection:
        while left:
            connection.execute(insert(table), left[:_ROWS_AT_ONCE])
            del left[:_ROWS_AT_ONCE]


def leave_queues(database: Database, settings: DatabaseStoreSettings) -> None:
    """Make the tables, with QUEUES queues; the first half are idle, each other has a message."""
    make_tables(database, settings)
    dialect = database.dialect
    bindings = bindings_table(MetaData(), settings.bindings_table_name, dialect)
    messages = messages_table(MetaData(), settings.message_table_name, dialect)
    common = {"record_type": int(RecordType.ADD_RECORD), "epoch": 0}
    ids = range(1, QUEUES + 1)
    rows = (
        binding_row(QueueBinding(one, f"queue.{one}", f"queue.{one}", RoutingType.ANYCAST))
        for one in ids
    )
    store(
        database,
        bindings,
        (
            {
                **common,
                "seq": row.seq,
                "id": row.id,
                "user_record_type": int(row.user_record_type),
                "record": row.record,
            }
            for row in rows
        ),
    )
    store(
        database,
        messages,
        (
            {
                **common,
                "seq": QUEUES + one,
                "id": QUEUES + one,
                "user_record_type": int(UserRecordType.ADD_MESSAGE),
                "queue_id": one,
                "record": encode_message(
                    Message(f"queue.{one}", b"", f"message {one}".encode(), 0, 0, 4)
                ),
            }
            for one in ids[QUEUES // 2 :]
        ),
    )


@pytest.mark.parametrize("server", ["postgresql"], indirect=True)
def test_a_backup_takes_over_with_as_many_queues_as_there_may_be(
    store_settings: DatabaseStoreSettings, database: Database, tmp_path: Path
) -> None:
    """Whether they have messages or none: it serves, and each keeps what it had."""
    leave_queues(database, store_settings)
    with cluster(url_with_password(store_settings), tmp_path) as nodes:
        live, backup = nodes.pair()
        live.kill()
        backup.wait_serving()
        receive_all(backup.port, f"/queue/queue.{QUEUES}", {QUEUES})
        idle = "/queue/queue.1"
        with Producer([backup.port], idle) as producer:
            producer.wait_receipts(5)
            sent = producer.finish()
        receive_all(backup.port, idle, sent)
        assert backup.terminate() == 0
