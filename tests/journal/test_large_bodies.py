"""The bodies of large messages, in every store: there while anything needs them, then gone."""

import threading
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import Engine, delete, event
from typing_extensions import override

import orthia.journal.engine.body_keeper
from orthia.config.errors import OrthiaError
from orthia.config.store_settings import RetentionSettings
from orthia.database import PermanentStoreError, StoreUnavailable
from orthia.journal import Fenced, Unit, encode_message
from orthia.journal.engine.abc import PIECE_BYTES, BodyStore, Piece
from orthia.journal.engine.large import UPLOAD_WINDOW_BYTES, LargeMessages
from orthia.journal.errors import JournalIOError, LargeBodyError
from orthia.journal.file import bodies as bodies_on_files
from orthia.journal.file.bodies import FileBodies
from orthia.journal.file.opening import open_files
from orthia.journal.file.tools import compact
from orthia.journal.model.message import LargeBody
from orthia.journal.model.windows import BEGINNING
from orthia.journal.model.xid import Xid
from orthia.journal.sql.bodies import SqlBodies
from orthia.journal.xa import XaTransactions
from tests.conftest import EVERY_DBMS
from tests.journal.large_support import (
    DATA,
    begin,
    bodies_of,
    leave_an_orphan,
    put,
    read,
    remove,
    stored,
    table_of,
    upload,
    wait_gone,
)
from tests.journal.support import (
    ALWAYS,
    OTHER_QUEUE,
    PATIENT,
    QUEUE,
    FileJournalStore,
    JournalStore,
    Loop,
    SqlJournalStore,
    payload,
    record,
)
from tests.support.waiting import wait_until

XID = Xid(1, b"global", b"branch")

FILE_AND_SQLITE = ["file", "sqlite"]
EVERY_STORE = pytest.mark.parametrize("store", ["file", *EVERY_DBMS], indirect=True)
"""All but the in-memory twin, which has no large bodies."""


@EVERY_STORE
def test_a_body_comes_back_also_after_a_takeover(store: JournalStore) -> None:
    """Whatever its size, it is read as it was stored, by this node and by the next."""
    sizes = (1, PIECE_BYTES, len(DATA))
    journal = store.open()
    bodies = [upload(store, journal, DATA[:size]) for size in sizes]
    locations = [put(store, journal, body)[0] for body in bodies]
    journal.close(drain=True)
    store.advance_fence(2)
    successor = store.open(token=2)
    messages = store.window(successor).messages
    assert [message.location for message in messages] == locations
    assert [message.record.large for message in messages] == bodies
    for body, size in zip(bodies, sizes, strict=True):
        assert read(store, successor, body) == DATA[:size]


@EVERY_STORE
def test_bodies_count_with_the_messages_of_their_queues(store: JournalStore) -> None:
    """What earlier nodes left in a queue is counted in bytes, wherever the bodies are."""
    journal = store.open()
    small = payload("small")
    journal.append_message(QUEUE, small, None)
    both, alone = upload(store, journal), upload(store, journal, DATA[:5])
    put(store, journal, both, (QUEUE, OTHER_QUEUE))
    put(store, journal, alone)
    head = len(encode_message(record("")._replace(large=alone)))
    counts = store.count(journal, BEGINNING, ALWAYS, 100)
    assert counts.messages == {QUEUE: 3, OTHER_QUEUE: 1}
    assert counts.payload_bytes == {
        QUEUE: len(small) + 2 * head + len(DATA) + 5,
        OTHER_QUEUE: head + len(DATA),
    }


@pytest.mark.parametrize("sql_store", EVERY_DBMS, indirect=True)
def test_what_leaves_a_queue_while_it_is_counted_makes_no_other_count(
    sql_store: SqlJournalStore,
) -> None:
    """A database shows one statement less than the one before: the step goes no further for it."""
    journal = sql_store.open()
    bodies = [upload(sql_store, journal) for _ in range(4)]
    first, *_ = [put(sql_store, journal, body)[0] for body in bodies[:2]]
    for body in bodies[2:]:
        put(sql_store, journal, body, (OTHER_QUEUE,))
    engine, statements = sql_store.database.engine, 0

    def acknowledge(_: object, __: object, statement: str, *___: object) -> None:
        nonlocal statements
        is_count = statement.lstrip().startswith("SELECT") and "queue_id" in statement
        statements += is_count and "ORTHIA_ACKS" not in statement.upper()
        if statements == 2:
            statements += 1
            rows = sql_store.messages
            with engine.begin() as connection:
                connection.execute(delete(rows).where(rows.c.seq == first.seq))

    event.listen(Engine, "before_cursor_execute", acknowledge)
    try:
        counts = sql_store.count(journal, BEGINNING, ALWAYS, 2)
    finally:
        event.remove(Engine, "before_cursor_execute", acknowledge)
    assert statements > 2
    assert counts.messages == {QUEUE: 2}
    head = len(encode_message(record("")._replace(large=bodies[0])))
    assert counts.payload_bytes[QUEUE] in {2 * head + len(DATA), 2 * (head + len(DATA))}


@EVERY_STORE
def test_a_body_goes_with_the_last_queue_that_has_it(store: JournalStore) -> None:
    """Two queues share it; it is there until both are done with it."""
    journal = store.open()
    body = upload(store, journal)
    first, second = put(store, journal, body, (QUEUE, OTHER_QUEUE))
    other = upload(store, journal)
    remove(store, journal, first)
    bodies_of(journal).unpin(other.id)
    wait_gone(store, other.id)
    assert stored(store) == {body.id}
    remove(store, journal, second)
    wait_gone(store, body.id)


@pytest.mark.parametrize("store", FILE_AND_SQLITE, indirect=True)
def test_a_moved_message_keeps_its_body(store: JournalStore) -> None:
    """A dead letter is another message with the same body."""
    journal = store.open()
    body = upload(store, journal)
    (location,) = put(store, journal, body)
    unit = Unit()
    unit.delete(location)
    unit.add_message([OTHER_QUEUE], encode_message(record("")._replace(large=body)))
    (moved,) = journal.append_unit(unit)
    store.settle(journal)
    other = upload(store, journal)
    bodies_of(journal).unpin(other.id)
    wait_gone(store, other.id)
    assert read(store, journal, body) == DATA
    remove(store, journal, moved)
    wait_gone(store, body.id)


@pytest.mark.parametrize("store", FILE_AND_SQLITE, indirect=True)
def test_what_was_uploaded_for_nothing_is_removed(store: JournalStore) -> None:
    """An upload that breaks off, and one whose message is never stored, leave nothing."""
    journal = store.open()
    unused = upload(store, journal)
    outcomes: list[LargeBody | OrthiaError] = []
    broken = begin(journal, outcomes)
    broken.add(DATA)
    wait_until(lambda: broken.body_id in stored(store), what="some of the body is stored")
    broken.abort()
    bodies_of(journal).unpin(unused.id)
    wait_gone(store, unused.id, broken.body_id)
    store.loop.run_posted()
    assert outcomes == []


@EVERY_STORE
def test_what_a_node_that_died_left_over_is_removed(store: JournalStore) -> None:
    """The next node removes what no message needs, and keeps what one does."""
    journal = store.open()
    needed = upload(store, journal)
    (location,) = put(store, journal, needed)
    broken = begin(journal, [])
    broken.add(DATA)
    wait_until(lambda: broken.body_id in stored(store), what="some of the body is stored")
    uncommitted = upload(store, journal)
    journal.close(drain=False)
    store.advance_fence(2)
    successor = store.open(token=2)
    wait_gone(store, broken.body_id, uncommitted.id)
    assert read(store, successor, needed) == DATA
    remove(store, successor, location)
    wait_gone(store, needed.id)


@pytest.mark.parametrize("store", FILE_AND_SQLITE, indirect=True)
def test_what_is_pinned_stays(store: JournalStore) -> None:
    """A delivery under way reads on, although its message was acknowledged meanwhile."""
    journal = store.open()
    body = upload(store, journal)
    (location,) = put(store, journal, body)
    bodies_of(journal).pin(body.id)
    remove(store, journal, location)
    other = upload(store, journal)
    bodies_of(journal).unpin(other.id)
    wait_gone(store, other.id)
    assert read(store, journal, body) == DATA
    bodies_of(journal).unpin(body.id)
    wait_gone(store, body.id)


@pytest.mark.parametrize("store", FILE_AND_SQLITE, indirect=True)
@pytest.mark.parametrize("commits", [True, False])
def test_a_transaction_in_doubt_keeps_its_bodies(store: JournalStore, *, commits: bool) -> None:
    """Through a takeover: until it is rolled back, or as its messages once it is committed."""
    journal = store.open()
    kept, sent = upload(store, journal), upload(store, journal)
    (location,) = put(store, journal, kept)
    unit = Unit()
    unit.delete(location)
    unit.add_message([QUEUE], encode_message(record("")._replace(large=sent)))
    XaTransactions(journal).prepare(XID, unit)
    store.settle(journal)
    bodies_of(journal).unpin(sent.id)
    journal.close(drain=True)
    leave_an_orphan(store, sent.id + 1_000)
    store.advance_fence(2)
    successor = store.open(token=2)
    wait_gone(store, sent.id + 1_000)
    assert stored(store) == {kept.id, sent.id}
    transactions = XaTransactions(successor)
    if commits:
        (new,) = transactions.commit(XID)
        store.settle(successor)
        wait_gone(store, kept.id)
        assert read(store, successor, sent) == DATA
        remove(store, successor, new)
        wait_gone(store, sent.id)
    else:
        transactions.rollback(XID)
        store.settle(successor)
        wait_gone(store, sent.id)
        assert read(store, successor, kept) == DATA


@pytest.mark.parametrize("store", FILE_AND_SQLITE, indirect=True)
def test_an_upload_is_bounded(store: JournalStore) -> None:
    """More than its window is not wanted until the store has taken some of it."""
    journal = store.open()
    told: list[int] = []
    uploading = bodies_of(journal).upload(lambda: told.append(1), lambda _: None)
    wanted = [uploading.wants_more]
    uploading.add(b"x" * UPLOAD_WINDOW_BYTES)
    wanted.append(uploading.wants_more)
    store.loop.run_until(lambda: told, "there is room again")
    wanted.append(uploading.wants_more)
    assert wanted == [True, False, True]
    uploading.abort()


@pytest.mark.parametrize("store", FILE_AND_SQLITE, indirect=True)
def test_an_upload_that_is_given_up_is_told_of_nothing(store: JournalStore) -> None:
    """Its client is gone, or was refused, while it waited for room."""
    journal = store.open()
    told: list[str] = []
    gone, going_on = (
        bodies_of(journal).upload(partial(told.append, name), told_nothing)
        for name in ("gone", "going on")
    )
    for one in (gone, going_on):
        one.add(b"x" * UPLOAD_WINDOW_BYTES)
        assert not one.wants_more
    gone.abort()
    store.loop.run_until(lambda: told and not gone.in_flight, "both have room again")
    assert told == ["going on"]
    going_on.abort()


def told_nothing(outcome: object) -> None:
    """Hear of the end of an upload that has none."""
    pytest.fail(f"told of {outcome}")


@pytest.mark.parametrize("store", FILE_AND_SQLITE, indirect=True)
def test_a_body_that_is_missing_is_said_to_be(store: JournalStore) -> None:
    """Reading it fails; it does not end early."""
    journal = store.open()
    body = upload(store, journal)
    if isinstance(store, FileJournalStore):
        (store.settings.large_messages_directory / f"{body.id}.msg").unlink()
    else:
        assert isinstance(store, SqlJournalStore)
        table = table_of(store)
        with store.database.engine.begin() as connection:
            connection.execute(delete(table).where(table.c.position == 1))
    with pytest.raises(LargeBodyError, match="missing"):
        read(store, journal, body)


def test_a_fenced_node_adds_no_piece(sql_store: SqlJournalStore) -> None:
    """Pieces are refused as batches are, and the node stops."""
    journal = sql_store.open()
    sql_store.advance_fence(2)
    uploading = begin(journal, [])
    uploading.add(DATA)
    sql_store.loop.run_until(lambda: sql_store.failures, "the journal fails")
    (failure,) = sql_store.failures
    assert isinstance(failure, Fenced)
    assert stored(sql_store) == set()


def test_a_fenced_node_removes_no_body(sql_store: SqlJournalStore) -> None:
    """What it takes for unneeded may be what its successor is about to refer to."""
    journal = sql_store.open()
    body = upload(sql_store, journal)
    bodies = SqlBodies(sql_store.database, sql_store.settings, 1)
    sql_store.advance_fence(2)
    with pytest.raises(Fenced):
        bodies.remove(body.id)
    assert stored(sql_store) == {body.id}
    bodies.close()


@pytest.mark.parametrize("server", ["sqlite"], indirect=True)
def test_the_history_keeps_a_body_until_it_is_pruned(sql_store: SqlJournalStore) -> None:
    """With journal-retention a body is there as long as the history has its message."""
    plain = sql_store.settings
    sql_store.settings = replace(plain, journal_retention=RetentionSettings(7))
    limits = replace(PATIENT, sweep_period_seconds=0.05)
    journal = sql_store.open(limits=limits)
    body = upload(sql_store, journal)
    (location,) = put(sql_store, journal, body)
    remove(sql_store, journal, location)
    other = upload(sql_store, journal)
    bodies_of(journal).unpin(other.id)
    wait_gone(sql_store, other.id)
    assert read(sql_store, journal, body) == DATA
    history = plain.message_history_table_name
    with sql_store.database.engine.begin() as connection:
        connection.exec_driver_sql(f'DELETE FROM "{history}"')
    wait_gone(sql_store, body.id)


def test_compacted_files_still_name_the_bodies(tmp_path: Path) -> None:
    """What refers to a body is read back from compacted files, of one queue or of two."""
    store = FileJournalStore(tmp_path)
    journal = store.open()
    bodies = [upload(store, journal), upload(store, journal), upload(store, journal)]
    put(store, journal, bodies[0])
    put(store, journal, bodies[1], (QUEUE, OTHER_QUEUE))
    (gone,) = put(store, journal, bodies[2])
    remove(store, journal, gone)
    journal.close(drain=True)
    compact(store.settings)
    leave_an_orphan(store, bodies[2].id + 1_000)
    store.advance_fence(2)
    successor = store.open(token=2)
    wait_gone(store, bodies[2].id, bodies[2].id + 1_000)
    assert stored(store) == {bodies[0].id, bodies[1].id}
    assert read(store, successor, bodies[1]) == DATA
    store.close()


def test_a_node_that_was_stopped_removes_nothing_of_its_successors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped before its sweep lists the bodies, it wakes up when its successor has stored one."""
    store = FileJournalStore(tmp_path)
    is_stopped, go_on = threading.Event(), threading.Event()
    listing = bodies_on_files.list_bodies

    def stopped_once(directory: Path) -> list[int]:
        if not is_stopped.is_set():
            is_stopped.set()
            go_on.wait(120)
        return listing(directory)

    monkeypatch.setattr(bodies_on_files, "list_bodies", stopped_once)
    store.open()
    wait_until(is_stopped.is_set, what="the first node is about to look for bodies")
    successor = store.open(token=2)
    body = upload(store, successor)
    put(store, successor, body)
    go_on.set()
    store.loop.run_until(lambda: store.failures, "the first node notices that it is fenced")
    assert isinstance(store.failures[0], Fenced)
    assert read(store, successor, body) == DATA
    store.close()


def test_a_node_that_is_fenced_removes_no_body(tmp_path: Path) -> None:
    """What it knows of who refers to a body is as old as its fence."""
    store = FileJournalStore(tmp_path)
    first = open_files(store.settings, token=1, id_block=10)
    bodies = FileBodies(store.settings, first.large_references, first.fence, horizon=7)
    bodies.path_of(7).touch()
    successor = open_files(store.settings, token=2, id_block=10)
    with pytest.raises(Fenced):
        bodies.remove(7)
    assert bodies.path_of(7).exists()
    bodies.close()
    for opened in (successor, first):
        opened.close(seal=False)


def test_a_sweep_leaves_alone_what_was_given_out_later(tmp_path: Path) -> None:
    """Stopped after its look at the fence, a node has nothing of its successor's in its hands."""
    store = FileJournalStore(tmp_path)
    opened = open_files(store.settings, token=1, id_block=10)
    bodies = FileBodies(store.settings, opened.large_references, opened.fence, horizon=7)
    for body_id in (7, 8):
        bodies.path_of(body_id).touch()
    assert bodies.sweep(0, 50) == ([7], None)
    bodies.close()
    opened.close(seal=True)


def test_a_node_that_handed_back_does_not_hear_of_its_late_uploads(
    sql_store: SqlJournalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A piece that is on its way while the journal is closed meets the successor's fence later."""
    # Closing waits in vain for the thread with the piece, and for that alone.
    journal = sql_store.open(limits=replace(PATIENT, abandon_timeout_ms=1_000))
    is_stopped, go_on = threading.Event(), threading.Event()
    writing = SqlBodies.write

    def stopped(bodies: SqlBodies, pieces: Sequence[Piece]) -> None:
        is_stopped.set()
        go_on.wait(120)
        writing(bodies, pieces)

    monkeypatch.setattr(SqlBodies, "write", stopped)
    begin(journal, []).add(DATA)
    assert is_stopped.wait(120)
    assert journal.close(drain=True)
    sql_store.advance_fence(2)
    go_on.set()
    bodies_of(journal).join(120)
    sql_store.settle(sql_store.open(token=2))
    assert sql_store.failures == []


class ScriptedBodies(BodyStore):
    """A store that does as ``on_write`` says with pieces, and keeps no body."""

    def __init__(self, on_write: Callable[[Sequence[Piece]], object] = lambda _: None) -> None:
        self.on_write = on_write
        self.removed: list[int] = []
        self.closed = threading.Event()

    @override
    def write(self, pieces: Sequence[Piece]) -> None:
        self.on_write(pieces)

    @override
    def finish(self, body_id: int) -> None:
        pass

    @override
    def read(self, body_id: int, position: int) -> bytes:
        raise LargeBodyError(f"piece {position} of body {body_id} is not kept")

    @override
    def sweep(self, after_id: int, limit: int) -> tuple[list[int], int | None]:
        return [after_id + limit], None

    @override
    def remove(self, body_id: int) -> bool:
        self.removed.append(body_id)
        return True

    @override
    def close(self) -> None:
        self.closed.set()


def away(times: float, asked: threading.Event | None = None) -> Callable[[object], None]:
    """Return what does not answer so often, or never."""
    left = times

    def write(_: object) -> None:
        nonlocal left
        if asked is not None:
            asked.set()
        left -= 1
        if left >= 0:
            raise StoreUnavailable("the database is not reachable")

    return write


def in_memory(
    store: BodyStore, loop: Loop, still_valid: Callable[[], bool] = lambda: True
) -> LargeMessages:
    """Return bodies whose thread is not begun yet."""
    ids = iter(range(1, 100))
    return LargeMessages(
        store,
        next_id=lambda: next(ids),
        post=loop.post,
        still_valid=still_valid,
        failed=lambda _: None,
    )


def test_bodies_are_removed_while_others_keep_coming() -> None:
    """Uploads that never end do not let what is done with pile up."""
    store = ScriptedBodies()
    bodies = in_memory(store, Loop())
    uploading = bodies.upload(lambda: None, lambda _: None)
    piece = Piece(uploading.body_id, 0, b"piece")

    def write_more(_: object) -> None:
        if not store.removed:
            bodies.submit(uploading, piece)

    store.on_write = write_more
    bodies.submit(uploading, piece)
    bodies.start()
    wait_until(lambda: store.removed, what="a body is removed")
    bodies.close()
    bodies.join(120)


def test_bodies_are_removed_as_fast_as_they_are_let_go() -> None:
    """However many there are at a time, and though others keep coming: else the disk fills."""
    store = ScriptedBodies()
    bodies = in_memory(store, Loop())
    uploading = bodies.upload(lambda: None, lambda _: None)
    piece = Piece(uploading.body_id, 0, b"piece")
    removed: list[int] = []

    def write_more(pieces: Sequence[Piece]) -> None:
        if not pieces:
            return
        removed.append(len(store.removed))
        if len(removed) < 4:
            bodies.unlinked(range(100 * len(removed), 100 * len(removed) + 50))
            bodies.submit(uploading, piece)

    store.on_write = write_more
    bodies.submit(uploading, piece)
    bodies.start()
    wait_until(lambda: len(removed) == 4, what="four pieces are written")
    bodies.close()
    bodies.join(120)
    assert all(now >= 50 * turn for turn, now in enumerate(removed[1:])), removed


@pytest.mark.parametrize("refusal", [PermanentStoreError, JournalIOError])
def test_what_the_store_does_not_take_of_a_body_is_refused_to_its_client_alone(
    refusal: type[OrthiaError],
) -> None:
    """Bodies of others that were written with it are stored, whole and with their checksums."""
    loop = Loop()

    def refuse(pieces: Sequence[Piece]) -> None:
        """All of them or none."""
        if any(piece.data == b"poison" for piece in pieces):
            raise refusal("it is poison")

    bodies = in_memory(ScriptedBodies(refuse), loop)
    outcomes: dict[int, LargeBody | OrthiaError] = {}
    for number in range(1, 6):
        uploading = bodies.upload(lambda: None, partial(outcomes.__setitem__, number))
        uploading.add(b"poison" if number == 3 else b"piece")
        uploading.finish()
    bodies.start()
    loop.run_until(lambda: len(outcomes) == 5, "all are told")
    bodies.close()
    bodies.join(120)
    assert isinstance(outcomes.pop(3), refusal)
    expected = {number: LargeBody(number, 5, zlib.crc32(b"piece")) for number in (1, 2, 4, 5)}
    assert outcomes == expected


@pytest.mark.parametrize(
    ("valid", "is_stored"), [([False, True, False, True], True), ([True, False, False], False)]
)
def test_a_lease_that_lapses_for_a_moment_gives_no_piece_up(
    valid: list[bool], is_stored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A renewal may be answered late; a client would be refused by a node that is live."""
    monkeypatch.setattr(orthia.journal.engine.body_keeper, "pause_seconds", lambda _: 0.0)
    loop = Loop()
    states = iter(valid)
    bodies = in_memory(ScriptedBodies(away(len(valid))), loop, lambda: next(states))
    outcomes: list[LargeBody | OrthiaError] = []
    uploading = bodies.upload(lambda: None, outcomes.append)
    uploading.add(b"piece")
    uploading.finish()
    bodies.start()
    loop.run_until(lambda: outcomes, "it is told")
    bodies.close()
    bodies.join(120)
    assert [isinstance(one, LargeBody) for one in outcomes] == [is_stored]
    assert next(states, None) is None


def test_a_store_that_is_away_keeps_no_thread_of_a_journal_that_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Though the lease is valid: the step that failed is the last."""
    monkeypatch.setattr(orthia.journal.engine.body_keeper, "pause_seconds", lambda _: 0.001)
    asked = threading.Event()
    store = ScriptedBodies(away(float("inf"), asked))
    bodies = in_memory(store, Loop())
    bodies.upload(lambda: None, lambda _: None).add(b"piece" * PIECE_BYTES)
    bodies.start()
    assert asked.wait(120)
    bodies.close()
    assert store.closed.wait(120)


def test_nothing_is_told_of_a_body_once_the_journal_is_closed() -> None:
    """Not what was posted to the loop before, either: whoever sent it has ended by then."""
    store = ScriptedBodies()
    loop = Loop()
    bodies = in_memory(store, loop)
    outcomes: list[LargeBody | OrthiaError] = []
    uploading = bodies.upload(lambda: None, outcomes.append)
    uploading.add(b"piece")
    uploading.finish()
    bodies.start()
    wait_until(lambda: loop.posted >= 2, what="the piece and the body are stored")
    bodies.close()
    loop.run_posted()
    assert outcomes == []
    bodies.join(60)


@pytest.mark.parametrize("how", ["unlinked", "unpinned", "asked before"])
def test_what_is_needed_while_somebody_reads_is_removed_behind_the_last(how: str) -> None:
    """Whatever it was needed for, and whether the thread was to look at it by then."""
    store = ScriptedBodies()
    loop = Loop()
    bodies = in_memory(store, loop)
    outcomes: list[LargeBody | OrthiaError] = []
    kept = 77
    if how != "unlinked":
        bodies.pin(kept)
        bodies.unlinked([kept])
    if how == "asked before":
        bodies.unpin(kept)
    first, second = bodies.withhold(), bodies.withhold()
    if how == "unpinned":
        bodies.unpin(kept)
    else:
        bodies.unlinked([kept])
    bodies.start()

    def pass_some_time() -> None:
        """Wait until the thread has done what it was asked before."""
        for _ in range(3):
            outcomes.clear()
            bodies.upload(lambda: None, outcomes.append).finish()
            loop.run_until(lambda: outcomes, "it is stored")

    pass_some_time()
    assert kept not in store.removed
    bodies.let_go(first)
    pass_some_time()
    assert kept not in store.removed, "somebody reads on"
    third = bodies.withhold()  # who cannot have seen it
    bodies.let_go(second)
    wait_until(lambda: kept in store.removed, what="it is removed")
    bodies.let_go(third)
    bodies.close()
    bodies.join(120)
