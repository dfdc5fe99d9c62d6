"""When messages are delivered again that were delivered in vain, over takeovers too."""

import pytest

from orthia.broker.core.queue.redelivery import redelivery_delay_ms
from orthia.config.addresses import ResolvedAddressSettings
from orthia.config.settings import Settings
from tests.core.support import CoreUnderTest, settings

NOON_MS = 1_700_049_600_000
QUEUE = "/queue/orders"


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


class Nodes:
    """One live node after the other, by one clock."""

    def __init__(self, options: Settings) -> None:
        self._options = options
        self._passed = 0.0
        self.core = CoreUnderTest(options, time_ms=self._ms)

    def _ms(self) -> int:
        now = self.core.now if hasattr(self, "core") else 0.0
        return NOON_MS + int((self._passed + now) * 1000)

    def takeover(self) -> CoreUnderTest:
        """Have the next node go on."""
        self._passed += self.core.now
        self.core.broker.stop()
        store = self.core.journal.store
        store.fence_token += 1
        self.core = CoreUnderTest(
            self._options, store=store, token=store.fence_token, time_ms=self._ms
        )
        return self.core


def fail_once(core: CoreUnderTest) -> int:
    """Deliver a message in vain; return how often it was delivered by then."""
    consumer = core.consume(QUEUE)
    consumer.end.close(attempted=consumer.take("a"))
    core.settle()
    return consumer.received[0].attempts


def test_attempts_are_counted_on_by_the_next_node() -> None:
    """Three deliveries in vain, by three nodes, make a dead letter."""
    nodes = Nodes(settings("orders", max_delivery_attempts=3, dead_letter_address="DLQ"))
    nodes.core.send(QUEUE, "a")
    assert fail_once(nodes.core) == 1
    assert fail_once(nodes.takeover()) == 2
    assert fail_once(nodes.takeover()) == 3
    core = nodes.takeover()
    assert core.consume(QUEUE).texts == []
    assert core.consume("/queue/DLQ").texts == ["a"]
    assert not core.journal.store.times


def test_a_delay_goes_on_after_a_takeover() -> None:
    """What waits is not delivered by the next node before its time either."""
    nodes = Nodes(settings("orders", redelivery_delay=10_000))
    nodes.core.send(QUEUE, "a", "b")
    fail_once(nodes.core)
    nodes.core.pass_time(4)
    core = nodes.takeover()
    consumer = core.consume(QUEUE)
    assert consumer.texts == ["b"]
    core.pass_time(5.9)
    assert consumer.texts == ["b"]
    core.pass_time(0.2)
    assert consumer.texts == ["b", "a"]


def test_what_was_acknowledged_after_an_attempt_leaves_nothing() -> None:
    """The count of a message goes with it."""
    core = CoreUnderTest(settings("orders", redelivery_delay=0))
    core.send(QUEUE, "a")
    fail_once(core)
    assert len(core.journal.store.times) == 1
    core.consume(QUEUE).acknowledge("a")
    core.settle()
    assert not core.journal.store.times
    assert not core.journal.store.messages


def test_nothing_is_kept_of_what_was_never_delivered_in_vain() -> None:
    """Who lost the connection before a message came to it delivered none in vain."""
    core = CoreUnderTest()
    core.send(QUEUE, "a")
    core.consume(QUEUE).end.close()
    core.settle()
    assert not core.journal.store.times
