"""A broker core on a journal of every kind there is, with a successor."""

from collections.abc import Callable, Sequence
from typing import Self

from orthia.broker.core.api import OutgoingMessage
from orthia.broker.core.broker import Broker
from orthia.config.settings import Settings
from orthia.journal.model.windows import Window
from tests.core.support import ANYONE, FakeConsumer, opened
from tests.journal.support import JournalStore


class StoredNode:
    """A core on a store's next token."""

    def __init__(self, store: JournalStore, token: int, options: Settings, queue: str) -> None:
        """Tests send to ``queue``, and consume from it."""
        store.advance_fence(token)
        self.store = store
        self.token = token
        self.options = options
        self.queue = queue
        self.journal = store.open(token)
        self.broker = opened(
            Broker(options, self.journal, lease_valid=lambda: True, call_later=self._call_later)
        )
        self.broker.count_backlogs()

    def _call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        if not seconds:
            self.store.loop.post(callback)

    def send_all(self, messages: Sequence[OutgoingMessage]) -> None:
        """Send messages and wait until all are stored."""
        stored: list[int] = []
        for sent in messages:
            self.broker.send(ANYONE, f"/queue/{self.queue}", sent, lambda: stored.append(1))
        self.store.loop.run_until(lambda: len(stored) == len(messages), "all are stored")

    def consume(self, count: int, *, prefetch: int = 0, auto: bool = False) -> FakeConsumer:
        """Subscribe and wait for ``count`` messages."""
        consumer = FakeConsumer(auto=auto)
        consumer.subscription = self.broker.subscribe(
            ANYONE, f"/queue/{self.queue}", consumer, prefetch=prefetch
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
        """Acknowledge messages and wait until that is stored."""
        done: list[int] = []
        consumer.acknowledge(*texts, done=lambda: done.append(1))
        self.store.loop.run_until(lambda: bool(done), "the acknowledgement")

    def stored(self) -> list[str]:
        """Return what the store has of the queue, in order."""
        behind: list[int] = []
        self.journal.delete((), lambda: behind.append(1))
        self.store.loop.run_until(lambda: bool(behind), "what was appended before")
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
        return type(self)(self.store, self.token + 1, options or self.options, self.queue)
