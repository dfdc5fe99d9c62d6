"""Messages that wait for their redelivery: a set that can say which goes first."""

from hypothesis import given
from hypothesis import strategies as st

from orthia.broker.core.api import MessageReference
from orthia.broker.core.queue.delayed import Delayed
from orthia.journal.model.message import Message

STEPS = st.lists(st.tuples(st.sampled_from(["add", "both", "take", "ask"]), st.integers(0, 90)))


def reference(seq: int) -> MessageReference:
    """Return a message of a seq, with a priority."""
    message = Message("orders", b"", b"", 0, 0, seq % 10)
    return MessageReference(seq, message, None, 1, redelivered=False)


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
