"""What ``addresses`` says of a queue, and how much it reads at a time."""

from dataclasses import replace

import pytest

from orthia.broker.core.errors import LimitExceeded
from orthia.broker.core.queue import refill
from orthia.config.address_settings import (
    AddressSettings,
    QueueSettings,
    RoutingType,
)
from orthia.config.settings import Settings
from tests.core.support import ANYONE, SETTINGS, CoreUnderTest, FakeConsumer, declared

ANYCAST = RoutingType.ANYCAST


def _with_consumers(most: int) -> Settings:
    queue = QueueSettings("jobs", ANYCAST, max_consumers=most)
    return replace(SETTINGS, addresses=(declared("jobs", queue),))


def test_a_consumer_beyond_max_consumers_is_refused() -> None:
    """By the name of the queue and the setting; when one leaves, there is room for another."""
    core = CoreUnderTest(_with_consumers(2))
    first = core.broker.subscribe(ANYONE, "/queue/jobs", FakeConsumer(), prefetch=1)
    core.broker.subscribe(ANYONE, "/queue/jobs", FakeConsumer(), prefetch=1)
    for _ in range(2):
        with pytest.raises(LimitExceeded, match="queue 'jobs' has max-consumers 2 already"):
            core.broker.subscribe(ANYONE, "/queue/jobs", FakeConsumer(), prefetch=1)
    first.close()
    core.broker.subscribe(ANYONE, "/queue/jobs", FakeConsumer(), prefetch=1)


def test_a_consumer_gets_the_queue_of_an_address_that_has_room() -> None:
    """Whosever turn it is: refused is who finds all of them full."""
    queues = tuple(
        QueueSettings(name, RoutingType.ANYCAST, max_consumers=1) for name in ("a", "b", "c")
    )
    jobs = declared("jobs", *queues)
    core = CoreUnderTest(replace(SETTINGS, addresses=(jobs,)))
    core.broker.subscribe(ANYONE, "/queue/b", FakeConsumer(), prefetch=1)
    core.broker.subscribe(ANYONE, "/queue/c", FakeConsumer(), prefetch=1)
    core.broker.subscribe(ANYONE, "/queue/jobs", FakeConsumer(), prefetch=1)
    assert [queue.consumers for queue in core.broker.queues().values()] == [1, 1, 1]
    with pytest.raises(LimitExceeded, match="has max-consumers 1 already"):
        core.broker.subscribe(ANYONE, "/queue/jobs", FakeConsumer(), prefetch=1)


def test_nobody_consumes_from_a_queue_for_none() -> None:
    """As in Artemis: 0 is no limit left out, but a queue that is closed to consumers."""
    core = CoreUnderTest(_with_consumers(0))
    core.send("/queue/jobs", "a")
    with pytest.raises(LimitExceeded, match="max-consumers 0"):
        core.broker.subscribe(ANYONE, "/queue/jobs", FakeConsumer(), prefetch=1)


@pytest.mark.parametrize(("before", "now"), [(1, 2), (2, 1), (1, -1)])
def test_the_file_says_how_many_also_of_a_stored_queue(before: int, now: int) -> None:
    """A number that is changed in the file is the one that counts from the next start on."""
    core = CoreUnderTest(_with_consumers(before))
    core.settle()
    successor = core.takeover(_with_consumers(now))
    attached = 0
    for _ in range(3):
        try:
            successor.broker.subscribe(ANYONE, "/queue/jobs", FakeConsumer(), prefetch=1)
        except LimitExceeded:
            break
        attached += 1
    assert attached == (3 if now < 0 else now)


@pytest.mark.parametrize(("page_size_bytes", "windows"), [(64 * 1024, 3), (10 * 1024**2, 1)])
def test_a_queue_reads_page_size_bytes_at_a_time(
    page_size_bytes: int, windows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One read of the table brings no more; so a small page holds less memory."""
    asked: list[int] = []
    settings = replace(
        SETTINGS,
        address_settings=(AddressSettings("#", page_size_bytes=page_size_bytes),),
    )
    before = CoreUnderTest(settings)
    before.send("/queue/jobs", *(str(number) * 50_000 for number in range(3)))
    core = before.takeover(settings)
    original = core.broker.parts.journal.read_window

    def read_window(*arguments: object) -> None:
        asked.append(arguments[4])  # type: ignore[arg-type]
        original(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(core.broker.parts.journal, "read_window", read_window)
    consumer = core.consume("/queue/jobs", prefetch=10)
    core.settle()
    assert [text[0] for text in consumer.texts] == ["0", "1", "2"]
    assert max(asked) == min(page_size_bytes, refill.MAX_WINDOW_BYTES)
    assert len(asked) >= windows
