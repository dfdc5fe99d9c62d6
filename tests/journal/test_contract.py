"""What every journal promises, the in-memory twin included."""

import itertools
from dataclasses import replace
from functools import partial

import pytest

from orthia.config.address_settings import RoutingType
from orthia.journal import (
    AddressBinding,
    BatchReport,
    CorruptRecord,
    Fenced,
    JournalClosed,
    LeaseExpired,
    MessageLocation,
    QueueBinding,
    QueueCounts,
    QueuePlace,
    Unit,
)
from orthia.journal.model.windows import BEGINNING
from tests.journal.support import (
    ALWAYS,
    OTHER_QUEUE,
    PATIENT,
    QUEUE,
    THIRD_QUEUE,
    WORK,
    JournalStore,
    payload,
    record,
)


def test_callers_are_completed_in_append_order(store: JournalStore) -> None:
    """Messages, units and deletes are completed in the order they were appended."""
    journal = store.open()
    order: list[int] = []
    first = journal.append_message(QUEUE, payload(), lambda: order.append(1))
    unit = Unit(lambda: order.append(2))
    unit.add_message([QUEUE, OTHER_QUEUE], payload())
    journal.append_unit(unit)
    journal.delete([MessageLocation(first)], lambda: order.append(3))
    journal.append_unit(Unit(lambda: order.append(4)))
    journal.append_message(QUEUE, payload(), lambda: order.append(5))
    store.loop.run_until(lambda: 5 in order, "the last completion")
    assert order == [1, 2, 3, 4, 5]


def test_no_caller_is_completed_within_its_own_append(store: JournalStore) -> None:
    """A completion comes through the loop, even if the store was quick."""
    journal = store.open()
    done: list[int] = []
    journal.append_message(QUEUE, payload(), lambda: done.append(1))
    assert not done
    store.loop.run_until(lambda: done, "the completion")


def test_a_completed_message_is_stored_under_the_journals_epoch(store: JournalStore) -> None:
    """When a caller is completed its row is in the table, with the token it was written under."""
    (seq,) = store.append(store.open(), "one")
    assert store.rows() == {seq: (QUEUE, 1)}


def test_last_committed_seq_moves_with_each_caller(store: JournalStore) -> None:
    """A caller that is being completed sees its own message as the last committed one."""
    journal = store.open()
    seen: list[int] = []
    seqs = [
        journal.append_message(QUEUE, payload(), lambda: seen.append(journal.last_committed_seq))
        for _ in range(20)
    ]
    store.loop.run_until(lambda: len(seen) == len(seqs), "all completions")
    assert seen == seqs


def test_a_window_shows_what_was_stored(store: JournalStore) -> None:
    """A window has the messages of its queue in order, decoded, with where to delete them."""
    journal = store.open()
    empty = store.window(journal)
    assert (empty.messages, empty.corrupt, empty.exhausted) == ([], [], True)
    seqs = store.append(journal, "a", "b", "c")
    store.append(journal, "elsewhere", queue=OTHER_QUEUE)
    window = store.window(journal)
    assert [m.record for m in window.messages] == [record("a"), record("b"), record("c")]
    assert [m.seq for m in window.messages] == seqs
    assert [m.location for m in window.messages] == [MessageLocation(seq) for seq in seqs]
    assert {m.epoch for m in window.messages} == {1}
    assert window.exhausted
    assert not window.corrupt


def test_a_window_is_bounded_by_messages_and_resumes(store: JournalStore) -> None:
    """Windows of three walk a queue of nine, each once; the last one knows that it ends with it."""
    journal = store.open()
    texts = [f"message {number}" for number in range(9)]
    store.append(journal, *texts)
    after, read = 0, []
    for expected_exhausted in (False, False, True):
        window = store.window(journal, after=after, max_messages=3)
        assert window.exhausted is expected_exhausted
        read += [m.record.body.decode() for m in window.messages]
        after = window.next_after_seq
    assert read == texts
    assert store.window(journal, after=after).messages == []


def test_a_window_is_bounded_by_bytes(store: JournalStore) -> None:
    """It stops before the message that would exceed its bytes, and resumes with it.

    The first is always read, so that a queue cannot get stuck.
    """
    journal = store.open()
    texts = ["x" * 1_000, "y" * 1_000, "z" * 1_000]
    store.append(journal, *texts)
    alone = store.window(journal, max_bytes=100)
    assert [m.record.body.decode() for m in alone.messages] == texts[:1]
    assert not alone.exhausted
    window = store.window(journal, max_bytes=2_500)
    assert [m.record.body.decode() for m in window.messages] == texts[:2]
    assert not window.exhausted
    rest = store.window(journal, after=window.next_after_seq, max_bytes=2_500)
    assert [m.record.body.decode() for m in rest.messages] == texts[2:]
    assert rest.exhausted


def test_a_window_ends_where_it_was_asked_to(store: JournalStore) -> None:
    """A row above ``up_to_seq`` is not shown: its caller may not be completed yet."""
    journal = store.open()
    first, second, third = store.append(journal, "a", "b", "c")
    window = store.window(journal, up_to=second)
    assert [m.seq for m in window.messages] == [first, second]
    assert window.exhausted
    assert window.next_after_seq == second
    assert [m.seq for m in store.window(journal, after=second).messages] == [third]


def test_queues_are_counted_in_chunks(store: JournalStore) -> None:
    """Chunks add up to each queue's depth; one looks at no more than its limit, however many."""
    journal = store.open()
    seqs = store.append(journal, *"abcde")
    others = store.append(journal, "elsewhere", queue=OTHER_QUEUE)
    unit = Unit()
    unit.add_message([QUEUE, THIRD_QUEUE], payload("both"))
    both, _ = journal.append_unit(unit)
    store.settle(journal)
    first = store.count(journal, BEGINNING, ALWAYS, 3)
    assert first[:2] == ({QUEUE: 3}, QueuePlace(QUEUE, seqs[2]))
    assert first.next_after is not None
    second = store.count(journal, first.next_after, ALWAYS, 4)
    assert second[:2] == ({QUEUE: 3, OTHER_QUEUE: 1}, QueuePlace(OTHER_QUEUE, others[0]))
    assert second.next_after is not None
    assert list(second.messages) == [QUEUE, OTHER_QUEUE]
    third = store.count(journal, second.next_after, ALWAYS, 4)
    size = len(payload("both"))
    assert second.payload_bytes[QUEUE] == 2 * len(payload("d")) + size
    assert third.payload_bytes == {THIRD_QUEUE: size}
    assert third[:2] == ({THIRD_QUEUE: 1}, None)
    assert store.count(journal, QueuePlace(QUEUE, both.seq), ALWAYS, 3).messages == {
        OTHER_QUEUE: 1,
        THIRD_QUEUE: 1,
    }


def test_what_is_newer_is_not_counted(store: JournalStore) -> None:
    """A count ends where it was asked to, in each queue."""
    journal = store.open()
    seqs = store.append(journal, "a", "b")
    store.append(journal, "c", queue=OTHER_QUEUE)
    store.append(journal, "d")
    counts = store.count(journal, BEGINNING, seqs[-1], 1_000)
    assert counts.messages.get(QUEUE) == 2
    assert not counts.messages.get(OTHER_QUEUE)
    assert counts.next_after is None


def test_a_journal_without_messages_is_counted(store: JournalStore) -> None:
    """There is nothing, and nowhere to go on."""
    journal = store.open()
    assert store.count(journal, BEGINNING, ALWAYS, 10) == QueueCounts({}, None, {})


def test_windows_and_counts_are_answered_in_turn(store: JournalStore) -> None:
    """Reads come back in the order they were asked for."""
    journal = store.open()
    store.append(journal, "a", "b")
    order: list[str] = []
    journal.read_window(QUEUE, 0, 100, 10, 1_000, lambda _: order.append("window"))
    journal.count(BEGINNING, 100, 10, lambda _: order.append("count"))
    journal.read_window(QUEUE, 0, 100, 10, 1_000, lambda _: order.append("window again"))
    store.loop.run_until(lambda: len(order) == 3, "all reads")
    assert order == ["window", "count", "window again"]


def test_a_deleted_message_is_gone(store: JournalStore) -> None:
    """A deleted message is in no window, and deleting it again does no harm."""
    journal = store.open()
    first, second = store.append(journal, "a", "b")
    journal.delete([MessageLocation(first)])
    journal.delete([MessageLocation(first)])
    store.settle(journal)
    assert store.rows() == {second: (QUEUE, 1)}


def test_a_message_of_several_queues_has_one_body(store: JournalStore) -> None:
    """Each queue's window shows the message; the table has its body once."""
    journal = store.open()
    unit = Unit()
    unit.add_message([QUEUE, OTHER_QUEUE], payload("shared"))
    first, second = journal.append_unit(unit)
    store.settle(journal)
    assert store.window(journal, QUEUE).messages[0].location == first
    assert store.window(journal, OTHER_QUEUE).messages[0].location == second
    assert first.body == second.body
    assert first.body is not None
    assert store.rows() == {
        first.body.seq: (None, 1),
        first.seq: (QUEUE, 1),
        second.seq: (OTHER_QUEUE, 1),
    }
    assert store.bodies(journal, OTHER_QUEUE) == ["shared"]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_the_body_goes_with_the_last_reference(store: JournalStore, order: tuple[int, ...]) -> None:
    """Whatever the order of deletes, the body stays until the last of them and no longer."""
    journal = store.open()
    unit = Unit()
    unit.add_message([QUEUE, OTHER_QUEUE, THIRD_QUEUE], payload("shared"))
    unit.add_message([QUEUE, OTHER_QUEUE], payload("neighbour"))
    locations = journal.append_unit(unit)
    body = locations[0].body
    assert body is not None
    for index in order[:-1]:
        journal.delete([locations[index]])
        store.settle(journal)
        assert body.seq in store.rows()
    journal.delete([locations[order[-1]]])
    store.settle(journal)
    left = store.rows()
    assert body.seq not in left
    assert len(left) == 3, "the neighbour's body and references"
    journal.delete(locations[3:])  # at once
    store.settle(journal)
    assert store.rows() == {}


def test_the_body_goes_with_the_last_reference_after_a_takeover(store: JournalStore) -> None:
    """References deleted by one live node and by the next take the body together."""
    journal = store.open()
    unit = Unit()
    unit.add_message([QUEUE, OTHER_QUEUE], payload("shared"))
    first, second = journal.append_unit(unit)
    journal.delete([second])
    store.settle(journal)
    journal.close(drain=True)
    store.advance_fence(2)
    successor = store.open(token=2)
    (message,) = store.window(successor).messages
    assert message.location == first
    successor.delete([message.location])
    store.settle(successor)
    assert store.rows() == {}


def test_a_unit_of_sends_and_deletes_is_stored_whole(store: JournalStore) -> None:
    """A client's transaction deletes what it consumed and stores what it sent."""
    journal = store.open()
    consumed, kept = store.append(journal, "consumed", "kept")
    done: list[int] = []
    unit = Unit(lambda: done.append(1))
    unit.add_message([QUEUE], payload("sent"))
    unit.delete(MessageLocation(consumed))
    (sent,) = journal.append_unit(unit)
    store.loop.run_until(lambda: done, "the unit")
    assert set(store.rows()) == {kept, sent.seq}


def test_a_unit_needs_a_queue_for_its_message() -> None:
    """A message for no queue would never be seen again, so it is refused."""
    with pytest.raises(ValueError, match="at least one queue"):
        Unit().add_message([], payload())


def test_bindings_come_back_when_the_journal_is_opened_again(store: JournalStore) -> None:
    """Queues and addresses are read back as stored, without those that were deleted."""
    journal = store.open()
    address = AddressBinding(journal.next_id(), "orders", frozenset(RoutingType))
    queue = QueueBinding(
        journal.next_id(), "größe", "orders", RoutingType.MULTICAST, max_consumers=3
    )
    gone = QueueBinding(journal.next_id(), "gone", "orders", RoutingType.ANYCAST)
    for binding in (address, queue, gone):
        journal.add_binding(binding)
    journal.delete_binding(gone.queue_id)
    store.settle(journal)
    journal.close(drain=True)
    assert store.open().bindings == [address, queue]


def test_a_binding_that_cannot_be_read_opens_no_journal(store: JournalStore) -> None:
    """Without the binding a queue and its messages would be missing, so a person must look."""
    journal = store.open()
    binding = QueueBinding(journal.next_id(), "q", "q", RoutingType.ANYCAST)
    journal.add_binding(binding)
    store.settle(journal)
    journal.close(drain=True)
    store.spoil_binding(binding.queue_id, b"?")
    with pytest.raises(CorruptRecord, match=f"seq {binding.queue_id} is corrupt"):
        store.open()


def test_ids_go_on_above_everything_ever_given_out(store: JournalStore) -> None:
    """Neither a stored seq nor an id that was only given out is given out again."""
    limits = replace(PATIENT, id_block=10)
    journal = store.open(limits=limits)
    used = [journal.next_id() for _ in range(3)]
    for _ in range(25):
        used += store.append(journal, "stored")
    used += [journal.next_id() for _ in range(4)]
    journal.close(drain=False)
    successor = store.open(limits=limits)
    assert used == sorted(set(used))
    assert successor.recovery_horizon >= used[-1]
    assert successor.next_id() > used[-1]


def test_messages_of_earlier_epochs_keep_their_epoch(store: JournalStore) -> None:
    """After a takeover each message says under which token it was written."""
    old = store.open()
    store.append(old, "old")
    old.close(drain=True)
    store.advance_fence(2)
    new = store.open(token=2)
    (seq,) = store.append(new, "new")
    assert [m.epoch for m in store.window(new).messages] == [1, 2]
    assert seq > new.recovery_horizon


def test_a_stale_token_opens_no_journal(store: JournalStore) -> None:
    """A node whose token is not the newest cannot open the journal."""
    store.advance_fence(5)
    with pytest.raises(Fenced):
        store.open(token=4)


@pytest.mark.parametrize("kind", WORK)
@pytest.mark.parametrize("times", [1, 100])
def test_nothing_is_stored_once_the_fence_has_moved(
    store: JournalStore, kind: str, times: int
) -> None:
    """A stale node's writes of every kind are refused: no row, no completion, one failure."""
    journal = store.open()
    (kept,) = store.append(journal, "kept")
    store.advance_fence(2)
    completed: list[int] = []
    for _ in range(times):
        WORK[kind](journal, kept, lambda: completed.append(1))
    store.loop.run_until(lambda: store.failures, "the failure")
    assert isinstance(store.failures[0], Fenced)
    with pytest.raises(JournalClosed):
        journal.append_message(QUEUE, payload(), None)
    assert journal.close(drain=True) is False
    store.loop.run_posted()
    assert (completed, len(store.failures)) == ([], 1)
    assert store.rows() == {kept: (QUEUE, 1)}


def test_nothing_is_stored_once_the_lease_is_over(store: JournalStore) -> None:
    """A node whose stopwatch says its lease has ended stores nothing more."""
    journal = store.open()
    store.lease_valid = False
    journal.append_message(QUEUE, payload(), None)
    store.loop.run_until(lambda: store.failures, "the failure")
    assert isinstance(store.failures[0], LeaseExpired)
    assert store.rows() == {}


def test_a_full_journal_says_so_and_announces_room(store: JournalStore) -> None:
    """Above its bounds the journal is full; once half of it is stored there is room again."""
    journal = store.open(limits=replace(PATIENT, max_waiting_rows=4))
    room: list[bool] = []
    journal.register_room_listener(lambda: room.append(journal.is_full))
    for _ in range(3):
        journal.append_message(QUEUE, payload(), None)
    full = [journal.is_full]
    journal.append_message(QUEUE, payload(), None)
    full.append(journal.is_full)
    assert full == [False, True]
    store.loop.run_until(lambda: room, "the announcement of room")
    assert room == [False]
    by_bytes = store.open(limits=replace(PATIENT, max_waiting_bytes=1_000))
    by_bytes.append_message(QUEUE, payload("x" * 2_000), None)
    assert by_bytes.is_full
    store.settle(by_bytes)
    assert not by_bytes.is_full


def test_each_batch_is_reported(store: JournalStore) -> None:
    """Metrics see what was committed."""
    journal = store.open()
    reports: list[BatchReport] = []
    journal.register_batch_listener(reports.append)
    (seq,) = store.append(journal, "one")
    journal.delete([MessageLocation(seq)])
    store.settle(journal)
    assert sum(report.units for report in reports) == 3
    assert sum(report.rows for report in reports) == 1
    assert sum(report.deletes for report in reports) == 1
    assert sum(report.payload_bytes for report in reports) == len(payload("one"))


def test_closing_with_a_drain_stores_everything(store: JournalStore) -> None:
    """A graceful stop stores and completes all that was appended."""
    journal = store.open()
    done: list[int] = []
    for number in range(500):
        journal.append_message(QUEUE, payload(), partial(done.append, number))
    assert journal.close(drain=True) is True
    store.loop.run_posted()
    assert done == list(range(500))
    assert len(store.rows()) == 500


def test_closing_without_a_drain_completes_nobody_any_more(store: JournalStore) -> None:
    """After an abandoning close no callback of any kind comes."""
    journal = store.open()
    called: list[object] = []
    for _ in range(100):
        journal.append_message(QUEUE, payload(), lambda: called.append(1))
    journal.read_window(QUEUE, 0, 1_000, 10, 1_000, called.append)
    journal.close(drain=False)
    store.loop.run_posted()
    assert called == []


def test_a_closed_journal_takes_no_work(store: JournalStore) -> None:
    """Every call on a closed journal says that it is closed; closing again is harmless."""
    journal = store.open()
    journal.close(drain=True)
    assert journal.close(drain=True) is True
    for call in (
        lambda: journal.append_message(QUEUE, payload(), None),
        lambda: journal.append_unit(Unit()),
        lambda: journal.delete([]),
        journal.next_id,
        lambda: journal.read_window(QUEUE, 0, 1, 1, 1, lambda _: None),
        lambda: journal.count(BEGINNING, 1, 1, lambda _: None),
    ):
        with pytest.raises(JournalClosed):
            call()


def test_a_corrupt_record_is_reported_and_left_in_place(store: JournalStore) -> None:
    """A window goes on past a record it cannot read, names it, and its row stays."""
    journal = store.open()
    first, broken, last = store.append(journal, "a", "b", "c")
    store.spoil(broken, payload("b")[:-1] + b"?")
    window = store.window(journal)
    assert [m.seq for m in window.messages] == [first, last]
    (error,) = window.corrupt
    assert error.seq == broken
    assert f"seq {broken}" in str(error)
    assert "checksum" in str(error)
    assert broken in store.rows()


def test_a_window_of_only_corrupt_records_still_moves_on(store: JournalStore) -> None:
    """A stretch that cannot be read is not read over and over."""
    journal = store.open()
    first, second = store.append(journal, "a", "b")
    store.spoil(first, b"")
    window = store.window(journal, max_messages=1)
    assert (window.messages, len(window.corrupt)) == ([], 1)
    assert store.window(journal, after=window.next_after_seq).messages[0].seq == second


def test_a_missing_body_is_reported(store: JournalStore) -> None:
    """A reference whose body somebody removed is corrupt, not silently absent."""
    journal = store.open()
    unit = Unit()
    unit.add_message([QUEUE, OTHER_QUEUE], payload("shared"))
    first, _ = journal.append_unit(unit)
    store.settle(journal)
    assert first.body is not None
    store.remove(first.body.seq)
    window = store.window(journal)
    assert window.messages == []
    assert f"body, the row with seq {first.body.seq}, is missing" in str(window.corrupt[0])
