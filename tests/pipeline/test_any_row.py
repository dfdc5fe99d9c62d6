"""Whatever the broker accepts and a disk can hold is read: no row ends a job."""

import pickle
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import text, update

from orthia.broker.protocols.amqp.sections import (
    Header,
    Properties,
    encode_application_properties,
    encode_header,
    encode_properties,
    text_prefix,
)
from orthia.broker.protocols.amqp.types import encode, encode_described
from orthia.broker.protocols.amqp.values import Int
from orthia.config.address_settings import RoutingType
from orthia.journal import Message, QueueBinding, encode_message
from orthia.journal.model.encodings import NO_HEAD, SECOND_ENCODING
from orthia.journal.model.fields import Fields, encode_fields
from orthia.journal.model.message import LargeBody
from orthia.journal.model.unit import Unit
from orthia.pipeline.sources.journal import BindingsReader, JournalReader
from orthia.pipeline.sources.portions import BYTES, ROWS, portions
from orthia.pipeline.sources.schemas import JOURNAL
from orthia.pipeline.sources.store import StoreReference
from tests.journal.support import QUEUE, SqlJournalStore, payload
from tests.pipeline.support import read

pytestmark = pytest.mark.extended

LAST_INSTANT = datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)
NOW_MS = 1_700_000_000_000


def message(**changes: Any) -> bytes:
    """Return an encoded message."""
    plain = Message("orders", b"colour:red\n", b"body", NOW_MS, 0, 4)
    return encode_message(plain._replace(**changes))


def store_all(store: SqlJournalStore, *payloads: bytes) -> None:
    """Store encoded messages in the queue."""
    journal = store.open()
    unit = Unit()
    for one in payloads:
        unit.add_message([QUEUE], one)
    journal.append_unit(unit)
    store.settle(journal)


def test_a_message_may_expire_whenever_its_sender_said(
    store: SqlJournalStore, reference: StoreReference
) -> None:
    """It is a good message: what its time of expiry says is bounded by what a column can."""
    store_all(
        store,
        *(message(expires_ms=ms) for ms in (9_999_999_999_999_999, 2**63 - 1, -(2**63), NOW_MS, 0)),
    )
    rows = read(JournalReader(reference, JOURNAL.fieldNames()))
    assert [row["corrupt"] for row in rows] == [None] * 5
    assert [row["body"] for row in rows] == [b"body"] * 5
    assert [row["expires"] for row in rows] == [
        LAST_INSTANT,
        LAST_INSTANT,
        datetime(1, 1, 1, tzinfo=UTC),
        datetime.fromtimestamp(NOW_MS / 1_000, UTC),
        None,
    ]


def test_what_a_message_says_of_itself_is_in_columns(
    store: SqlJournalStore, reference: StoreReference
) -> None:
    """Whatever protocol it came by: in its headers, or stated in a record of version 3."""
    stated = Fields(
        id="m",
        routing_type=RoutingType.ANYCAST,
        durable=False,
        delivery_ms=NOW_MS,
        group="g",
        duplicate_id="d",
        correlation_id="c",
        reply_to="r",
        content_type="text/plain",
        user_id="ann",
        properties={"colour": "red", "n": 1, "x": 0.5, "yes": True, "b": b"\xff"},
    )
    head = b"correlation-id:c\nJMSXGroupID:g\npersistent:false\ncolour:red\n"
    store_all(
        store,
        message(head=b"", encoding=NO_HEAD, stated=encode_fields(stated)),
        message(head=head),
        message(
            head=head, stated=encode_fields(Fields(group="other", properties={"n": 2**63 - 1}))
        ),
    )
    neutral, stomp, both = read(JournalReader(reference, JOURNAL.fieldNames()))
    names = ("message_id", "routing_type", "durable", "delivery_time", "group_id", "duplicate_id")
    more = ("correlation_id", "reply_to", "content_type", "user_id")
    at = datetime.fromtimestamp(NOW_MS / 1_000, UTC)
    assert [neutral[name] for name in (*names, *more)] == [
        *("m", "ANYCAST", False, at, "g", "d"),
        *("c", "r", "text/plain", "ann"),
    ]
    assert dict(neutral["properties"]) == {
        "colour": "red",
        "n": "1",
        "x": "0.5",
        "yes": "true",
        "b": "ff",
    }
    assert dict(neutral["property_types"]) == {
        "n": "integer",
        "x": "float",
        "yes": "boolean",
        "b": "bytes",
    }
    assert dict(neutral["headers"])["JMSXGroupID"] == "g"
    assert [stomp[name] for name in (*names, *more)] == [
        *(None, None, False, None, "g", None),
        *("c", None, None, None),
    ]
    assert dict(stomp["properties"]) == {"colour": "red"}
    assert not stomp["property_types"]
    assert (both["group_id"], both["correlation_id"]) == ("other", "c")
    assert dict(both["properties"]) == {"colour": "red", "n": str(2**63 - 1)}
    assert dict(both["headers"])["n"] == str(2**63 - 1)
    assert [row["corrupt"] for row in (neutral, stomp, both)] == [None] * 3


def test_a_message_of_amqp_is_in_columns_as_others_are(
    store: SqlJournalStore, reference: StoreReference
) -> None:
    """Its body is said as what it is, and a map is JSON; what cannot be read is as it came."""
    said = encode_header(Header(durable=True)) + encode_properties(
        Properties(message_id="ID:1", correlation_id="c", group_id="g", subject="order")
    )
    said += encode_application_properties({"colour": "red", "n": Int(1), "b": b"\xff"})
    text, a_map = text_prefix(4) + b"body", encode_described(0x77, encode({"a": [1]}))
    second: dict[str, Any] = {"encoding": SECOND_ENCODING}
    store_all(
        store,
        message(head=said + text[:-4], body=b"body", **second),
        message(head=said, body=a_map, **second),
        message(head=said, body=a_map[:-1], **second),
    )
    whole, structured, broken = read(JournalReader(reference, JOURNAL.fieldNames()))
    names = ("message_id", "durable", "group_id", "correlation_id", "content_type")
    for row in (whole, structured, broken):
        assert [row[name] for name in names] == ["ID:1", True, "g", "c", None]
        assert dict(row["properties"]) == {"colour": "red", "n": "1", "b": "ff"}
        assert dict(row["property_types"]) == {"n": "integer", "b": "bytes"}
        assert dict(row["headers"])["type"] == "order"
        assert row["corrupt"] is None
    bodies = [(row["body"], row["body_type"]) for row in (whole, structured, broken)]
    assert bodies == [(b"body", "text"), (b'{"a":[1]}', "map"), (a_map[:-1], None)]
    assert dict(structured["headers"])["content-type"] == "application/json"


def test_what_no_broker_writes_is_corrupt_and_read(
    store: SqlJournalStore, reference: StoreReference
) -> None:
    """A record that is whole and makes no sense says why; the rows beside it are as they were."""
    spoilt = {
        "is no time": message(timestamp_ms=2**62),
        "ms, which is no time": message(timestamp_ms=-(2**63)),
        "has 18446744073709551615 bytes": message(large=LargeBody(5, 2**64 - 1, 0)),
        "headers cannot be read": message(head=b"colour\n"),
        "can't decode": message(head=b"\xff:\xfe\n"),
        "fewer than a message has": b"",
    }
    store_all(store, payload("before"), *(payload("gone") for _ in spoilt), payload("after"))
    for seq, record in zip(sorted(store.rows())[1:], spoilt.values(), strict=False):
        store.spoil(seq, record)
    first, *middle, last = read(JournalReader(reference, JOURNAL.fieldNames()))
    assert (first["body"], last["body"]) == (b"before", b"after")
    for row, reason in zip(middle, spoilt, strict=True):
        assert reason in row["corrupt"]
        assert (row["body"], row["seq"] > 0) == (None, True)


@pytest.mark.parametrize("server", ["sqlite"], indirect=True)
def test_columns_of_another_kind_are_null(
    store: SqlJournalStore, reference: StoreReference
) -> None:
    """SQLite keeps a text in a column of numbers; such a row says so, and the others are read."""
    store_all(store, *(payload(f"{number}") for number in range(5)))
    one, two, three, four, five = sorted(store.rows())
    changes = {
        f"epoch = 'seven' WHERE seq = {one}",
        f"written_at = 'yesterday' WHERE seq = {two}",
        f"record = 17 WHERE seq = {three}",
        f"user_record_type = 70000 WHERE seq = {four}",
    }
    with store.database.engine.begin() as connection:
        for change in changes:
            connection.execute(text(f'UPDATE "{store.messages.name}" SET {change}'))
    rows = {row["seq"]: row for row in read(JournalReader(reference, JOURNAL.fieldNames()))}
    assert (rows[one]["epoch"], rows[one]["body"]) == (None, b"0")
    assert (rows[two]["written_at"], rows[two]["body"]) == (None, b"1")
    assert "must have a value" in rows[three]["corrupt"]
    assert "must have a value" in rows[four]["corrupt"]
    assert (rows[five]["body"], rows[five]["corrupt"]) == (b"4", None)


@pytest.mark.parametrize("server", ["postgresql"], indirect=True)
def test_a_time_that_is_infinite_is_a_far_day(
    store: SqlJournalStore, reference: StoreReference
) -> None:
    """PostgreSQL's times go further than any reader's."""
    store_all(store, payload("late"), payload("early"), payload("now"))
    for seq, instant in zip(sorted(store.rows()), ("infinity", "4000-01-01 BC"), strict=False):
        with store.database.engine.begin() as connection:
            connection.execute(
                text(f"UPDATE {store.messages.name} SET written_at = '{instant}' WHERE seq = {seq}")
            )
    late, early, now = read(JournalReader(reference, ["seq", "written_at"]))
    assert (late["written_at"].year, early["written_at"].year) == (9999, 1)
    assert now["written_at"].year >= 2026 - 1


def test_a_binding_may_allow_any_number_of_consumers(
    store: SqlJournalStore, reference: StoreReference
) -> None:
    """More than a column can say is as many as it can."""
    journal = store.open()
    queue = QueueBinding(QUEUE, "orders", "orders", RoutingType.ANYCAST, max_consumers=2**40)
    journal.add_binding(queue)
    store.settle(journal)
    found = [row for row in read(BindingsReader(reference)) if row["type"] == "queue"]
    assert [row["max_consumers"] for row in found] == [2**31 - 1]


@pytest.mark.parametrize("server", ["sqlite"], indirect=True)
def test_a_binding_without_a_record_is_corrupt(
    store: SqlJournalStore, reference: StoreReference
) -> None:
    """And its queue's messages are read, without its name."""
    journal = store.open()
    journal.add_binding(QueueBinding(QUEUE, "orders", "orders", RoutingType.ANYCAST))
    store.append(journal, "one")
    with store.database.engine.begin() as connection:
        connection.execute(
            update(store.bindings).where(store.bindings.c.seq == QUEUE).values(record=text("3"))
        )
    found = [row for row in read(BindingsReader(reference)) if row["seq"] == QUEUE]
    assert [row["corrupt"] for row in found] == ["its row has no record, or no type"]
    rows = read(JournalReader(reference, ["queue", "body"]))
    assert rows == [{"queue": None, "body": b"one"}]


def test_a_portion_ends_before_it_is_too_large() -> None:
    """By bytes and by rows; nothing is lost between two of them."""
    rows = [(n, b"x" * size) for n, size in enumerate([1, BYTES - 1, 1, BYTES * 2, BYTES // 2, 1])]
    found = list(portions(rows, [1]))
    assert [[row[0] for row in portion] for portion in found] == [[0, 1], [2], [3], [4, 5]]
    numbers = [(n,) for n in range(ROWS * 2 + 1)]
    assert [len(portion) for portion in portions(numbers, [])] == [ROWS, ROWS, 1]
    assert list(portions([], [])) == []


_READ_ALL = r"""
import pathlib, pickle, re, sys
reader = pickle.loads(bytes.fromhex(sys.argv[1]))
rows = 0
for partition in reader.partitions():
    for batch in reader.read(partition):
        rows += batch.num_rows
        batch.serialize()
# Not ru_maxrss: of a process that was just started that is what its parent has in memory.
status = pathlib.Path("/proc/self/status").read_text()
print(rows, int(re.search(r"VmHWM:\s*(\d+) kB", status)[1]) // 1024)
"""


def test_a_worker_needs_little_memory(store: SqlJournalStore, reference: StoreReference) -> None:
    """Less than 400 MiB for any mix: small messages, then 160 MiB of large ones, and headers."""
    journal = store.open()
    mixes = (
        [message(body=b"%d" % n) for n in range(5_000)],
        *([message(body=bytes(95 * 1024)) for _ in range(100)] for _ in range(17)),
        *([message(head=b"h%d:%s\n" % (n, b"x" * 60_000)) for n in range(100)] for _ in "ab"),
    )
    total = 0
    for payloads in mixes:
        unit = Unit()
        for one in payloads:
            unit.add_message([QUEUE], one)
        journal.append_unit(unit)
        store.settle(journal)
        total += len(payloads)
    reader = JournalReader(reference, JOURNAL.fieldNames())
    done = subprocess.run(
        [sys.executable, "-c", _READ_ALL, pickle.dumps(reader).hex()],
        capture_output=True,
        check=True,
        text=True,
    )
    rows, most_mib = map(int, done.stdout.split())
    assert rows == total
    assert most_mib < 400, most_mib
