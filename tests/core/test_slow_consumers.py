"""Consumers that are too slow are told of, or ended; nobody is blamed for an empty queue."""

from typing import Any

import pytest

from orthia.broker.core.api import TransactionWork
from orthia.broker.core.errors import Refusal
from orthia.config.address_settings import SlowConsumerPolicy, SlowConsumerUnit
from orthia.config.settings import Settings
from tests.core.support import SETTINGS, CoreUnderTest, FakeConsumer, settings

QUEUE = "/queue/q"
PERIOD = 5


def watched(policy: SlowConsumerPolicy = SlowConsumerPolicy.KILL, **more: Any) -> Settings:
    """Return settings that want a message a second."""
    given = {"slow_consumer_threshold": 1, **more}
    return settings(slow_consumer_policy=policy, **given)


def work(core: CoreUnderTest, consumer: FakeConsumer, messages: int) -> None:
    """Let a period go by in which a consumer acknowledges messages."""
    for reference in list(consumer.received[:messages]):
        consumer.end.acknowledge((reference,), None)
        consumer.received.remove(reference)
    core.pass_time(PERIOD)


def test_a_slow_consumer_is_ended() -> None:
    """With the reason; its messages go to others, and one that is quick enough stays."""
    core = CoreUnderTest(watched()).counted()
    core.send(QUEUE, *map(str, range(100)))
    slow, quick = core.consume(QUEUE, prefetch=20), core.consume(QUEUE, prefetch=20)
    core.pass_time(PERIOD)
    work(core, quick, 5)
    assert quick.failures == []
    assert slow.failures == [
        "slow consumer: 0 messages of queue 'q' were acknowledged in 5 s, and"
        " slow-consumer-threshold is 1 MESSAGES_PER_SECOND"
    ]
    work(core, quick, 4)
    assert quick.failures


def test_nobody_is_slow_without_messages() -> None:
    """Nor for those that came in the middle of a period."""
    core = CoreUnderTest(watched()).counted()
    consumer = core.consume(QUEUE)
    core.pass_time(PERIOD)
    core.pass_time(PERIOD - 1)
    core.send(QUEUE, "1")
    core.pass_time(1)
    assert consumer.failures == []
    work(core, consumer, 1)
    core.pass_time(PERIOD)
    assert consumer.failures == []


def test_a_socket_that_takes_no_more_is_slow() -> None:
    """Where every message is acknowledged as it is written."""
    core = CoreUnderTest(watched()).counted()
    core.send(QUEUE, "1", "2")
    consumer = core.consume(QUEUE, auto=True)
    consumer.is_writable = False
    core.pass_time(PERIOD)
    core.pass_time(PERIOD)
    assert consumer.failures


def test_or_told_of(caplog: pytest.LogCaptureFixture) -> None:
    """At each look, and nothing is done."""
    core = CoreUnderTest(watched(SlowConsumerPolicy.NOTIFY)).counted()
    core.send(QUEUE, "1")
    consumer = core.consume(QUEUE)
    for _ in range(3):
        core.pass_time(PERIOD)
    assert consumer.failures == []
    assert caplog.text.count("slow consumer: 0 messages of queue 'q'") == 2


@pytest.mark.parametrize(
    ("unit", "enough"),
    [(SlowConsumerUnit.MESSAGES_PER_MINUTE, 1), (SlowConsumerUnit.MESSAGES_PER_SECOND, 60)],
)
def test_the_unit_and_the_period(unit: SlowConsumerUnit, enough: int) -> None:
    """Twelve a minute are one in five seconds; twelve a second sixty."""
    for taken in (enough, enough - 1):
        core = CoreUnderTest(
            watched(slow_consumer_threshold=12, slow_consumer_threshold_measurement_unit=unit)
        ).counted()
        core.send(QUEUE, *map(str, range(100)))
        consumer = core.consume(QUEUE)
        core.pass_time(PERIOD)
        work(core, consumer, taken)
        assert bool(consumer.failures) is (taken < enough)


def test_nothing_is_looked_for_unless_it_is_wanted() -> None:
    """By default."""
    core = CoreUnderTest(SETTINGS).counted()
    core.send(QUEUE, "1")
    consumer = core.consume(QUEUE)
    core.pass_time(3_600)
    assert consumer.failures == []


@pytest.mark.parametrize("rejected", [True, False])
def test_who_answers_in_transactions_is_as_quick_as_it_is(*, rejected: bool) -> None:
    """What leaves a consumer by a COMMIT counts as what leaves it by an ACK."""
    core = CoreUnderTest(watched()).counted()
    core.send(QUEUE, *map(str, range(100)))
    consumer = core.consume(QUEUE, prefetch=10)
    for _ in range(5):
        references = consumer.received[:PERIOD]
        del consumer.received[:PERIOD]
        consumer.end.set_aside(references)
        consumer.end.resume()
        work = TransactionWork()
        (work.rejections if rejected else work.acknowledgements)[consumer.end] = references
        core.commit(work, lambda: None)
        core.pass_time(PERIOD)
    assert consumer.failures == []


def test_one_that_cannot_be_ended_keeps_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The others are ended, now and at the next look."""
    core = CoreUnderTest(watched()).counted()
    core.send(QUEUE, *map(str, range(100)))
    # One before the one that fails, and one behind it, in whatever order they are looked at.
    first, broken, last = (core.consume(QUEUE, prefetch=5) for _ in range(3))

    def fail(_reason: str, _kind: Refusal) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(broken, "fail", fail)
    core.pass_time(PERIOD)
    core.pass_time(PERIOD)
    assert first.failures
    assert last.failures
    assert "ending a slow consumer of queue 'q' failed" in caplog.text
    late = core.consume(QUEUE, prefetch=5)
    core.pass_time(PERIOD)
    core.pass_time(PERIOD)
    assert late.failures


@pytest.mark.parametrize("has_name", [True, False])
def test_a_look_that_fails_is_not_the_last(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, has_name: bool
) -> None:
    """Who is slow is ended all the same, or by those after it."""
    core = CoreUnderTest(watched()).counted()
    core.send(QUEUE, *map(str, range(100)))
    consumer = core.consume(QUEUE, prefetch=5)
    core.pass_time(PERIOD)

    class Failing:
        """Cannot be asked."""

        name = "bad" if has_name else None

        @property
        def settings(self) -> None:
            """Fail."""
            raise RuntimeError("a bug")

    queues = core.broker.queues()
    monkeypatch.setitem(queues, "bad", Failing())
    core.pass_time(PERIOD)
    if has_name:
        assert "looking for slow consumers of queue 'bad' failed" in caplog.text
        assert consumer.failures
        return
    assert "looking for slow consumers failed; retrying in the next check period" in caplog.text
    monkeypatch.delitem(queues, "bad")
    core.pass_time(2 * PERIOD)
    core.pass_time(PERIOD)
    assert consumer.failures
