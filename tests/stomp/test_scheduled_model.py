"""Whatever is sent, cancelled and taken over: each message comes once, in time and not early."""

from typing import Final

from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from orthia.broker.core.sending.recurrence import MIN_PERIOD_MS
from orthia.journal.errors import UnitRefused
from tests.core.support import Clock
from tests.stomp.test_scheduled import send

SCHEDULE: Final = "orthia.scheduled.anycast.orders"
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(0, 50)),
        st.tuples(st.just("repeat"), st.integers(1, 20)),
        st.tuples(st.just("pass"), st.integers(0, 150)),
        st.tuples(st.just("cancel"), st.integers(0, 9)),
        st.tuples(st.just("takeover"), st.just(0)),
        st.tuples(st.just("crash amid a move"), st.integers(1, 50)),
        st.tuples(st.just("refuse a move"), st.integers(1, 50)),
    ),
    max_size=10,
)
REPEATS: Final = 2
LONGEST_MS: Final = (REPEATS + 1) * (MIN_PERIOD_MS + 20) + 10
RETRIED_MS: Final = 10_100


class Model:
    """What is to come, by its text, each time at its moment."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.now = 0
        self.due: dict[str, list[int]] = {}
        self.came: dict[str, list[int]] = {}
        self.late_ms = 0
        """By how much messages may be late: a refused move is tried again after a while."""

    def collect(self) -> None:
        """Take what is in the queue, and note when."""
        consumer = self.clock.core.consume("/queue/orders", auto=True)
        for text in consumer.texts:
            self.came.setdefault(text, []).append(self.now)
        consumer.end.close()
        self.clock.core.settle()

    def pass_ms(self, ms: int) -> None:
        """Let time pass, a millisecond at a time."""
        for _ in range(ms):
            self.clock.pass_ms(1)
            self.now += 1
            self.collect()

    def cancel(self, number: int) -> None:
        """Cancel one of the messages that wait, if there is any."""
        times = self.clock.core.journal.store.times
        waiting = sorted(times)
        if not waiting:
            return
        seq = waiting[number % len(waiting)]
        row, _ = self.clock.core.journal.store.messages[seq]
        counts: list[int] = []
        self.clock.core.cancel(SCHEDULE, seq, counts.append)
        self.clock.core.settle()
        assert counts == [1], "nothing is on its way when all is settled"
        text = next(one for one in self.due if f"<{one}>".encode() in row.record)
        self.due[text] = self.due[text][: len(self.came.get(f"<{text}>", []))]

    def disturb(self, ms: int, *, crash: bool) -> None:
        """Let time pass while the journal stores nothing; then it refuses, or its node is gone."""
        journal = self.clock.core.journal
        journal.auto_commit = False
        self.clock.pass_ms(ms)
        self.now += ms
        self.late_ms += ms
        if crash:
            self.clock.takeover()
            return
        while journal.waiting:
            journal.refuse(UnitRefused("for the model"))
            self.clock.core.settle()
        journal.auto_commit = True
        self.clock.core.settle()
        self.late_ms += RETRIED_MS


@given(STEPS)
@hypothesis_settings(max_examples=20, deadline=None)
def test_each_message_comes_once_and_in_time(steps: list[tuple[str, int]]) -> None:
    """Over takeovers, crashes amid a move and refused moves; none is early, doubled or lost."""
    model = Model()
    for index, (step, number) in enumerate(steps):
        text = str(index)
        match step:
            case "send":
                send(model.clock, f"<{text}>", AMQ_SCHEDULED_DELAY=number)
                model.due[text] = [model.now + number]
            case "repeat":
                period_ms = MIN_PERIOD_MS + number
                period = {"AMQ_SCHEDULED_PERIOD": period_ms, "AMQ_SCHEDULED_REPEAT": REPEATS}
                send(model.clock, f"<{text}>", **period)
                model.due[text] = [model.now + period_ms * (n + 1) for n in range(REPEATS + 1)]
            case "pass":
                model.pass_ms(number)
            case "cancel":
                model.cancel(number)
            case "takeover":
                model.clock.takeover()
            case "crash amid a move":
                model.disturb(number, crash=True)
            case "refuse a move":
                model.disturb(number, crash=False)
        model.collect()
    late_ms = model.late_ms
    model.pass_ms(LONGEST_MS)  # as long as the longest of them takes, if nothing held it up
    model.clock.pass_ms(10 * RETRIED_MS)
    model.now += 10 * RETRIED_MS
    model.collect()
    for text, due in model.due.items():
        came = model.came.get(f"<{text}>", [])
        assert len(came) == len(due), (text, came, due)
        for moment, expected in zip(came, due, strict=True):
            assert moment >= expected, "it came too early"
            assert late_ms or moment == expected, "it came too late"
    assert model.clock.core.broker.depths().get(SCHEDULE, 0) == 0
    assert model.clock.core.broker.store_use.used == 0
    assert not model.clock.core.journal.store.times
    assert not model.clock.core.journal.store.messages
