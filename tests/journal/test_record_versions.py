"""Journals of every version of records, and what keeps a node from passing messages over."""

import json
import zlib
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert

from orthia.config.address_settings import RoutingType
from orthia.journal import (
    CorruptRecord,
    Message,
    MessageJournal,
    QueueBinding,
    Unit,
    decode_message,
    encode_message,
)
from orthia.journal.model.changes import Row
from orthia.journal.model.codec import (
    AddressBinding,
    PreparedTransaction,
    RecordVersion,
    decode_binding,
    encode_record_version,
)
from orthia.journal.model.encodings import FIRST_ENCODING, NO_HEAD, SECOND_ENCODING
from orthia.journal.model.fields import Fields, encode_fields
from orthia.journal.model.integrity import CheckedBinding, RowKeys, check_binding, check_message
from orthia.journal.model.message import LargeBody, record_version
from orthia.journal.model.records import RecordType, UserRecordType
from orthia.journal.model.xid import Xid
from orthia.journal.xa import XaTransactions
from tests.journal.support import (
    QUEUE,
    JournalStore,
    MemoryJournalStore,
    SqlJournalStore,
    record,
)

_OLDER = sorted((Path(__file__).parent / "older").glob("*.json"))
SECOND = record("second")._replace(encoding=SECOND_ENCODING, head=b"\0\x53\x75\xa0\x06")
NEUTRAL = record("neutral")._replace(
    encoding=NO_HEAD, head=b"", stated=encode_fields(Fields(group="g"))
)


def _fill(store: JournalStore, document: dict[str, Any]) -> None:
    """Put the rows of a fixture into a store, as they were."""
    rows = {
        table: [one | {"record": bytes.fromhex(one["record"])} for one in document[table]]
        for table in ("messages", "bindings")
    }
    if isinstance(store, SqlJournalStore):
        added = {"record_type": int(RecordType.ADD_RECORD)}
        with store.database.engine.begin() as connection:
            connection.execute(insert(store.messages), [one | added for one in rows["messages"]])
            connection.execute(insert(store.bindings), [one | added for one in rows["bindings"]])
        return
    made: dict[str, list[tuple[Row, int]]] = {
        table: [
            (Row(**{name: one[name] for name in Row._fields}), one["epoch"]) for one in rows[table]
        ]
        for table in rows
    }
    if isinstance(store, MemoryJournalStore):
        store.store.messages = {row.seq: (row, epoch) for row, epoch in made["messages"]}
        store.store.bindings = {row.seq: row for row, _ in made["bindings"]}
        return
    unit = Unit()
    unit.rows = [row for row, _ in made["messages"]]
    unit.binding_rows = [row for row, _ in made["bindings"]]
    unit.id_limit = max(row.seq for row in (*unit.rows, *unit.binding_rows))
    journal = store.open()
    journal.append_unit(unit)
    store.settle(journal)
    journal.close(drain=True)


def _said(document: dict[str, Any], queue: int) -> list[Message]:
    """Return the messages a fixture says a queue has."""
    said = document["said"]
    return [
        Message(
            one["address"],
            bytes.fromhex(one["head"]),
            bytes.fromhex(one["body"]),
            said["timestamp"],
            one.get("expires", 0),
            4,
            LargeBody(*one["large"]) if "large" in one else None,
            one.get("encoding", FIRST_ENCODING),
            encode_fields(Fields(**one["stated"])) if "stated" in one else b"",
        )
        for one in said["messages"]
        if queue in one["queues"]
    ]


@pytest.mark.parametrize("path", _OLDER, ids=lambda path: path.stem)
def test_a_journal_of_every_version_is_read(store: JournalStore, path: Path) -> None:
    """With its queues, its messages as they were sent, and its transactions in doubt."""
    document = json.loads(path.read_text())
    _fill(store, document)
    journal = store.open()
    for queue in (1, 2):
        window = store.window(journal, queue)
        assert not window.corrupt
        assert [one.record for one in window.messages] == _said(document, queue)
    user = document["said"]["user"]
    anycast, multicast = RoutingType.ANYCAST, RoutingType.MULTICAST
    queues = [
        QueueBinding(1, "orders", "orders", anycast, user=user),
        QueueBinding(2, "news.1", "news", multicast, auto_created=True),
    ]
    bound = [one for one in journal.bindings if isinstance(one, QueueBinding | AddressBinding)]
    assert bound == [*queues, AddressBinding(3, "news", frozenset({multicast}))]
    (doubtful,) = XaTransactions(journal).in_doubt
    assert isinstance(doubtful, PreparedTransaction)
    assert doubtful.xid == Xid(1, b"global", b"branch")
    assert doubtful.deletes == ((1_000_000, None, None),)
    ((queue_ids, prepared),) = doubtful.messages
    assert (queue_ids, decode_message(prepared, 1)) == ((1,), _said(document, 1)[0])


@pytest.mark.parametrize(
    ("message", "version"),
    [
        (record(), 1),
        (record()._replace(body=b"", large=LargeBody(7, 5, 0)), 2),
        (record()._replace(stated=encode_fields(Fields(delivery_ms=5))), 3),
        (NEUTRAL, 3),
        (NEUTRAL._replace(body=b"", large=LargeBody(7, 5, 0)), 3),
        (SECOND, 4),
        (SECOND._replace(stated=encode_fields(Fields(delivery_ms=5))), 4),
        (SECOND._replace(body=b"", large=LargeBody(7, 6, 0)), 4),
    ],
)
def test_a_message_is_stored_in_the_oldest_version_that_can_say_it(
    message: Message, version: int
) -> None:
    """So that nodes of before the newest one read all that does not need it."""
    stored = encode_message(message)
    assert (record_version(stored), decode_message(stored, 1)) == (version, message)


def _reopened(store: JournalStore, journal: MessageJournal) -> MessageJournal:
    store.settle(journal)
    journal.close(drain=True)
    return store.open()


def _versions(journal: MessageJournal) -> list[int]:
    return [one.version for one in journal.bindings if isinstance(one, RecordVersion)]


def test_a_journal_says_once_that_it_has_messages_of_the_newest_version(
    store: JournalStore,
) -> None:
    """No older one says so; from the first of them on it stands in the bindings."""
    journal = store.open()
    store.append(journal, "older")
    journal = _reopened(store, journal)
    assert not _versions(journal)
    for _ in range(2):
        journal.append_message(QUEUE, encode_message(NEUTRAL), None)
        unit = Unit()
        unit.add_message([QUEUE, QUEUE + 1], encode_message(NEUTRAL))
        journal.append_unit(unit)
    journal = _reopened(store, journal)
    assert _versions(journal) == [3]
    journal.append_message(QUEUE, encode_message(NEUTRAL), None)
    again = _reopened(store, journal)
    assert _versions(again) == [3]
    bodies = [one.record.body for one in store.window(again).messages]
    assert bodies == [b"older", *[b"neutral"] * 5]


def test_a_journal_says_each_later_version_once(store: JournalStore) -> None:
    """A node that reads version 3 only refuses it from the first message of version 4 on."""
    journal = store.open()
    journal.append_message(QUEUE, encode_message(NEUTRAL), None)
    journal = _reopened(store, journal)
    for _ in range(2):
        journal.append_message(QUEUE, encode_message(SECOND), None)
    journal = _reopened(store, journal)
    assert _versions(journal) == [3, 4]
    journal.append_message(QUEUE, encode_message(NEUTRAL), None)
    journal.append_message(QUEUE, encode_message(SECOND), None)
    again = _reopened(store, journal)
    assert _versions(again) == [3, 4]
    assert [one.record for one in store.window(again).messages] == [
        *(NEUTRAL, SECOND, SECOND, NEUTRAL, SECOND)
    ]


def test_a_record_says_an_encoding_of_its_own_version() -> None:
    """Else a node that reads version 3 would take it for one it knows, or a broken one."""
    for version, message in ((3, SECOND), (4, NEUTRAL)):
        stored = bytearray(encode_message(message)[:-4])
        stored[0] = version
        stored += zlib.crc32(stored).to_bytes(4, "big")
        with pytest.raises(CorruptRecord, match="which this node does not know"):
            decode_message(bytes(stored), 1)


def test_a_prepared_message_of_the_newest_version_is_said_too(store: JournalStore) -> None:
    """Or an older node could commit it, and pass it over."""
    journal = store.open()
    unit = Unit()
    unit.add_message([QUEUE], encode_message(NEUTRAL))
    XaTransactions(journal).prepare(Xid(1, b"a", b"b"), unit)
    assert _versions(_reopened(store, journal)) == [3]


def test_a_journal_with_messages_of_a_later_version_is_refused(store: JournalStore) -> None:
    """As a whole, and it says what to do: else its messages would be passed over one by one."""
    journal = store.open()
    journal.add_binding(RecordVersion(journal.next_id(), 5))
    with pytest.raises(CorruptRecord, match="record version 5 and this node reads 1 to 4"):
        _reopened(store, journal)


def test_a_node_of_before_record_versions_refuses_the_binding() -> None:
    """It takes its type for one of a later version, as this node takes the next one."""
    later = max(UserRecordType) + 1
    with pytest.raises(CorruptRecord, match=f"type {later} is not one this node knows"):
        decode_binding(later, b"", 3)


def test_an_audit_finds_messages_and_binding_of_the_newest_version_sound() -> None:
    """They are what a sound journal has."""
    keys = RowKeys(10, 10, RecordType.ADD_RECORD, UserRecordType.RECORD_VERSION, None, None, 1)
    judged = check_binding(keys, encode_record_version(RecordVersion(10, 3)))
    assert judged == CheckedBinding("record-version", [], "3")
    keys = keys._replace(user_record_type=UserRecordType.ADD_MESSAGE, queue_id=QUEUE)
    message = check_message(keys, encode_message(NEUTRAL))
    assert (message.kind, message.findings, message.address) == ("message", [], "orders")
