"""The readers of the data sources, without a JVM, on every DBMS."""

import pickle
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import delete

from orthia.journal import JournalLimits
from orthia.journal.model.unit import Unit
from orthia.journal.model.xid import Xid
from orthia.journal.xa import XaTransactions
from orthia.pipeline.errors import BadOption
from orthia.pipeline.sources.failover_log import FailoverLogReader, FailoverLogSource
from orthia.pipeline.sources.journal import (
    BindingsReader,
    JournalReader,
    JournalSource,
    conditions_of,
)
from orthia.pipeline.sources.node_manager import NodeManagerReader
from orthia.pipeline.sources.schemas import JOURNAL, RAW, arrow_schema, subset
from orthia.pipeline.sources.store import StoreReference
from tests.cli.test_failover_log import entry
from tests.journal.large_support import DATA, put, upload
from tests.journal.support import OTHER_QUEUE, QUEUE, SqlJournalStore, payload
from tests.pipeline.support import read, with_queues
from tests.support.servers import PASSWORD, SERVER_NAMES


def fill(store: SqlJournalStore) -> None:
    """Store two queues, three messages of one queue each, and one of both."""
    journal = with_queues(store, "shop")
    store.append(journal, "one", "two")
    store.append(journal, "three", queue=OTHER_QUEUE)
    unit = Unit()
    unit.add_message([QUEUE, OTHER_QUEUE], payload("both"))
    journal.append_unit(unit)
    store.settle(journal)


def test_messages_are_decoded(store: SqlJournalStore, reference: StoreReference) -> None:
    """A row shows its queue, address, headers and body; a reference those of its body."""
    fill(store)
    rows = read(JournalReader(reference, JOURNAL.fieldNames()))
    assert [(row["kind"], row["queue"], row["body"]) for row in rows] == [
        ("message", "orders", b"one"),
        ("message", "orders", b"two"),
        ("message", "audit", b"three"),
        ("body", None, b"both"),
        ("reference", "orders", b"both"),
        ("reference", "audit", b"both"),
    ]
    first = rows[0]
    assert first["address"] == "orders"
    assert dict(first["headers"]) == dict(first["properties"]) == {"colour": "red"}
    assert first["timestamp"] == datetime.fromtimestamp(1_700_000_000, UTC)
    assert (first["expires"], first["corrupt"], first["priority"]) == (None, None, 4)
    assert first["size"] == len(payload("one"))
    assert abs(first["written_at"] - datetime.now(UTC)) < timedelta(minutes=10)


@pytest.mark.parametrize("server", ["sqlite"], indirect=True)
def test_a_large_message_has_a_size_and_no_body(
    store: SqlJournalStore, reference: StoreReference
) -> None:
    """Its body lies elsewhere, which is not the same as an empty one."""
    journal = store.open()
    put(store, journal, upload(store, journal), (QUEUE, OTHER_QUEUE))
    store.append(journal, "")
    rows = read(JournalReader(reference, ["kind", "body", "body_size", "large", "corrupt"]))
    assert [tuple(row.values()) for row in rows] == [
        ("body", None, len(DATA), True, None),
        ("reference", None, len(DATA), True, None),
        ("reference", None, len(DATA), True, None),
        ("message", b"", 0, False, None),
    ]


def test_batches_are_exactly_of_the_schema(
    store: SqlJournalStore, reference: StoreReference
) -> None:
    """Spark refuses a batch whose Arrow schema differs in anything."""
    fill(store)
    for columns in (JOURNAL.fieldNames(), list(RAW), ["queue", "seq"]):
        reader = JournalReader(reference, columns)
        (partition,) = reader.partitions()
        (batch,) = reader.read(partition)
        assert batch.schema.equals(arrow_schema(subset(JOURNAL, ",".join(columns))))


@pytest.mark.parametrize(
    ("options", "bodies"),
    [
        ({"minSeq": "2", "maxSeq": "3"}, [b"two", b"three"]),
        ({"queue": "audit"}, [b"three", b"both"]),
        ({"queue": '["audit", "orders"]', "maxseq": "2"}, [b"one", b"two"]),
        ({"queue": "nobody"}, []),
        ({"minEpoch": "2"}, []),
        ({"since": "2000-01-01", "until": "2001-01-01T00:00:00Z"}, []),
        ({"since": "2000-01-01T12:00:00+02:00", "maxSeq": "1"}, [b"one"]),
    ],
)
def test_the_database_leaves_out_what_options_exclude(
    store: SqlJournalStore, reference: StoreReference, options: dict[str, str], bodies: list[bytes]
) -> None:
    """Conditions on seq, queue, epoch and time are answered by the database."""
    fill(store)
    lower = {key.lower(): value for key, value in options.items()}
    reader = JournalReader(reference, ["body"], conditions=conditions_of(lower))
    assert [row["body"] for row in read(reader)] == bodies


def test_partitions_have_every_row_once(store: SqlJournalStore, reference: StoreReference) -> None:
    """Ranges of seq leave nothing out and overlap nowhere, with a takeover's gap between."""
    small = JournalLimits(id_block=5_000)
    first = store.open(limits=small)
    store.append(first, *[f"{number}" for number in range(40)])
    first.close(drain=True)
    store.advance_fence(2)
    second = store.open(token=2, limits=small)
    unit = Unit()
    for number in range(20):
        unit.add_message([QUEUE, OTHER_QUEUE], payload(f"{number}"))
    second.append_unit(unit)
    store.settle(second)
    for wanted in (2, 4, 5, 7, 11):
        reader = JournalReader(reference, ["seq", "id"], wanted)
        parts = [
            [row for batch in reader.read(partition) for row in batch.to_pylist()]
            for partition in reader.partitions()
        ]
        assert 2 <= len(parts) <= wanted + 1
        assert max(map(len, parts)) <= 2 * len(store.rows()) / wanted
        assert sorted(row["seq"] for part in parts for row in part) == sorted(store.rows())
        messages = [{row["id"] for row in part} for part in parts]
        assert sum(map(len, messages)) == len(set().union(*messages)), "a message is cut in two"


def test_an_empty_store_has_no_rows(store: SqlJournalStore, reference: StoreReference) -> None:
    """There is a partition, as Spark wants, and nothing in it."""
    assert store.rows() == {}
    assert read(JournalReader(reference, JOURNAL.fieldNames())) == []


def test_a_corrupt_record_says_why(store: SqlJournalStore, reference: StoreReference) -> None:
    """A record that cannot be read is a row all the same."""
    journal = store.open()
    (seq,) = store.append(journal, "one")
    store.spoil(seq, payload("one")[:-1] + b"x")
    (row,) = read(JournalReader(reference, ["seq", "body", "corrupt"]))
    assert row == {"seq": seq, "body": None, "corrupt": "its checksum does not match"}


def test_bindings_are_decoded(store: SqlJournalStore, reference: StoreReference) -> None:
    """Queues, and the counter of ids, are rows of BINDINGS."""
    fill(store)
    rows = {row["seq"]: row for row in read(BindingsReader(reference))}
    assert rows[QUEUE]["name"] == "orders"
    assert rows[QUEUE]["routing_types"] == ["MULTICAST"]
    assert (rows[0]["type"], rows[0]["id"]) == ("counter", 1_000_000)


def test_a_prepared_transaction_is_a_binding_and_no_message(
    store: SqlJournalStore, reference: StoreReference
) -> None:
    """What is in doubt has its xid in BINDINGS, and nothing of it is in MESSAGES."""
    journal = store.open()
    xid = Xid(1, b"global", b"branch")
    unit = Unit()
    unit.add_message([QUEUE], payload("perhaps"))
    XaTransactions(journal).prepare(xid, unit)
    store.settle(journal)
    found = [row for row in read(BindingsReader(reference)) if row["type"] == "transaction"]
    assert [row["name"] for row in found] == [str(xid)]
    assert read(JournalReader(reference, ["seq"])) == []


def test_a_reader_that_stops_early_leaves_no_connection(
    store: SqlJournalStore, reference: StoreReference
) -> None:
    """LIMIT closes the generator; the fixture fails if somebody stays connected."""
    journal = store.open()
    unit = Unit()
    for number in range(12_500):
        unit.add_message([QUEUE], payload(f"{number}"))
    journal.append_unit(unit)
    store.settle(journal)
    reader = JournalReader(reference, list(RAW))
    (partition,) = reader.partitions()
    batches = reader.read(partition)
    assert next(batches).num_rows > 0
    batches.close()  # type: ignore[attr-defined]  # it is a generator


def test_tasks_are_by_rows_and_not_by_ids(
    store: SqlJournalStore, reference: StoreReference
) -> None:
    """A gap of a million at each takeover, and acknowledged messages, make no task."""
    for token in range(1, 6):
        store.advance_fence(token)
        journal = store.open(token)
        store.append(journal, *map(str, range(15)))
        journal.close(drain=True)
    rows = read(JournalReader(reference, ["seq"]))
    seqs = [row["seq"] for row in rows]
    assert (len(seqs), seqs[-1] - seqs[0] > 3_000_000) == (75, True)
    reader = JournalReader(reference, ["seq"])
    assert len(reader.partitions()) == 1
    # As many tasks as are asked for have about as many rows each.
    several = JournalReader(reference, ["seq"], 5)
    shares = [sum(batch.num_rows for batch in several.read(part)) for part in several.partitions()]
    assert sum(shares) == 75
    assert len(shares) == 5
    assert max(shares) <= 30


def test_acknowledged_messages_count_for_no_task(
    store: SqlJournalStore, reference: StoreReference
) -> None:
    """Ids say little of rows: tasks are of what is left."""
    journal = store.open()
    seqs = store.append(journal, *map(str, range(1_000)))
    gone = store.messages.c.seq.in_(seqs[10:900])
    with store.database.engine.begin() as connection:
        connection.execute(delete(store.messages).where(gone))
    several = JournalReader(reference, ["seq"], 2)
    shares = [sum(batch.num_rows for batch in several.read(one)) for one in several.partitions()]
    assert sum(shares) == 110
    assert max(shares) <= 80


def test_the_node_managers_store_shows_both_locks(
    store: SqlJournalStore, reference: StoreReference
) -> None:
    """One row a lock, with the state of the pair and the fence."""
    store.advance_fence(3)
    rows = read(NodeManagerReader(reference, "pair-1"))
    assert [(row["pair"], row["lock"], row["held"]) for row in rows] == [
        ("pair-1", "live", False),
        ("pair-1", "backup", False),
    ]
    assert {row["fence_token"] for row in rows} == {3}


def test_failover_logs_of_table_and_files(
    store: SqlJournalStore, reference: StoreReference, tmp_path: Path
) -> None:
    """Entries come from the table in partitions, and from the files of a directory."""
    from orthia.nodemanager.failover_log import FailoverLogTable

    table = FailoverLogTable(store.database, store.settings)
    for number in range(1, 6):
        table.insert(entry("a", number, number))
    (tmp_path / "b.jsonl").write_text(entry("b", 1, 1).to_json() + '\n{"torn')
    reader = FailoverLogReader(reference, str(tmp_path), partitions=2)
    rows = read(reader)
    assert len(reader.partitions()) == 3
    assert sorted((row["node_name"], row["event_seq"]) for row in rows) == [
        *(("a", number) for number in range(1, 6)),
        ("b", 1),
    ]
    assert {row["pair"] for row in rows} == {"id"}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "url or the option config"),
        ({"url": "sqlite:///a.db", "config": "broker.xml"}, "not both"),
        ({"url": "oracle://db"}, "is not a database Orthia can use"),
        ({"url": "sqlite:///a.db", "table": "queues"}, "messages, history, bindings, bodies"),
        ({"url": "sqlite:///a.db", "columns": "seq,boddy"}, "boddy is not among the columns"),
        ({"url": "sqlite:///a.db", "numpartitions": "0"}, "at least 1"),
        ({"url": "sqlite:///a.db", "since": "yesterday"}, "2026-01-31T12:00:00Z"),
        ({"url": "sqlite:///a.db", "minseq": "x"}, "is not a number"),
        ({"url": "sqlite:///a.db", "queues": "a"}, "unknown option queues"),
    ],
)
def test_an_option_that_cannot_be_used_is_explained(options: dict[str, str], text: str) -> None:
    """A wrong option says what was expected."""
    with pytest.raises(BadOption, match=text):
        JournalSource(options).schema()


def test_a_path_without_a_file_is_named(tmp_path: Path) -> None:
    """A failover log that is not there is not silently empty."""
    reader = FailoverLogSource({"path": str(tmp_path / "*.jsonl")}).reader(JOURNAL)
    with pytest.raises(BadOption, match="no failover log file there"):
        reader.partitions()


def test_a_password_in_the_url_is_refused_and_not_quoted() -> None:
    """Options are shown by Spark, so they may not have secrets."""
    for url in ("postgresql://u:hunter2@h/d", "jdbc:postgresql://h/d?user=u&sslpassword=hunter2"):
        with pytest.raises(BadOption, match="environment variable") as caught:
            JournalSource({"url": url})
        assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("server", SERVER_NAMES, indirect=True)
def test_a_readers_pickle_has_no_password(
    store: SqlJournalStore, reference: StoreReference
) -> None:
    """Neither what travels to the workers nor what is printed has the password."""
    fill(store)
    reader = JournalReader(reference, ["seq"])
    assert len(read(reader)) == 6
    for shown in (pickle.dumps(reader), repr(vars(reader)).encode(), repr(reference).encode()):
        assert PASSWORD.encode() not in shown
        assert b"battery" not in shown
