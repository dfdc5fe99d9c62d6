"""An audit of a file journal finds what is wrong with its records and with its bodies' files."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from orthia.config.address_settings import RoutingType
from orthia.journal import MessageJournal, QueueBinding, Unit, encode_message
from orthia.journal.engine.abc import PIECE_BYTES
from orthia.journal.model.message import LargeBody
from orthia.pipeline.jobs import audit
from orthia.pipeline.sources.file_journal import FileReference
from orthia.pipeline.sources.inputs import FileInputs
from tests.journal.large_support import DATA, bodies_of, upload
from tests.journal.support import FileJournalStore, record
from tests.pipeline.faults import Expected, flipped

pytestmark = pytest.mark.extended

ORDERS, AUDIT = 7, 8


def _send(
    store: FileJournalStore, journal: MessageJournal, *queues: int, body: LargeBody | None = None
) -> int:
    unit = Unit()
    unit.add_message(queues, encode_message(record("x" * 40)._replace(large=body)))
    first, *_ = journal.append_unit(unit)
    store.settle(journal)
    if body is not None:
        bodies_of(journal).unpin(body.id)
    return first.seq


def _found(spark: SparkSession, store: FileJournalStore) -> tuple[Expected, list[int]]:
    one = audit.examined(FileInputs(spark, FileReference.of(store.settings)))
    found = {
        (each.fault, each.table, each.id if each.seq is None else each.seq, each.position)
        for each in one.listed
    }
    return found, [body["id"] for body in one.unneeded]


def test_what_is_wrong_with_files_is_found(spark: SparkSession, tmp_path: Path) -> None:
    """And nothing is in what two nodes wrote, one of them with an upload under way."""
    store = FileJournalStore(tmp_path)
    store.advance_fence(1)
    journal = store.open(1)
    for queue_id, name in ((ORDERS, "one"), (AUDIT, "two")):
        journal.add_binding(QueueBinding(queue_id, name, "orders", RoutingType.MULTICAST))
    messages = [_send(store, journal, ORDERS) for _ in range(6)]
    shared = _send(store, journal, ORDERS, AUDIT)
    large = []
    for number in range(7):
        body = upload(store, journal, bytes([number]) + DATA[1:])
        large.append((_send(store, journal, ORDERS, body=body), body))
    journal.close(drain=True)
    store.advance_fence(2)
    journal = store.open(2)
    for _ in range(4):
        _send(store, journal, ORDERS)
    under_way = upload(store, journal)
    journal.close(drain=True)
    assert _found(spark, store) == (set(), [under_way.id])

    directory = store.settings.large_messages_directory

    def file(body: LargeBody) -> Path:
        return directory / f"{body.id}.msg"

    expected: Expected = set()
    seq, body = large.pop()
    file(body).unlink()
    expected.add(("large-body-missing", "large", seq, None))
    seq, body = large.pop()
    file(body).write_bytes(file(body).read_bytes()[: PIECE_BYTES + 5])
    expected |= {("large-piece-size", "large", seq, 1), ("large-piece-missing", "large", seq, 2)}
    seq, body = large.pop()
    file(body).write_bytes(file(body).read_bytes() + b"more")
    expected.add(("large-piece-size", "large", seq, 2))
    seq, body = large.pop()
    file(body).write_bytes(flipped(file(body).read_bytes(), 300_000))
    expected.add(("large-body-corrupt", "large", seq, None))
    (seq, body), (other_seq, other) = large.pop(), large.pop()
    one, two = file(body).read_bytes(), file(other).read_bytes()
    file(body).write_bytes(two)
    file(other).write_bytes(one)
    expected |= {("large-body-corrupt", "large", found, None) for found in (seq, other_seq)}
    (directory / "3.msg").write_bytes(b"left over")
    expected.add(("large-body-orphaned", "large", 3, None))
    for spoiled in (messages[2], shared):
        _spoil(store, spoiled)
        expected.add(("corrupt-record", "messages", spoiled, None))
    assert _found(spark, store) == (expected, [under_way.id])
    store.close()


def _spoil(store: FileJournalStore, seq: int) -> None:
    """Change a byte of what a record holds; what was stored after it is whole."""
    from orthia.journal.file.inspect import inspect

    contents = inspect(store.settings)
    store._spoil(contents.message_files, contents.messages.find(seq), b"spoiled")
