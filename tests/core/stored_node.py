"""A broker core on a journal of every kind there is, with a successor."""

import heapq
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Self

from orthia.broker.core.api import OutgoingMessage
from orthia.broker.core.broker import Broker
from orthia.config.settings import Settings
from orthia.journal.model.windows import Window
from tests.core.support import ANYONE, FakeConsumer, message, opened
from tests.journal.support import JournalStore


class StoredNode:
    """A core on a store's next token, whose timers the test moves."""

    def __init__(
        self, store: JournalStore, options: Settings, queue: str = "orders", token: int = 2
    ) -> None:
        """Tests send to ``queue``, and consume from it, unless they say another destination."""
        store.advance_fence(token)
        self.store = store
        self.token = token
        self.options = options
        self.queue = queue
        self.now = 0.0
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self.journal = store.open(token)
        self.broker = opened(
            Broker(options, self.journal, lease_valid=lambda: True, call_later=self._call_later)
        )
        self.broker.count_backlogs()

    def _call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        if seconds:
            heapq.heappush(self._timers, (self.now + seconds, next(self._numbers), callback))
        else:
            self.store.loop.post(callback)

    def pass_time(self, seconds: float) -> None:
        """Let timers fire."""
        self.now += seconds
        while self._timers and self._timers[0][0] <= self.now:
            heapq.heappop(self._timers)[2]()

    def send(self, *texts: str, destination: str = "", **said: Any) -> None:
        """Send messages of which all say the same."""
        self.send_all([message(text, **said) for text in texts], destination)

    def send_headers(self, header: str, *texts: str) -> None:
        """Send messages whose ``header`` is their first letter."""
        self.send_all([message(text, headers=f"{header}:{text[0]}\n".encode()) for text in texts])

    def send_all(self, messages: Sequence[OutgoingMessage], destination: str = "") -> None:
        """Send messages and wait until all are stored."""
        stored: list[int] = []
        to = destination or f"/queue/{self.queue}"
        for sent in messages:
            self.broker.send(ANYONE, to, sent, lambda: stored.append(1))
        self.store.loop.run_until(lambda: len(stored) == len(messages), "all are stored")

    def consume(
        self,
        count: int,
        *,
        prefetch: int = 0,
        auto: bool = False,
        selector: str | None = None,
        destination: str = "",
    ) -> FakeConsumer:
        """Subscribe and wait for ``count`` messages."""
        consumer = FakeConsumer(auto=auto)
        consumer.subscription = self.broker.subscribe(
            ANYONE,
            destination or f"/queue/{self.queue}",
            consumer,
            prefetch=prefetch,
            selector=selector,
        )
        consumer.end.resume()
        self.wait_for(consumer, count)
        return consumer

    def wait_for(self, consumer: FakeConsumer, count: int) -> None:
        """Wait until a consumer has had so many messages."""
        self.store.loop.run_until(
            lambda: len(consumer.received) >= count, f"{count} messages received"
        )

    def acknowledge(self, consumer: FakeConsumer, *texts: str) -> None:
        """Acknowledge messages, all by default, and wait until that is stored."""
        done: list[int] = []
        consumer.acknowledge(*texts or consumer.texts, done=lambda: done.append(1))
        self.store.loop.run_until(lambda: bool(done), "the acknowledgement")

    def depth(self) -> int:
        """Return how many messages the queue has, once all are counted."""
        queue = self.broker.queues()[self.queue]
        self.store.loop.run_until(lambda: queue.is_counted, "the count")
        return queue.depth

    def stored(self) -> list[str]:
        """Return what the store has of the queue, in order."""
        self.store.settle(self.journal)
        found: list[Window] = []

        def read(window: object) -> None:
            assert isinstance(window, Window)
            found.append(window)

        queue = self.broker.queues()[self.queue]
        up_to = self.journal.last_committed_seq
        self.journal.read_window(queue.id, 0, up_to, 10_000, 2**30, read)
        self.store.loop.run_until(lambda: bool(found), "the rows of the queue")
        return [one.record.body.decode() for one in found[0].messages]

    def take_over(self, options: Settings | None = None) -> Self:
        """Return the next live node; of this one nothing more reaches the store."""
        self.journal.close(drain=False)
        return type(self)(self.store, options or self.options, self.queue, self.token + 1)
