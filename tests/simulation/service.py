"""What clients see of a simulated node's process: its journal and its queue, on its loop."""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from orthia.config.errors import OrthiaError
from orthia.database import StoreUnavailable
from orthia.journal import JournalClosed
from orthia.journal.engine.retry import pause_seconds
from orthia.journal.journal import MessageJournal
from tests.simulation.bodies import SimulatedBodies, SimulatedWindows
from tests.simulation.journal import SimulatedStore, open_journal
from tests.simulation.large import Large
from tests.simulation.tables import Violation

if TYPE_CHECKING:
    from tests.simulation.node import Node

_QUEUE_ID = 1
_ATTEMPTS_TO_OPEN = 5


class Service:
    """As ``orthia.broker.node.service``, of one process."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._world = node.world
        self._life = node.life
        self._loop = node.loop
        self.journal: MessageJournal | None = None
        self.waiting: deque[int] = deque()
        """Messages that may be delivered."""
        self._arrived: deque[int] = deque()
        self._last_confirmed = self._last_delivered = 0

    # --- on the activation thread

    def load(self, failed: Callable[[OrthiaError], None]) -> None:
        """Load the journal, as ``Journal.open`` does it."""
        node, world, tried = self._node, self._world, 1
        store = SimulatedStore(world.database, node, node.token)
        while True:
            try:
                store.connect()
                horizon, rows = store.recover()
                break
            except StoreUnavailable:
                if tried == _ATTEMPTS_TO_OPEN or not node.manager.is_lease_valid():
                    raise
            world.engine.suspend(pause_seconds(tried))
            tried += 1
        self.waiting = deque(seq for seq, _ in rows)
        pause = partial(world.pause, node)
        self._last_confirmed = self._last_delivered = 0
        journal = self.journal = open_journal(
            store,
            SimulatedWindows(world.database, node, pause),
            SimulatedBodies(world.database, node, node.token, pause),
            horizon,
            engine=world.engine,
            life=self._life,
            mechanisms=world.mechanisms,
            still_valid=node.manager.is_lease_valid,
            post=self._loop.call_soon_threadsafe,
            on_failure=failed,
        )
        journal.register_room_listener(self._read)
        self.large = Large(node, journal, _QUEUE_ID)
        for seq, payload in rows:
            self.large.recovered(seq, payload)

    def close_journal(self, *, drain: bool) -> None:
        """Close the journal, if it was loaded."""
        if self.journal is not None:
            self.journal.close(drain=drain)

    # --- on the loop

    def offer(self, message: int) -> None:
        """A client sends a message."""
        self._arrived.append(message)
        self._loop.call_soon_threadsafe(self._read)

    def open(self) -> None:
        """Let clients in."""
        self._world.serving.append(self._node)
        self._world.opened(self._node)
        if self._world.has_large:
            self.large.read_through()
        self._dispatch()

    def close(self) -> None:
        """Close the acceptors, and what clients have sent with them."""
        if self._node.is_open:
            self._world.serving.remove(self._node)
        self._arrived.clear()
        self.waiting.clear()

    def _read(self) -> None:
        """Append what clients sent, as long as the journal takes it."""
        journal = self.journal
        if journal is None or not self._node.is_open:
            return
        try:
            while self._arrived and not journal.is_full:
                self._append(journal, self._arrived.popleft())
        except JournalClosed:
            return  # the clients send again, to another

    def _append(self, journal: MessageJournal, message: int) -> None:
        if self.large.takes_next():
            self.large.upload(partial(self._stored, message))
            return
        place: list[int] = []
        place.append(
            journal.append_message(
                _QUEUE_ID,
                b"%d" % message,
                lambda: self._stored(message, place[0]),
                lambda _: None,  # the client is told, and sends again
            )
        )
        self._world.give_out(place[0])
        if not self._world.mechanisms.receipt_after_commit:
            self._world.receipt(message, place[0])

    def _stored(self, message: int, seq: int) -> None:
        if seq <= self._last_confirmed:
            raise Violation(f"message {seq} was confirmed after {self._last_confirmed}")
        self._last_confirmed = seq
        self._world.receipt(message, seq)
        if self._node.is_open:
            self.waiting.append(seq)
            self._dispatch()

    def renewed(self, *_: object) -> None:
        """Deliver what a late renewal held back."""
        if self.waiting:
            self._loop.call_soon_threadsafe(self._dispatch)

    def _dispatch(self) -> None:
        """Deliver what may be delivered."""
        while self.waiting and self._node.may_deliver():
            seq = self.waiting.popleft()
            if seq <= self._last_delivered:
                raise Violation(f"message {seq} was delivered after {self._last_delivered}")
            self._last_delivered = seq
            self.large.deliver(seq)
            self._world.deliver(seq, self._node.token, partial(self._acknowledge, seq))

    def _acknowledge(self, seq: int) -> None:
        """A client acknowledges what it got from this process, if that is there."""
        if not self._life.is_over:
            self._loop.call_soon_threadsafe(self._delete, seq)

    def _delete(self, seq: int) -> None:
        if self.journal is None or not self._node.is_open:
            return
        try:
            self.journal.delete(
                [self.large.location(seq)], partial(self._world.receipt_of_acknowledgement, seq)
            )
        except JournalClosed:
            return  # the message is delivered again
