"""What every journal keeps of when messages leave their queues by themselves."""

import contextlib

import pytest
from sqlalchemy import MetaData, delete, select

from orthia.config.errors import OrthiaError
from orthia.journal import MessageJournal, MessageLocation, Unit, encode_message
from orthia.journal.errors import Fenced
from orthia.journal.model.fields import Fields, encode_fields
from orthia.journal.model.moments import FIRST_MOMENT, MessageTime, MomentKind, MomentPlace
from orthia.journal.model.records import RemovalReason
from orthia.journal.model.windows import Reached
from orthia.journal.sql.left_times import ROWS_IN_STEP, SqlLeftTimes
from orthia.journal.sql.tables import times_table
from tests.journal.support import (
    ALWAYS,
    NO_BYTE_LIMIT,
    OTHER_QUEUE,
    QUEUE,
    JournalStore,
    SqlJournalStore,
    record,
)
from tests.support.waiting import wait_until

LONG_AGO = 1_000_000
"""Milliseconds since 1970: due by any clock."""
NOT_YET = 2**52
"""After whatever a test reads."""


def later(at_ms: int, text: str = "") -> bytes:
    """Return an encoded message that is due at ``at_ms``."""
    return encode_message(record(text)._replace(stated=encode_fields(Fields(delivery_ms=at_ms))))


def expiring(at_ms: int, text: str = "") -> bytes:
    """Return an encoded message that expires at ``at_ms``."""
    return encode_message(record(text)._replace(expires_ms=at_ms))


def put(
    store: JournalStore,
    journal: MessageJournal,
    *payloads: bytes,
    queues: tuple[int, ...] = (QUEUE,),
) -> list[MessageLocation]:
    """Store messages as one unit."""
    unit = Unit()
    for payload in payloads:
        unit.add_message(queues, payload)
    locations = journal.append_unit(unit)
    store.settle(journal)
    return locations


def reached(
    store: JournalStore,
    journal: MessageJournal,
    kind: MomentKind = MomentKind.DUE,
    *,
    after: MomentPlace = FIRST_MOMENT,
    up_to_ms: int = ALWAYS,
    limit: int = 100,
    max_bytes: int = NO_BYTE_LIMIT,
) -> Reached:
    """Read whose moment has come, and wait for it."""
    answers: list[Reached | OrthiaError] = []
    journal.read_reached(kind, after, up_to_ms, limit, max_bytes, answers.append)
    store.loop.run_until(lambda: answers, "whose moment has come")
    (answer,) = answers
    assert isinstance(answer, Reached)
    return answer


def bodies(found: Reached) -> list[str]:
    """Return the bodies of what was read."""
    return [one.message.record.body.decode() for one in found.messages]


def test_what_is_due_is_read_in_the_order_of_its_moments(store: JournalStore) -> None:
    """What was sent for an earlier moment comes first, of one moment what was sent first."""
    journal = store.open()
    moments = [(LONG_AGO + 5, "d"), (LONG_AGO, "a"), (LONG_AGO + 1, "b"), (LONG_AGO + 1, "c")]
    put(store, journal, *(later(at, text) for at, text in moments))
    found = reached(store, journal)
    assert bodies(found) == ["a", "b", "c", "d"]
    assert [one.at_ms for one in found.messages] == [LONG_AGO, *[LONG_AGO + 1] * 2, LONG_AGO + 5]
    assert {one.queue_id for one in found.messages} == {QUEUE}
    assert (found.next_after, found.next_at_ms) == (None, None)


def test_no_moment_comes_too_early_by_the_stores_clock(store: JournalStore) -> None:
    """Nor before it is asked for, whatever the node believes; and it says when to ask again.

    Those that expire are not among those that are due.
    """
    journal = store.open()
    put(store, journal, *(later(at, str(at)) for at in (LONG_AGO, LONG_AGO + 2, NOT_YET)))
    put(store, journal, expiring(LONG_AGO, "expired"))
    found = reached(store, journal, up_to_ms=ALWAYS)
    assert bodies(found) == [str(LONG_AGO), str(LONG_AGO + 2)]
    assert found.next_at_ms == NOT_YET
    assert LONG_AGO < found.now_ms < NOT_YET
    earlier = reached(store, journal, up_to_ms=LONG_AGO + 1)
    assert (bodies(earlier), earlier.next_at_ms) == ([str(LONG_AGO)], LONG_AGO + 2)
    assert bodies(reached(store, journal, MomentKind.EXPIRES)) == ["expired"]


def test_what_is_read_at_once_is_bounded_and_goes_on(store: JournalStore) -> None:
    """Many of one moment are read in pieces, by number and by size, each once."""
    journal = store.open()
    put(store, journal, *(later(LONG_AGO, f"{n:04}") for n in range(50)))
    seen: list[str] = []
    place: MomentPlace | None = FIRST_MOMENT
    while place is not None:
        found = reached(store, journal, after=place, limit=7)
        assert 0 < len(found.messages) <= 7
        seen += bodies(found)
        place = found.next_after
    assert seen == [f"{n:04}" for n in range(50)]
    assert bodies(reached(store, journal, max_bytes=1)) == ["0000"]


def test_a_message_that_leaves_takes_its_moment_along(store: JournalStore) -> None:
    """A delete by its location, the move of what is due, and the end of a window's message."""
    journal = store.open()
    first, second, third = put(store, journal, *(expiring(LONG_AGO, text) for text in "abc"))
    journal.delete([first])
    unit = Unit()
    unit.delete(second, RemovalReason.DUE)
    journal.append_unit(unit)
    store.settle(journal)
    found = reached(store, journal, MomentKind.EXPIRES)
    assert (bodies(found), found.gone) == (["c"], [])
    (message,) = store.window(journal).messages
    assert message.location == third
    journal.delete([message.location])
    store.settle(journal)
    found = reached(store, journal, MomentKind.EXPIRES)
    assert (found.messages, found.gone) == ([], [])


def test_each_queue_of_a_message_has_its_moment(store: JournalStore) -> None:
    """A message of two queues expires in each, and is gone from the one that it leaves."""
    journal = store.open()
    locations = put(store, journal, expiring(LONG_AGO, "both"), queues=(QUEUE, OTHER_QUEUE))
    found = reached(store, journal, MomentKind.EXPIRES)
    assert [one.queue_id for one in found.messages] == [QUEUE, OTHER_QUEUE]
    assert [one.message.location for one in found.messages] == locations
    journal.delete(locations[:1])
    store.settle(journal)
    left = reached(store, journal, MomentKind.EXPIRES)
    assert [one.queue_id for one in left.messages] == [OTHER_QUEUE]


def test_the_next_node_finds_the_moments(store: JournalStore) -> None:
    """What is due outlives the node that took it, also in units with other changes."""
    journal = store.open()
    put(store, journal, later(NOT_YET, "later"), later(LONG_AGO, "due"), expiring(LONG_AGO, "old"))
    put(store, journal, expiring(LONG_AGO, "both"), queues=(QUEUE, OTHER_QUEUE))
    journal.close(drain=True)
    store.advance_fence(2)
    following = store.open(token=2)
    found = reached(store, following)
    assert (bodies(found), found.next_at_ms) == (["due"], NOT_YET)
    assert bodies(reached(store, following, MomentKind.EXPIRES)) == ["old", "both", "both"]


def test_what_cannot_be_read_is_told_and_stays(store: JournalStore) -> None:
    """A damaged record is no message whose moment has come, nor one that is gone."""
    journal = store.open()
    damaged, _ = put(store, journal, later(LONG_AGO, "damaged"), later(LONG_AGO, "whole"))
    store.spoil(damaged.seq, b"\0" * 64)
    found = reached(store, journal)
    assert bodies(found) == ["whole"]
    assert [error.seq for error in found.corrupt] == [damaged.seq]
    assert found.gone == []


def test_a_plain_message_has_no_moment(store: JournalStore) -> None:
    """Nothing is kept of messages that neither expire nor are to come later."""
    journal = store.open()
    (location,) = put(store, journal, encode_message(record("plain")))
    assert not location.is_timed
    assert reached(store, journal).next_at_ms is None


def test_deliveries_in_vain_are_known_to_the_next_node(store: JournalStore) -> None:
    """How often, and until when it waits; the latest count, and none of a message that left."""
    journal = store.open()
    plain, gone, expires = put(
        store,
        journal,
        encode_message(record("plain")),
        encode_message(record("gone")),
        expiring(NOT_YET, "expires"),
    )
    both = put(store, journal, encode_message(record("both")), queues=(QUEUE, OTHER_QUEUE))
    for attempts in (1, 2):
        unit = Unit()
        for location in (plain, gone, expires, both[1]):
            queue = OTHER_QUEUE if location == both[1] else QUEUE
            at_ms = NOT_YET if location == expires else 0
            kind = MomentKind.EXPIRES if at_ms else MomentKind.NEVER
            unit.count_attempts(
                MessageTime(location.seq, queue, kind, at_ms, attempts, 100 * attempts)
            )
        journal.append_unit(unit)
        store.settle(journal)
    journal.delete([gone._replace(is_timed=True)])
    store.settle(journal)
    journal.close(drain=True)
    store.advance_fence(2)
    following = store.open(token=2)
    known = {
        (one.record.body, queue): (one.attempts, one.retry_ms)
        for queue in (QUEUE, OTHER_QUEUE)
        for one in store.window(following, queue).messages
    }
    assert known == {
        (b"plain", QUEUE): (2, 200),
        (b"expires", QUEUE): (2, 200),
        (b"both", QUEUE): (0, 0),
        (b"both", OTHER_QUEUE): (2, 200),
    }
    assert reached(store, following, MomentKind.EXPIRES).next_at_ms == NOT_YET
    for queue in (QUEUE, OTHER_QUEUE):
        following.delete([one.location for one in store.window(following, queue).messages])
    store.settle(following)
    assert store.rows() == {}


def times_of(sql_store: SqlJournalStore) -> set[int]:
    """Return the seqs of the rows of MESSAGE_TIMES."""
    name, dialect = sql_store.settings.message_times_table_name, sql_store.database.dialect
    table = times_table(MetaData(), name, dialect)
    with sql_store.database.engine.connect() as connection:
        return set(connection.execute(select(table.c.seq)).scalars())


def counted(journal: MessageJournal, seqs: list[int], kind: MomentKind, at_ms: int = 0) -> None:
    """Store that messages were delivered once in vain."""
    unit = Unit()
    for seq in seqs:
        unit.count_attempts(MessageTime(seq, QUEUE, kind, at_ms, attempts=1))
    journal.append_unit(unit)


def test_attempts_of_messages_that_are_gone_are_swept_at_open(sql_store: SqlJournalStore) -> None:
    """In several steps, and no other row: what has a moment is met when that comes."""
    journal = sql_store.open()
    seqs = sql_store.append(journal, *["x"] * (2 * ROWS_IN_STEP + 10))
    (timed,) = put(sql_store, journal, expiring(NOT_YET))
    (due,) = put(sql_store, journal, later(NOT_YET))
    counted(journal, seqs, MomentKind.NEVER)
    counted(journal, [timed.seq], MomentKind.EXPIRES, NOT_YET)
    sql_store.settle(journal)
    kept = {*seqs[:3], *seqs[ROWS_IN_STEP - 1 : ROWS_IN_STEP + 2], seqs[-2]}
    journal.close(drain=True)
    gone = [seq for seq in seqs if seq not in kept]
    with sql_store.database.engine.begin() as connection:
        for some in (gone[:ROWS_IN_STEP], gone[ROWS_IN_STEP:]):
            rows = delete(sql_store.messages).where(sql_store.messages.c.seq.in_(some))
            connection.execute(rows)
    assert times_of(sql_store) == {*seqs, timed.seq, due.seq}
    sql_store.advance_fence(2)
    sql_store.open(token=2)
    expected = {*kept, timed.seq, due.seq}
    wait_until(lambda: times_of(sql_store) == expected, what="the attempts of what is gone to go")


def test_a_fenced_node_sweeps_nothing(sql_store: SqlJournalStore) -> None:
    """Its successor does; and nobody looks at what the node itself may have stored."""
    journal = sql_store.open()
    seqs = sql_store.append(journal, "a", "b")
    counted(journal, seqs, MomentKind.NEVER)
    sql_store.settle(journal)
    journal.close(drain=True)
    for seq in seqs:
        sql_store.remove(seq)

    def left(up_to_seq: int) -> contextlib.closing[SqlLeftTimes]:
        return contextlib.closing(
            SqlLeftTimes(sql_store.database, sql_store.settings, 1, up_to_seq)
        )

    with left(up_to_seq=seqs[0]) as sweep:
        assert sweep.sweep(0) == (1, None)
    assert times_of(sql_store) == {seqs[1]}
    sql_store.advance_fence(2)
    with left(up_to_seq=seqs[1]) as sweep, pytest.raises(Fenced):
        sweep.sweep(0)
    assert times_of(sql_store) == {seqs[1]}
