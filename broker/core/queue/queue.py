# mypyc compiles this module.
"""A stored queue: its consumers, and what becomes of what they had.

``window`` says how its messages come into memory, ``turns`` whose turn it is, ``dispatcher`` when
there is a delivery.
"""

import heapq
import random
from collections.abc import Collection, Sequence
from functools import partial
from typing import Protocol

from typing_extensions import override

from orthia.broker.core.api import Consumer, Done, MessageReference, Settlement
from orthia.broker.core.errors import AcknowledgementRefused, LimitExceeded, NotLive
from orthia.broker.core.limits.memory import MemoryBudget, Refused, size_in_store
from orthia.broker.core.limits.quota import AddressUse
from orthia.broker.core.queue.dispatcher import AT_ONCE
from orthia.broker.core.queue.gate import Deliverer, DeliveryGate
from orthia.broker.core.queue.leveled import LeveledQueue
from orthia.broker.core.queue.redelivery import redelivery_delay_ms
from orthia.broker.core.queue.settlement import Acknowledged, Rejected
from orthia.broker.core.queue.subscriptions import Subscription, locations
from orthia.broker.core.queue.taken import ExpiryLook
from orthia.broker.core.queue.window import QueueSubscription
from orthia.broker.core.selectors import Selector
from orthia.broker.core.slices import GO_ON, Slices, Steps
from orthia.broker.core.timers import Timers
from orthia.broker.quoting import quoted
from orthia.config.address_settings import RoutingType
from orthia.config.addresses import ResolvedAddressSettings
from orthia.journal.abc import MessageJournal
from orthia.journal.errors import JournalClosed

BACK_OFF_MS = 10_000
"""How long a message waits that was delivered too often and has nowhere else to go."""


class _Disposal(Protocol):
    """What becomes of a message its queue cannot deliver."""

    look: ExpiryLook

    def expire(self, queue: "Queue", reference: MessageReference) -> None:
        """Move it to the expiry address, or drop it."""

    def dead_letter(self, queue: "Queue", reference: MessageReference) -> bool:
        """Move it to the dead-letter address, or drop it; False if it has to stay."""


class Queue(LeveledQueue):
    """One stored queue; all calls on the loop's thread."""

    __slots__ = (
        "_behind",
        "_disposal",
        "_gate",
        "in_flight",
        "max_consumers",
        "undecided",
    )

    def __init__(
        self,
        queue_id: int,
        name: str,
        address: str,
        routing_type: RoutingType,
        *,
        durable: bool,
        settings: ResolvedAddressSettings,
        use: AddressUse,
        journal: MessageJournal,
        journal_full: Refused[Deliverer],
        budget: MemoryBudget,
        disposal: _Disposal,
        timers: Timers,
        gate: DeliveryGate,
        slices: Slices,
        unread_up_to: int = 0,
        withheld: Collection[int] = (),
        max_consumers: int | None = None,
        user: str | None = None,
    ) -> None:
        """Open a queue, of which ``WindowedQueue`` reads the messages."""
        super().__init__(
            queue_id,
            name,
            address,
            settings=settings,
            use=use,
            journal=journal,
            journal_full=journal_full,
            budget=budget,
            timers=timers,
            gate=gate,
            slices=slices,
            unread_up_to=unread_up_to,
            withheld=withheld,
        )
        self.routing_type = routing_type
        self.durable = durable
        self.max_consumers = max_consumers
        """Consumers there may be at a time; None for any number."""
        self.user = user
        """Who had it created; None if that was no client, or nobody known."""
        self.in_flight = 0
        """Messages on their way to the store, which are to be in the queue then."""
        self.undecided = 0
        """Units on their way that take messages out, and may be refused yet."""
        self._disposal = disposal
        self._gate = gate
        self._behind: Done | None = None
        """What follows the attempts that are stored next."""

    @override
    def type_of_queue(self) -> RoutingType:
        return self.routing_type

    @property
    @override
    def expiry_look(self) -> ExpiryLook:
        return self._disposal.look

    @property
    def is_expecting(self) -> bool:
        """Whether a message is on its way, or may come back."""
        return bool(self.in_flight or self.undecided)

    @property
    def takes_consumers(self) -> bool:
        """Whether another consumer may be attached."""
        return self.max_consumers is None or self.consumers < self.max_consumers

    # --- going out

    def attach(
        self,
        consumer: Consumer,
        prefetch: int,
        max_bytes: int,
        *,
        selector: Selector | None = None,
    ) -> QueueSubscription:
        """Add a consumer; deliveries begin with its ``resume``. Raises LimitExceeded.

        With a ``selector`` it gets what that matches, and nothing of it waits for other consumers.
        """
        self.refuse_if_too_many()
        subscription = Subscription(self, self._budget, consumer, prefetch, max_bytes)
        if selector is not None or self._levels is not None:
            self.match()
        self._subscriptions[subscription] = None
        if self._matching is None:
            self._turns.join(subscription)
        else:
            self._matching.attach(subscription, selector)
        return subscription

    def refuse_if_too_many(self) -> None:
        """Raise LimitExceeded if there may be no further consumer."""
        if not self.takes_consumers:
            raise LimitExceeded(
                f"queue {quoted(self.name)} has max-consumers {self.max_consumers} already"
            )

    @override
    def detach(self, subscription: QueueSubscription) -> None:
        del self._subscriptions[subscription]
        if self._matching is None:
            self._turns.leave(subscription)
        else:
            self._matching.detach(subscription)

    @override
    def _next(self) -> MessageReference | None:
        ready, returned = self._ready, self._returned
        if returned and (not ready or returned[0][0] < ready[0].seq):
            reference = heapq.heappop(returned)[1]
            self._budget.unclaim(reference.size)
        else:
            reference = ready.popleft()
        if reference.record.expires_ms or self._retries:
            return self.hand_out(reference)
        self._delivered += 1
        return reference

    @override
    def hand_out(self, reference: MessageReference) -> MessageReference | None:
        expires = reference.record.expires_ms
        if expires and expires <= self._timers.time_ms():
            self.move_expired(reference)
            return None
        if self._retries:
            delay_ms = self._retries.pop(reference.seq, 0) - self._timers.time_ms()
            if delay_ms > 0:
                self._budget.claim(reference.size)
                self._delayed.add(reference)
                self._timers.call_later(delay_ms, partial(self._after_delay, [reference]))
                return None
        self._delivered += 1
        return reference

    @override
    def move_expired(self, reference: MessageReference) -> None:
        self.counters.expired += 1
        self._retries.pop(reference.seq, None)
        self._drop(reference)
        self.use.release(size_in_store(reference.record))
        self._disposal.expire(self, reference)

    # --- acknowledged

    @override
    def acknowledge(self, taken: Sequence[MessageReference], done: Done | None) -> None:
        self._acknowledged(taken)
        deleted = locations(taken)
        if self._gate.is_running and (deleted or done):
            try:
                self._journal.delete(deleted, done)
            except JournalClosed as error:
                if done is not None:
                    raise NotLive(str(error)) from None
                # Nobody was told anything: the rows stay, and the next live node delivers them.
        self.dispatch()

    @override
    def settle(self, taken: Sequence[MessageReference], *, rejected: bool) -> Settlement:
        if rejected:
            return Rejected(self, taken)
        settlement = Acknowledged(self, taken)
        self._acknowledged(taken)
        self.dispatch()
        return settlement

    @override
    def refuse_returned(self) -> None:
        raise AcknowledgementRefused(
            "the transaction acknowledges messages of a subscription that was closed:"
            " they went back to their queue; nothing of the transaction was done"
        )

    def _acknowledged(self, references: Sequence[MessageReference]) -> None:
        """Forget delivered messages; their rows are deleted by the caller."""
        self._delivered -= len(references)
        self.counters.acknowledged += len(references)
        if self._matching is not None:
            self._matching.acknowledged(references)
        size = large = 0
        for reference in references:
            size += reference.size
            body = reference.record.large
            if body is not None:
                large += body.size
        self.bytes_in_memory -= size
        self._budget.used -= size
        self._budget.unclaim(size)
        if references:
            self.use.release(size + large, len(references))

    # --- coming back

    @override
    def give_back(
        self,
        references: Sequence[MessageReference],
        *,
        attempted: Sequence[MessageReference] = (),
        done: Done | None = None,
    ) -> None:
        # In their place, to be delivered again. Of many the rest comes in later turns of the loop.
        in_vain = set(attempted)
        if len(references) <= AT_ONCE:
            self._give_last_back(references, in_vain, done)
            self.dispatch()
        else:
            self._slices.run(self._giving_back(references, in_vain, done))

    def _give_last_back(
        self,
        references: Sequence[MessageReference],
        in_vain: set[MessageReference],
        done: Done | None,
    ) -> None:
        """Give back the last of what comes back together, and have ``done`` called behind it."""
        self._behind = done
        try:
            self._give_some_back(references, in_vain)
        finally:
            done, self._behind = self._behind, None
            if done is not None and self._gate.is_running:
                self._keep_attempts((), done)

    def _giving_back(
        self,
        references: Sequence[MessageReference],
        in_vain: set[MessageReference],
        done: Done | None,
    ) -> Steps:
        first = 0
        self._held += 1
        try:
            while first < len(references) - AT_ONCE:
                some = references[first : first + AT_ONCE]
                first += AT_ONCE
                self._give_some_back(some, in_vain)
                if self._matching is not None and not self._dispatching:
                    self._matching.take_in()  # here, and not all of them in one step at the end
                yield GO_ON
            some, first = references[first:], len(references)
            self._give_last_back(some, in_vain, done)
        except Exception:
            # The others come back all the same.
            behind = done if first < len(references) else None
            self._slices.later(self._giving_back(references[first:], in_vain, behind))
            raise
        finally:
            self._held -= 1
        self.dispatch()

    def _give_some_back(
        self, references: Sequence[MessageReference], in_vain: set[MessageReference]
    ) -> None:
        self._delivered -= len(references)
        if self._matching is not None:
            self._matching.answered(references)
        if self._is_forgotten:
            self._budget.unclaim(sum([one.size for one in references]))
            for lost in [one for one in references if one.location is None]:
                self.use.release(size_in_store(lost.record))
            return
        if self.is_leaving:
            in_vain = set()  # what is moved from here on would be deleted here, too
        later: dict[int, list[MessageReference]] = {}
        counted: list[tuple[MessageReference, int]] = []
        left = iter(references)
        try:
            for reference in left:
                reference.redelivered = True
                delay_ms = 0
                if reference in in_vain:
                    after = self._after_attempt(reference)
                    if after is None:
                        continue
                    delay_ms = after
                    counted.append((reference, delay_ms))
                self.counters.redelivered += 1
                if delay_ms:
                    later.setdefault(delay_ms, []).append(reference)
                else:
                    heapq.heappush(self._returned, (reference.seq, reference))
        except Exception:
            # None of them is lost to clients for what failed with one.
            later.setdefault(BACK_OFF_MS, []).extend((reference, *left))
            raise
        finally:
            if counted and self._gate.is_running:
                behind, self._behind = self._behind, None
                self._keep_attempts(counted, behind)
            for delay_ms, delayed in later.items():
                self._delayed.update(delayed)
                self._timers.call_later(delay_ms, partial(self._after_delay, delayed))

    def _after_attempt(self, reference: MessageReference) -> int | None:
        """Count an attempt; return when to try again, or None if the message is a dead letter."""
        reference.attempts += 1
        delay_ms = redelivery_delay_ms(self.settings, reference.attempts, random.random)
        if not 0 < self.settings.max_delivery_attempts <= reference.attempts:
            return delay_ms
        if not self._disposal.dead_letter(self, reference):
            return max(delay_ms, BACK_OFF_MS)
        self.counters.dead_lettered += 1
        self._drop(reference)
        self.use.release(size_in_store(reference.record))
        self._budget.unclaim(reference.size)
        return None

    def _drop(self, reference: MessageReference) -> None:
        """Have a message no more that goes somewhere else, or nowhere."""
        self._let_go(reference)
        if self._matching is not None:
            self._matching.acknowledged((reference,))

    def take_back(self, reference: MessageReference) -> None:
        """Have a message again that was let go to be moved, and could not be: after a while."""
        self._keep(reference)
        if self._matching is not None:
            self._matching.restored((reference,))
        self.use.add(size_in_store(reference.record))
        self._budget.claim(reference.size)
        self._delayed.add(reference)
        self._timers.call_later(BACK_OFF_MS, partial(self._after_delay, [reference]))

    def _after_delay(self, references: list[MessageReference]) -> None:
        back = [one for one in references if one in self._delayed]  # or it was forgotten
        self._delayed.difference_update(back)
        for reference in back:
            heapq.heappush(self._returned, (reference.seq, reference))
        self.dispatch()
