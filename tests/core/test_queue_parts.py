"""The parts of a queue by themselves: what is delayed, what is in memory, what was taken."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orthia.broker.core.api import MessageReference
from orthia.broker.core.queue.delayed import Delayed
from orthia.broker.core.queue.redelivery import redelivery_delay_ms
from orthia.broker.core.queue.resident import Resident
from orthia.broker.core.queue.taken import TakenSeqs
from orthia.config.addresses import ResolvedAddressSettings
from orthia.journal.model.message import Message


def reference(seq: int) -> MessageReference:
    """Return a message of a seq, with a priority."""
    message = Message("orders", b"", b"", 0, 0, seq % 10)
    return MessageReference(seq, message, None, 1, redelivered=False)


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


STEPS = st.lists(st.tuples(st.sampled_from(["add", "both", "take", "ask"]), st.integers(0, 90)))


@given(STEPS)
def test_the_oldest_of_the_lowest_priority_is_first(steps: list[tuple[str, int]]) -> None:
    """Whatever came and went before it was asked for, and since."""
    messages = [reference(seq) for seq in range(91)]
    delayed, model = Delayed(), set[int]()
    for step, seq in steps:
        if step == "add":
            delayed.add(messages[seq])
            model.add(seq)
        elif step == "both":
            delayed.update([messages[seq], messages[seq // 2]])
            model |= {seq, seq // 2}
        elif step == "take":
            delayed.difference_update([messages[seq]])
            model.discard(seq)
        else:
            first = delayed.lowest_and_oldest()
            expected = min(model, key=lambda one: (one % 10, one), default=None)
            assert first is (None if expected is None else messages[expected])
        assert {one.seq for one in delayed} == model


def test_what_is_first_is_found_without_a_look_at_all() -> None:
    """However often messages come and go behind the one that stays."""
    messages = [reference(seq) for seq in range(0, 20_000, 10)]
    looked: list[int] = []

    class Counted(Delayed):
        """Counts what it puts in order."""

        def _push(self, order, element) -> None:  # type: ignore[no-untyped-def]
            looked.append(element.seq)
            super()._push(order, element)

    counted = Counted()
    counted.update(messages)
    assert not looked
    for message in messages[1:]:
        assert counted.lowest_and_oldest() is messages[0]
        counted.discard(message)
        counted.add(message)
    assert len(looked) < 4 * len(messages)
    while (first := counted.lowest_and_oldest()) is not None:
        counted.discard(first)
    assert len(looked) < 6 * len(messages)


def test_nothing_is_kept_of_messages_that_are_gone() -> None:
    """They may be large."""
    messages = [reference(seq) for seq in range(1_000)]
    delayed = Delayed()
    delayed.update(messages)
    assert delayed.lowest_and_oldest() is messages[0]
    delayed.difference_update(messages[:500])
    delayed.clear()
    assert delayed._order is None


def test_one_is_found_by_its_seq_as_long_as_it_is_there() -> None:
    """Without a look at all the others, however many come and go."""
    delayed = Delayed()
    first, second = (reference(seq) for seq in (1, 2))
    delayed.add(first)
    assert delayed.with_seq(1) is first
    delayed.add(second)
    delayed.discard(first)
    assert (delayed.with_seq(1), delayed.with_seq(2)) == (None, second)
    delayed.difference_update([second])
    assert delayed.with_seq(2) is None


@pytest.mark.parametrize(
    ("options", "delays"),
    [
        ({}, [0, 0, 0]),
        ({"redelivery_delay": 100}, [100, 100, 100]),
        ({"redelivery_delay": 100, "redelivery_delay_multiplier": 2.0}, [100, 200, 400]),
        (
            {
                "redelivery_delay": 100,
                "redelivery_delay_multiplier": 2.0,
                "max_redelivery_delay": 300,
            },
            [100, 200, 300],
        ),
        ({"redelivery_delay": 100, "redelivery_delay_multiplier": 11.0}, [100, 1_000, 1_000]),
        ({"redelivery_delay": 100, "redelivery_delay_multiplier": 1.5}, [100, 150, 225]),
        ({"redelivery_delay": 100, "max_redelivery_delay": 0}, [0, 0, 0]),
        ({"redelivery_delay": 100, "redelivery_delay_multiplier": 0.0}, [100, 0, 0]),
    ],
)
def test_the_delay_is_artemis(options: dict[str, float], delays: list[int]) -> None:
    """It grows by its multiplier, and by no more than ten times if nothing else is said."""
    resolved = ResolvedAddressSettings(**options)  # type: ignore[arg-type]
    found = [redelivery_delay_ms(resolved, attempts, lambda: 0.5) for attempts in (1, 2, 3)]
    assert found == delays


def test_chance_makes_a_delay_longer_or_shorter() -> None:
    """Up to its factor, in both directions; a delay of very many attempts is the longest."""
    resolved = ResolvedAddressSettings(
        redelivery_delay=1_000,
        redelivery_collision_avoidance_factor=0.25,
        redelivery_delay_multiplier=3.0,
    )
    chances = iter((0.0, 0.5, 0.75))
    found = [redelivery_delay_ms(resolved, 1, lambda: next(chances)) for _ in range(3)]
    assert found == [750, 1_000, 1_125]
    assert redelivery_delay_ms(resolved, 10_000, lambda: 0.0) == 10_000
