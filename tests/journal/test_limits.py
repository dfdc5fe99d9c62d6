"""What is too large is refused beforehand, and nothing waits without a bound."""

import pytest

from orthia.journal import JournalLimits, MemoryJournal, RecordTooLarge, Unit, encode_message
from orthia.journal.engine.batch import BatchReport
from orthia.journal.engine.intake import Intake
from orthia.journal.model.changes import MessageLocation
from orthia.journal.model.unit import Appended
from tests.journal.support import OTHER_QUEUE, QUEUE, SqlJournalStore, payload, record
from tests.support.servers import MYSQL_FAMILY, ServerProcess


def test_a_record_too_large_harms_nobody_else() -> None:
    """A message the store cannot take is refused when appended, whole unit and all."""
    journal = MemoryJournal(max_record_bytes=100)
    done: list[int] = []
    journal.append_message(QUEUE, b"x" * 100, lambda: done.append(1))
    with pytest.raises(RecordTooLarge, match="101 bytes is too large for the journal"):
        journal.append_message(QUEUE, b"x" * 101, lambda: done.append(2))
    unit = Unit(lambda: done.append(3))
    unit.add_message([QUEUE], b"x")
    unit.add_message([QUEUE], b"x" * 101)
    with pytest.raises(RecordTooLarge):
        journal.append_unit(unit)
    journal.append_message(QUEUE, b"x", lambda: done.append(4))
    journal.run_posted()
    assert done == [1, 4]
    assert len(journal.store.messages) == 2


def test_fewer_messages_wait_for_a_slow_store() -> None:
    """The journal is full when storing what waits takes long, however few they are."""
    waiting: list[Appended] = []
    intake = Intake(first_id=1, max_record_bytes=100, limits=JournalLimits(), submit=waiting.append)
    full_at: list[int] = []
    for seconds in (*[0.01] * 2, *[1.0] * 5, *[0.01] * 5):
        while not intake.is_full:
            intake.message(QUEUE, b"x", None)
        full_at.append(len(waiting))
        intake.complete(waiting, BatchReport(2_000, 2_000, 0, 0, seconds, 1))
        waiting.clear()
    assert (full_at[0], full_at[6], full_at[-1] > 3_000) == (4_000, 1_000, True)


def test_what_waits_for_a_lock_keeps_nobody_from_being_read() -> None:
    """It is bounded by itself: what others send does not wait behind it."""
    waiting: list[Appended] = []
    limits = JournalLimits(max_waiting_rows=100, max_put_aside_rows=150)
    intake = Intake(first_id=1, max_record_bytes=100, limits=limits, submit=waiting.append)
    room: list[bool] = []
    intake.register_room_listener(lambda: room.append(intake.is_full))
    full: list[bool] = []
    for _ in range(2):
        intake.deletion([MessageLocation(seq) for seq in range(100)], None)
        full.append(intake.is_full)
        for _ in range(2):  # the second time after it waited for room
            intake.put_aside([unit for unit in waiting[-1:] if isinstance(unit, Unit)])
        full.append(intake.is_full)
    assert (full, room) == ([True, False, True, True], [False])
    for unit in waiting:
        intake.complete([unit], BatchReport(1, 0, 100, 0, 0.01, 1))
    assert room == [False, False]
    intake.deletion([MessageLocation(seq) for seq in range(99)], None)
    assert not intake.is_full


@pytest.mark.parametrize("server", MYSQL_FAMILY, indirect=True)
@pytest.mark.parametrize("queues", [[QUEUE], [QUEUE, OTHER_QUEUE]])
def test_the_largest_record_fits_the_packet(sql_store: SqlJournalStore, queues: list[int]) -> None:
    """A record of exactly the announced size is stored and read back, alone or among others."""
    journal = sql_store.open()
    empty = len(payload(""))
    largest = encode_message(record("x" * (journal.max_record_bytes - empty)))
    unit = Unit()
    unit.add_message([QUEUE], payload("before"))
    unit.add_message(queues, largest)
    unit.add_message([QUEUE], payload("after"))
    journal.append_unit(unit)
    journal.append_message(QUEUE, largest, None)
    sql_store.settle(journal)
    sizes = [len(body) + empty for body in sql_store.bodies(journal)]
    assert sizes == [
        len(payload("before")),
        journal.max_record_bytes,
        len(payload("after")),
        journal.max_record_bytes,
    ]
    assert not sql_store.failures


def test_closing_is_bounded_when_the_server_hangs(private_server: ServerProcess) -> None:
    """A database that does not answer cannot hold a stop up, nor have anything confirmed."""
    settings = private_server.settings(private_server.create_database())
    store = SqlJournalStore(settings)
    limits = JournalLimits(drain_timeout_ms=300, abandon_timeout_ms=300)
    journal = store.open(limits=limits)
    store.append(journal, "stored")
    done: list[int] = []
    private_server.pause()
    try:
        journal.append_message(QUEUE, payload(), lambda: done.append(1))
        assert journal.close(drain=True) is False
    finally:
        private_server.resume()
    store.close()
    store.loop.run_posted()
    assert done == []


def test_closing_does_not_wait_for_a_server_that_is_gone(private_server: ServerProcess) -> None:
    """An abandoning close ends the retries at once."""
    store = SqlJournalStore(private_server.settings(private_server.create_database()))
    journal = store.open(limits=JournalLimits())
    store.append(journal, "stored")
    private_server.kill()
    journal.append_message(QUEUE, payload(), None)
    assert journal.close(drain=False) is False
    store.close()
    assert not store.failures
