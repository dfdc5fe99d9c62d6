"""A broker core on an in-memory journal, with clients that are plain lists."""

import heapq
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from orthia.broker.core.api import (
    Done,
    FanOut,
    MessageReference,
    OnRefused,
    OutgoingMessage,
    SingleSubscription,
    TransactionWork,
    unheard,
)
from orthia.broker.core.broker import Broker
from orthia.broker.core.errors import Refusal
from orthia.broker.core.identity import Principal
from orthia.broker.core.slices import Steps
from orthia.broker.core.upkeep.reconfiguration import NewRules
from orthia.broker.protocols import encodings as _encodings  # noqa: F401 - which read heads
from orthia.config.address_settings import (
    AddressConfiguration,
    AddressSettings,
    QueueSettings,
    RoutingType,
)
from orthia.config.settings import Settings
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.config.urls import DatabaseUrl
from orthia.journal.memory import MemoryJournal, MemoryStore
from orthia.journal.model.encodings import NO_HEAD
from orthia.journal.model.fields import Fields, encode_fields
from orthia.journal.model.message import DEFAULT_PRIORITY


def anyone() -> Principal:
    """Return somebody who may do everything, on a connection of their own."""
    return Principal("anyone", frozenset(), unrestricted=True)


ANYONE = anyone()
"""The same connection each time."""
SETTINGS = Settings(
    name="test",
    source=None,
    store=DatabaseStoreSettings(DatabaseUrl.parse("jdbc:sqlite:unused")),
    security_enabled=False,
)


def settings(match: str = "#", **address_settings: Any) -> Settings:
    """Return settings with one ``address-setting``."""
    return replace(SETTINGS, address_settings=(AddressSettings(match, **address_settings),))


def declared(
    address: str, *queues: str | QueueSettings, kind: RoutingType = RoutingType.ANYCAST
) -> AddressConfiguration:
    """Return what a broker.xml says of an address with these queues, all of a kind."""
    made = [QueueSettings(one, kind) if isinstance(one, str) else one for one in queues]
    return AddressConfiguration(address, frozenset({kind}), tuple(made))


def message(
    text: str,
    *,
    persistent: bool = True,
    expires_ms: int = 0,
    headers: bytes = b"",
    stated: Fields | None = None,
    priority: int = DEFAULT_PRIORITY,
) -> OutgoingMessage:
    """Return a message whose body is ``text``; one of no protocol if its fields are ``stated``."""
    plain = OutgoingMessage(headers, text.encode(), persistent, expires_ms, priority)
    if stated is None:
        return plain
    return plain._replace(encoding=NO_HEAD, stated=encode_fields(stated))


@dataclass(eq=False)
class FakeConsumer:
    """A client's end of a subscription."""

    received: list[MessageReference] = field(default_factory=list)
    is_writable: bool = True
    failures: list[str] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    """What of each the metric counts."""
    subscription: SingleSubscription | None = None
    auto: bool = False
    held: int = 0
    told_settled: list[MessageReference] = field(default_factory=list)

    def deliver(self, reference: MessageReference) -> None:
        """Note a delivery."""
        self.received.append(reference)
        if self.auto:
            self.end.acknowledge((reference,), None)

    def settled(self, references: Sequence[MessageReference]) -> None:
        """Note what an application acknowledged in the database."""
        self.told_settled += references

    def holds(self, change: int) -> None:
        """Count what is kept for the client."""
        self.held += change

    def fail(self, reason: str, kind: Refusal) -> None:
        """Note why the connection is ended, and end it as a session does."""
        self.failures.append(reason)
        self.refusals.append(kind)
        self.is_writable = False
        self.end.close(attempted=self.received)

    @property
    def connection(self) -> object:
        """Each is a client of its own."""
        return self

    @property
    def principal(self) -> Principal:
        """Who subscribed."""
        return ANYONE

    @property
    def end(self) -> SingleSubscription:
        """The core's end."""
        assert self.subscription is not None
        return self.subscription

    @property
    def texts(self) -> list[str]:
        """The bodies received, in order."""
        return [reference.record.body.decode() for reference in self.received]

    def take(self, *texts: str) -> list[MessageReference]:
        """Return the last delivery of each text."""
        by_text = {one.record.body.decode(): one for one in self.received}
        return [by_text[text] for text in texts]

    def acknowledge(self, *texts: str, done: Callable[[], None] | None = None) -> None:
        """Acknowledge messages."""
        self.end.acknowledge(self.take(*texts), done)

    def reject(self, *texts: str) -> None:
        """Give messages back as failed."""
        self.end.reject(self.take(*texts), None)

    def is_flagged(self, text: str) -> bool:
        """Whether the last delivery of ``text`` was flagged redelivered."""
        return self.take(text)[0].redelivered


class FakeBrowser(FakeConsumer):
    """A client that looks through a queue."""

    is_over = False

    def browsed(self) -> None:
        """Note the end."""
        self.is_over = True


def fan_out(sent: FanOut | Steps | None) -> FanOut:
    """Return what a sender waits for whose message is with subscribers not yet."""
    assert sent is not None
    assert not isinstance(sent, Iterator)
    return sent


def opened(broker: Broker) -> Broker:
    """Return a broker that has opened what is stored, all of it at once."""
    for _ in broker.open():
        pass
    return broker


class CoreUnderTest:
    """A broker core whose journal, clock and lease the test moves."""

    def __init__(
        self,
        options: Settings = SETTINGS,
        *,
        store: MemoryStore | None = None,
        token: int = 1,
        auto_commit: bool = True,
        journal: MemoryJournal | None = None,
        time_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        clock: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """``clock`` says how long work takes, for the slices of it."""
        self.lease_valid = True
        self.now = 0.0
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self.journal = journal or MemoryJournal(store, token=token, auto_commit=auto_commit)
        self.broker = opened(
            Broker(
                options,
                self.journal,
                lease_valid=lambda: self.lease_valid,
                call_later=self._call_later,
                time_ms=time_ms,
                clock=clock,
            )
        )

    def _call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (self.now + seconds, next(self._numbers), callback))

    def next_timer(self) -> float | None:
        """Return when the first timer fires; None if there is none."""
        return self._timers[0][0] if self._timers else None

    def settle(self) -> None:
        """Run what the journal has answered, and the turns of the loop that are due."""
        self.journal.run_posted()
        while self._timers and self._timers[0][0] <= self.now:
            self.turn()

    def cancel(self, queue: str, seq: int, done: Callable[[int], None]) -> None:
        """Delete a message that waits in a queue of scheduled ones."""
        self.broker.parts.schedule.cancel(self.broker.queues()[queue], seq, done)

    def turn(self) -> None:
        """Have the first timer fire, which is due."""
        heapq.heappop(self._timers)[2]()
        self.journal.run_posted()

    def commit(self, work: TransactionWork, done: Done, on_refused: OnRefused = unheard) -> None:
        """Commit a transaction."""
        self.broker.slices.run(self.broker.commit(anyone(), work, done, on_refused))

    def store_all(self) -> None:
        """Store all that waits, and what follows from that, one by one."""
        while self.journal.waiting:
            self.journal.commit(1)
            self.settle()

    def counted(self) -> Self:
        """Count what earlier nodes left."""
        self.broker.count_backlogs()
        self.settle()
        return self

    def pass_time(self, seconds: float) -> None:
        """Let timers fire."""
        self.now += seconds
        self.settle()

    def send(self, destination: str, *texts: str, **options: Any) -> None:
        """Send messages and wait until they are stored."""
        client = anyone()
        for text in texts:
            self.broker.send(client, destination, message(text, **options), None)
        self.settle()

    def consume(
        self,
        destination: str,
        *,
        prefetch: int = 1_000,
        auto: bool = False,
        selector: str | None = None,
    ) -> FakeConsumer:
        """Subscribe."""
        consumer = FakeConsumer(auto=auto)
        consumer.subscription = self.broker.subscribe(
            ANYONE, destination, consumer, prefetch=prefetch, selector=selector
        )
        consumer.subscription.resume()
        self.settle()
        return consumer

    def count_windows(self) -> list[int]:
        """Return what grows by the most bytes of each window that is asked for from here on."""
        asked: list[int] = []
        read_window: Callable[..., None] = self.journal.read_window

        def counted(*arguments: Any) -> None:
            asked.append(arguments[4])
            read_window(*arguments)

        setattr(self.journal, "read_window", counted)  # noqa: B010 - mypy has it for a method
        return asked

    def stored_texts(self) -> list[str]:
        """Return the bodies that a restart would find, in order, of every queue."""
        again = CoreUnderTest(store=self.successor_store())
        found: list[str] = []
        for name in again.broker.queues():
            consumer = again.consume(f"/queue/{name}")
            again.pass_time(3_600)  # what is delivered again comes after a pause
            found += consumer.texts
        return found

    def successor_store(self) -> MemoryStore:
        """Return a copy of what is stored, for a node that comes after this one."""
        store = self.journal.store
        return MemoryStore(
            fence_token=1,
            id_limit=store.id_limit,
            messages=dict(store.messages),
            bindings=dict(store.bindings),
            times=dict(store.times),
            clock_ms=store.clock_ms,
        )

    @property
    def memory_used(self) -> int:
        """Bytes that messages in memory count for, in all queues."""
        return self.broker.parts.factory.services.budget.used

    def reconfigure(self, options: Settings) -> None:
        """Have the core be as a changed broker.xml says."""
        done: list[bool] = []
        self.broker.reconfigure(NewRules.of(options), lambda: done.append(True))
        self.settle()
        assert done == [True]

    def takeover(self, options: Settings = SETTINGS) -> "CoreUnderTest":
        """Return the core of the next live node on the same store."""
        self.broker.stop()
        self.journal.store.fence_token += 1
        return CoreUnderTest(
            options, store=self.journal.store, token=self.journal.store.fence_token
        )


def texts(references: Sequence[MessageReference]) -> list[str]:
    """Return the bodies of messages."""
    return [reference.record.body.decode() for reference in references]


NOON_MS = 1_700_049_600_000
"""2023-11-15 12:00:00 UTC, a Wednesday."""


class Clock:
    """The clock of the core under test, which its timers and its store follow."""

    def __init__(self, options: Settings = SETTINGS) -> None:
        self._options = options
        self._started_ms = NOON_MS
        self._now: Callable[[], float] = lambda: 0.0
        self.core: CoreUnderTest
        self._begin(CoreUnderTest(options, store=MemoryStore(clock_ms=self.ms), time_ms=self.ms))

    def _begin(self, core: CoreUnderTest) -> None:
        self.core = core
        self._now = lambda: core.now
        core.broker.count_backlogs()
        core.broker.start_schedule()
        core.settle()

    def ms(self) -> int:
        """Return the time of messages."""
        return self._started_ms + round(self._now() * 1_000)

    def pass_ms(self, ms: int) -> None:
        """Let time pass, timer by timer."""
        core = self.core
        end = core.now + ms / 1_000
        while (due := core.next_timer()) is not None and due <= end:
            core.now = max(core.now, due)
            core.settle()
        core.now = end
        core.settle()

    def takeover(self, options: Settings | None = None) -> None:
        """Let the next node take over."""
        self._options = options or self._options
        self._started_ms, self._now = self.ms(), lambda: 0.0
        self.core.broker.stop()
        store = self.core.journal.store
        store.fence_token += 1
        token = store.fence_token
        self._begin(CoreUnderTest(self._options, store=store, token=token, time_ms=self.ms))
