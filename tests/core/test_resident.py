"""Messages in memory that nobody has: any may be taken out, the first is found at once."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from orthia.broker.core.api import MessageReference
from orthia.broker.core.queue.resident import Resident
from orthia.broker.core.queue.taken import TakenSeqs
from orthia.journal.model.message import Message


def reference(seq: int) -> MessageReference:
    """Return a message of a seq."""
    return MessageReference(seq, Message("orders", b"", b"", 0, 0, 4), None, 1, redelivered=False)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 300)), max_size=400))
def test_it_is_what_a_sorted_dict_is(steps: list[tuple[bool, int]]) -> None:
    """Whatever is put in or taken out, in whatever order."""
    resident, model = Resident(), dict[int, MessageReference]()
    for comes, seq in steps:
        if comes and seq not in model:
            model[seq] = reference(seq)
            resident.add(model[seq])
        else:
            assert resident.take(seq) is model.pop(seq, None)
        assert resident.first_seq == min(model, default=None)
        assert resident.get(seq) is model.get(seq)
        if seq % 7 == 0:
            newest = resident.newest()
            assert (newest and newest.seq) == max(model, default=None)
        assert [one.seq for one in resident.behind(seq)] == sorted(s for s in model if s > seq)
    assert len(resident) == len(model)
    assert [one.seq for one in resident.take_all()] == sorted(model)
    assert resident.first_seq is None


@given(st.lists(st.tuples(st.sampled_from("tas"), st.integers(0, 20)), max_size=60))
def test_the_last_that_was_taken_is_known(steps: list[tuple[str, int]]) -> None:
    """Until it is forgotten, which all that is acknowledged is; of nothing there is no last."""
    taken = TakenSeqs()
    held, acknowledged = set[int](), set[int]()
    assert taken.last_seq is None
    for step, seq in steps:
        if step == "t" and seq not in acknowledged:
            taken.take(seq)
            held.add(seq)
        elif step == "a":
            taken.acknowledged([seq])
            acknowledged |= {seq} & held
            held -= {seq}
        elif step == "s" and taken.may_sweep(soon=True):
            taken.begin_sweep()
            taken.committed([])
            assert taken.swept() == acknowledged
            acknowledged.clear()
        if seq % 3:  # not always asked in between
            assert taken.last_seq == max(held | acknowledged, default=None)
    assert taken.last_seq == max(held | acknowledged, default=None)


class Counted(dict[int, MessageReference]):
    """Counts how often it is asked."""

    asked = 0

    def __contains__(self, key: Any) -> bool:
        Counted.asked += 1
        return super().__contains__(key)


def test_the_first_of_many_that_are_taken_is_found_at_once() -> None:
    """Not by passing over all that were before it each time."""
    resident = Resident()
    resident._by_seq = Counted()
    for seq in range(5_000):
        resident.add(reference(seq))
    for _ in range(5_000):
        first = resident.first_seq
        assert first is not None
        resident.take(first)
    assert Counted.asked < 10 * 5_000
