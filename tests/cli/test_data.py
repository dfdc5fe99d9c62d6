"""``orthia data``: the files of the journal as an operator sees them."""

import contextlib
import json
from pathlib import Path

import pytest

from orthia.broker.cli import data
from orthia.config.address_settings import RoutingType
from orthia.journal import QueueBinding
from orthia.journal.file.format import RECORD_BYTES
from orthia.journal.file.tools import Recovered
from orthia.nodemanager import Lock
from orthia.nodemanager.locks.server_lock import ServerLock
from tests.file_journal.commands import run, write_broker_xml
from tests.journal.large_support import leave_an_orphan, put, upload
from tests.journal.support import OTHER_QUEUE, FileJournalStore, payload
from tests.support.broker_xml import broker_xml as write_core
from tests.support.broker_xml import database_store

SMALL = "journal_file_size"


@pytest.fixture
def store(tmp_path: Path) -> FileJournalStore:
    """Give a journal with 60 messages in several files, of which 10 are live, and a queue."""
    store = FileJournalStore(tmp_path)
    journal = store.open()
    journal.add_binding(QueueBinding(journal.next_id(), "orders", "orders", RoutingType.ANYCAST))
    seqs = store.append(journal, *[f"{number} " + "x" * 3_000 for number in range(60)])
    window = store.window(journal)
    journal.delete([message.location for message in window.messages if message.seq % 6])
    store.settle(journal)
    journal.close(drain=True)
    assert len([seq for seq in seqs if seq % 6 == 0]) == 10
    return store


@pytest.fixture
def broker_xml(tmp_path: Path, store: FileJournalStore) -> Path:
    """Give the broker.xml of that journal."""
    return write_broker_xml(tmp_path, store.settings)


def test_print_shows_files_and_records(broker_xml: Path) -> None:
    """Every file with what is live in it, and with --records every record."""
    code, said, _ = run("data", "print", "--config", broker_xml)
    assert code == 0
    assert "messages  10" in said
    assert "activemq-data-1.amq" in said
    code, said, _ = run("data", "print", "--config", broker_xml, "--records", "--json")
    document = json.loads(said)
    records = [one for file in document["files"] for one in file["contents"]]
    assert {"ADD_RECORD", "DELETE_RECORD"} <= {one["record"] for one in records}
    assert "QUEUE_BINDING" in {one["what"] for one in records}
    assert sum(file["live"] for file in document["files"] if "data" in file["file"]) == 10


def test_compact_leaves_what_is_live(broker_xml: Path, store: FileJournalStore) -> None:
    """Compacting by hand keeps every live message and gives the space back."""
    before = store.rows()
    code, said, _ = run("data", "compact", "--config", broker_xml)
    assert code == 0, said
    assert "10 records" in said
    assert store.rows() == before
    journal = store.open()
    assert [binding.name for binding in journal.bindings if isinstance(binding, QueueBinding)] == [
        "orders"
    ]
    assert len(store.window(journal).messages) == 10
    store.close()


@pytest.mark.parametrize("command", ["compact", "recover"])
def test_the_journal_of_a_running_node_is_left_alone(
    broker_xml: Path, store: FileJournalStore, command: str
) -> None:
    """A tool that would write refuses while a node has the journal open; the node goes on."""
    journal = store.open()
    code, _, error = run("data", command, "--config", broker_xml)
    assert code == 75, error
    assert "stop it first" in error
    store.append(journal, "goes on")
    store.close()


@pytest.mark.parametrize("command", ["compact", "recover"])
def test_a_node_that_is_about_to_open_the_journal_is_not_disturbed(
    broker_xml: Path, store: FileJournalStore, command: str
) -> None:
    """It has the live lock and nothing else yet."""
    with contextlib.closing(ServerLock(store.settings.journal_directory)) as locks:
        assert locks.try_acquire(Lock.LIVE, "node-a@host:1:x")
        code, _, error = run("data", command, "--config", broker_xml)
    assert code == 75, error
    assert "node-a@host:1:x holds the live lock of this store for as long as its process" in error


@pytest.mark.parametrize("command", ["compact", "recover"])
def test_a_node_that_is_started_meanwhile_waits(
    broker_xml: Path, store: FileJournalStore, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes do not heed the directory's lock, by which a tool keeps off a node's journal."""
    directory = store.settings.journal_directory
    taken: list[bool] = []

    def start_a_node(_: object) -> object:
        with contextlib.closing(ServerLock(directory)) as locks:
            taken.append(locks.try_acquire(Lock.LIVE, "node-a@host:1:x"))
        return Recovered() if command == "recover" else []

    monkeypatch.setattr(data, command, start_a_node)
    assert run("data", command, "--config", broker_xml)[0] == 0
    assert taken == [False]
    with contextlib.closing(ServerLock(directory)) as locks:
        assert locks.try_acquire(Lock.LIVE, "node-a@host:1:x"), "it was given back"


def test_a_damaged_journal_is_refused_and_recovered(
    broker_xml: Path, store: FileJournalStore
) -> None:
    """A node names the damage and changes nothing; recover keeps the rest, and copies."""
    live = sorted(store.rows())
    message = payload("30 " + "x" * 3_000)
    files = sorted(store.settings.journal_directory.glob("activemq-data-*.amq"))
    (path,) = [file for file in files if message in file.read_bytes()]
    with path.open("r+b") as file:
        file.seek(path.read_bytes().index(message) - RECORD_BYTES + 10)
        file.write(b"????")
    code, _, error = run("data", "compact", "--config", broker_xml)
    assert code == 74, error
    assert f"{path.name}: bytes" in error
    assert "orthia data recover" in error
    code, said, error = run("data", "print", "--config", broker_xml)
    assert code == 1, error
    assert "DAMAGED" in said
    code, said, error = run("data", "recover", "--config", broker_xml)
    assert code == 1, error
    assert "what they stored is lost" in error
    assert (path.parent / "attic" / path.name).exists()
    left = sorted(store.rows())
    assert set(left) <= set(live)
    assert len(left) >= len(live) - 1
    assert run("data", "recover", "--config", broker_xml)[0] == 0, "once is enough"
    journal = store.open()
    assert [message.seq for message in store.window(journal).messages] == left
    store.append(journal, "goes on", queue=OTHER_QUEUE)
    store.close()


def test_a_lost_fence_is_written_anew(broker_xml: Path, store: FileJournalStore) -> None:
    """Files restored without journal.fence are read after recover, and not before."""
    live = store.rows()
    fence = store.settings.journal_directory / "journal.fence"
    fence.unlink()
    for _ in range(2):
        code, _, error = run("data", "print", "--config", broker_xml)
        assert (code, "lacks journal.fence" in error) == (74, True)
        fence.touch()  # as the lock of a node that was refused leaves it
    code, _, error = run("data", "recover", "--config", broker_xml)
    assert (code, "was missing or damaged" in error) == (1, True)
    assert store.rows() == live


def test_a_binding_that_cannot_be_read_is_given_up_by_recover_only(
    broker_xml: Path, store: FileJournalStore
) -> None:
    """A node does not start without it; recover says that the queue is lost, and goes on."""
    (binding,) = [one for one in store.open().bindings if isinstance(one, QueueBinding)]
    store.close()
    store._opened.clear()
    store.spoil_binding(binding.queue_id, b"?")
    code, _, error = run("data", "recover", "--config", broker_xml)
    assert (code, "the queue or address is lost" in error) == (1, True)
    assert len(store.rows()) == 10
    journal = store.open()
    assert journal.bindings == []
    store.close()


NOTHING_STORED = "<persistence-enabled>false</persistence-enabled>"


@pytest.mark.parametrize(
    ("core", "words", "code", "told"),
    [
        ("", "queue list", 78, "orthia data print"),
        ("", "failover-log", 78, "failover-log-directory"),
        (database_store(), "data print", 64, "orthia queue list"),
        *(
            (NOTHING_STORED, words, code, "nothing is stored")
            for words, code in (
                ("status", 69),
                ("data print", 69),
                ("data transactions list", 69),
                ("queue list", 78),
                ("failover-log", 78),
            )
        ),
    ],
)
def test_a_command_that_looks_in_the_wrong_place_says_where_to_look(
    core: str, words: str, code: int, told: str, tmp_path: Path
) -> None:
    """A file journal has no queues in a database, which has no files; some nodes store nothing."""
    found, _, error = run(*words.split(), "--config", write_core(tmp_path, core))
    assert (found, told in error) == (code, True), error


def test_print_tells_of_large_messages(broker_xml: Path, store: FileJournalStore) -> None:
    """How many bodies there are, which of them nobody needs, and which message lacks its own."""
    journal = store.open(token=2)
    body = upload(store, journal)
    (location,) = put(store, journal, body)
    journal.close(drain=True)
    leave_an_orphan(store, body.id + 1)
    code, said, _ = run("data", "print", "--config", broker_xml)
    assert code == 0
    assert f"large     2 bodies, {body.size + 9} bytes, 1 of them needed by no message" in said
    (store.settings.large_messages_directory / f"{body.id}.msg").unlink()
    code, said, complaints = run("data", "print", "--config", broker_xml, "--json")
    assert code == 1, complaints
    assert json.loads(said)["large_messages"]["unneeded"] == [body.id + 1]
    assert f"the body {body.id} of message {location.seq} is missing" in said + complaints
