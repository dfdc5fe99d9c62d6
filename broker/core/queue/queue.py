# mypyc compiles this module.
"""A stored queue: who it is, what is set and counted of it, and the parts it is made of.

| part        | has                                                                            |
|-------------|--------------------------------------------------------------------------------|
| `log`       | what is in memory and was never delivered, and what is in the table only       |
| `reader`    | windows of the table, read one at a time                                       |
| `refill`    | when a window is read on into the log                                          |
| `unsettled` | what consumers have, gave back, or wait to get again                           |
| `takers`    | who takes messages, whose turn it is, when delivery begins                     |
| `delivery`  | how messages go to them: from the head, by selectors, or as copies             |
| `policies`  | what is done beyond that: rings, purges, last values, schedules                |

A plain queue delivers from its head. It goes over to selectors, and back, by itself.
"""

import heapq
from collections.abc import Iterable, Sequence
from functools import partial

from typing_extensions import override

from orthia.broker.core.api import Answer, Consumer, Done, MessageReference, Settlement
from orthia.broker.core.errors import (
    AcknowledgementRefused,
    DestinationRefused,
    LimitExceeded,
    NotLive,
    Refusal,
)
from orthia.broker.core.limits.memory import at_most, size_in_store
from orthia.broker.core.limits.quota import AddressUse
from orthia.broker.core.queue.consumers import Consumers
from orthia.broker.core.queue.copying import CopyingDelivery
from orthia.broker.core.queue.counters import QueueCounters
from orthia.broker.core.queue.cursor import Cursor
from orthia.broker.core.queue.delivery import DeliveringQueue, Delivery
from orthia.broker.core.queue.groups import Groups, is_grouped, say_that_a_ring_keeps_none
from orthia.broker.core.queue.head import HeadDelivery
from orthia.broker.core.queue.levels import Level
from orthia.broker.core.queue.log import QueueLog
from orthia.broker.core.queue.options import grouping
from orthia.broker.core.queue.pace import Pace
from orthia.broker.core.queue.policy import Policy, ReplacementPolicy
from orthia.broker.core.queue.reader import WindowReader
from orthia.broker.core.queue.refill import Refill
from orthia.broker.core.queue.selecting import SelectingDelivery
from orthia.broker.core.queue.services import QueueServices
from orthia.broker.core.queue.settlement import Acknowledged, Returned
from orthia.broker.core.queue.subscriptions import QueueSubscription, locations
from orthia.broker.core.queue.unsettled import BACK_OFF_MS, Unsettled
from orthia.broker.core.selectors import Selector
from orthia.broker.quoting import quoted
from orthia.config.address_settings import RoutingType
from orthia.config.addresses import ResolvedAddressSettings
from orthia.config.errors import OrthiaError
from orthia.config.queues import QueueOptions
from orthia.journal.errors import JournalClosed
from orthia.journal.model.changes import MessageLocation
from orthia.journal.model.codec import QueueBinding
from orthia.journal.model.encodings import FIRST_ENCODING
from orthia.journal.model.message import Message
from orthia.journal.model.records import RemovalReason
from orthia.journal.model.unit import Unit


class Queue(DeliveringQueue):
    """One stored queue; all calls on the loop's thread."""

    # With more than 30 attributes CPython finds each one slower, unless they are slots.
    __slots__ = (
        "_budget", "_copying", "_delivery", "_gate", "_head", "_journal", "_may_group",
        "_policies", "address", "counters", "disposal", "durable", "id", "in_flight",
        "is_forgotten", "last_values", "name", "options", "refill", "routing_type", "selecting",
        "settings", "use", "user",
    )  # fmt: skip

    def __init__(
        self,
        binding: QueueBinding,
        settings: ResolvedAddressSettings,
        use: AddressUse,
        services: QueueServices,
        *,
        unread_up_to: int = 0,
        is_schedule: bool = False,
    ) -> None:
        """Open a queue; messages up to the seq ``unread_up_to`` are in the table only.

        If it ``is_schedule``, its messages wait in the table and are delivered by nobody.
        """
        self.id = binding.queue_id
        self.name = binding.name
        self.address = binding.address
        self.routing_type = binding.routing_type
        self.durable = binding.durable
        self.user = binding.user
        """Who had it created; None if that was no client, or nobody known."""
        self.options = options = binding.options
        self.use = use
        """What its address holds, this queue's messages among them."""
        self.counters = QueueCounters()
        self.in_flight = 0
        self.picking = 0
        """Messages on their way to the store, which are to be in the queue then."""
        self.undecided = 0
        self.is_leaving = False
        self.is_forgotten = False
        """Whether it was deleted, and what clients still have comes back to nothing."""
        self.disposal = services.disposal
        self.services = services
        self._journal = services.journal
        self._budget = services.budget
        self._gate = services.gate
        self.log = QueueLog(
            self.id,
            use,
            services,
            self,
            unread_up_to,
            keeps_in_memory=not (options.non_destructive or is_schedule),
            has_levels=options.last_value_key is None and not is_schedule,
        )
        self.pace = Pace(services.slices, services.journal, services.journal_full)
        self.reader = WindowReader(self.name, services.journal, services.timers)
        self.unsettled = Unsettled(self, self.log, self.counters, self.pace, services)
        self.takers = Consumers(
            self, options, at_most(binding.max_consumers), services.budget, services.timers
        )
        self._head = HeadDelivery(self)
        self.refill = Refill(self, self._head)
        self.selecting: SelectingDelivery | None = None
        """What delivers while some consumer does not want every message."""
        self._copying: CopyingDelivery | None = None
        self._delivery: Delivery = self._head
        if options.non_destructive:
            self._copying = CopyingDelivery(
                self, self.log, self._head, services, is_for_one=options.exclusive
            )
            self._delivery = self._copying
        self._may_group = not is_schedule and (options.has_groups or options.ring_size >= 0)
        """Whether a message of a group is to be noticed."""
        self._policies: tuple[Policy, ...] = ()
        self.last_values: ReplacementPolicy | None = None
        """What replaces older messages by newer ones of the same value."""
        self.configure(settings)

    def follow(self, *policies: Policy, replaces: ReplacementPolicy | None = None) -> None:
        """Follow policies from here on; called once by whoever makes the queue."""
        self._policies = policies if replaces is None else (*policies, replaces)
        self.last_values = replaces
        if replaces is not None:
            self.deliver_selectively()

    def configure(self, settings: ResolvedAddressSettings) -> None:
        """Apply the settings of its address."""
        self.settings = settings
        self.log.configure(settings)
        self.refill.configure(settings)

    def change(self, options: QueueOptions) -> None:
        """Follow other options; see ``orthia.broker.core.queue.options`` for which may change."""
        regroups = grouping(options) != grouping(self.options)
        self.options = options
        starts = self.takers.configure(options, self.consumers)
        if not self.consumers:
            if self.selecting is None:
                self._head.begin()
            if regroups:
                self._may_group = options.has_groups or options.ring_size >= 0
                if options.has_groups:
                    self.deliver_selectively().regroup(Groups(options, self._budget.groups))
                elif self.selecting is not None:
                    self.selecting.regroup(None)
        if starts:
            self.resume()

    @property
    def policies(self) -> Sequence[Policy]:
        """The policies that it follows."""
        return self._policies

    def also_follow(self, policy: Policy) -> None:
        """Follow one more policy."""
        self._policies = (policy, *self._policies)

    # --- what others see

    @override
    def type_of_queue(self) -> RoutingType:
        return self.routing_type

    @property
    def consumers(self) -> int:
        """How many consumers are attached; a stream that reads the queue is one."""
        copying = self._copying
        taking = len(self.takers.subscriptions) + (self.takers.stream is not None)
        return taking if copying is None else taking + len(copying.subscriptions)

    @property
    def subscriptions(self) -> list[QueueSubscription]:
        """The consumers that are attached."""
        copying = self._copying
        copied = [] if copying is None else copying.subscriptions
        return [*copied, *self.takers.subscriptions]

    @property
    def max_consumers(self) -> int | None:
        """Consumers there may be at a time; None for any number."""
        return self.takers.most

    @max_consumers.setter
    def max_consumers(self, most: int | None) -> None:
        self.takers.most = most

    @property
    def takes_consumers(self) -> bool:
        """Whether another consumer may be attached."""
        most = self.takers.most
        return most is None or self.consumers < most

    @property
    def has_takers(self) -> bool:
        """Whether there is any consumer that takes messages out."""
        return bool(self.takers.subscriptions)

    @property
    def depth(self) -> int:
        """How many messages the queue has, as far as they are counted yet."""
        return self.log.depth

    @property
    def undelivered(self) -> int:
        """How many of those no consumer has."""
        return self.log.depth - self.unsettled.delivered

    @property
    def is_expecting(self) -> bool:
        """Whether a message is on its way, or may come back."""
        return bool(self.in_flight or self.undecided)

    @property
    def delivers(self) -> bool:
        """Whether messages go out at this moment, if there is somebody who wants them."""
        values = self.last_values
        return self.takers.is_started and (values is None or values.is_ready)

    @property
    def is_paused(self) -> bool:
        """Whether an operator has paused it, or its address."""
        return self.takers.is_paused

    def pause(self, *, is_paused: bool) -> None:
        """Deliver nothing more, or deliver again; what consumers have stays with them."""
        self._pause("queue", is_paused=is_paused)

    def pause_with_address(self, *, is_paused: bool) -> None:
        """Do the same with all queues of the address."""
        self._pause("address", is_paused=is_paused)

    def _pause(self, by: str, *, is_paused: bool) -> None:
        self.takers.pause(by, is_paused=is_paused)
        if not is_paused:
            self.resume()

    @property
    def stream(self) -> str | None:
        """The id of the stream that reads the queue in place of consumers; None for none."""
        return self.takers.stream

    def reserve(self, stream: str | None) -> None:
        """Reserve the queue for a stream: deliver and expire nothing; None ends that."""
        self.takers.stream = stream
        self._pause("stream", is_paused=stream is not None)

    def shows(self, record: Message, seq: int) -> bool:
        """Return whether a message is to be seen: not expired, and in no transaction in doubt."""
        expires = record.expires_ms
        is_expired = bool(expires) and expires <= self.services.timers.time_ms()
        return not is_expired and not self.log.cursor.is_withheld(seq)

    def shown_in_memory(self) -> list[tuple[int, list[MessageReference]]]:
        """Return the messages that are not stored and that no consumer has, in order.

        By what others of their level are stored under, the highest level first.
        """
        selecting = self.selecting
        everywhere: tuple[Iterable[MessageReference], ...] = (
            self.log.ready,
            [reference for _, reference in self.unsettled.returned],
            self.unsettled.delayed,
            () if selecting is None else selecting.all_in_memory(),
        )
        unstored = [one for some in everywhere for one in some if one.location is None]
        unstored.sort(key=lambda one: one.seq)
        levels = self.log.levels
        return [(self.id, unstored)] if levels is None else levels.by_level(unstored)

    # --- coming in

    def add(self, reference: MessageReference) -> None:
        """Take a message that is stored, or that is in memory only; in the order of seq."""
        self.place(reference)
        copying = self._copying
        if self.takers.subscriptions or (copying is not None and copying.is_watched):
            self.dispatch()

    def place(self, reference: MessageReference) -> None:
        """Take a message as ``add`` does, of several of which none is to be delivered yet."""
        self.counters.added += 1
        record = reference.record
        # As ``may_be_grouped``, which for each message would be a call. Not ``in``: bytes look for
        # a number first, and make an exception of what is none.
        may_be = self._may_group and (
            record.stated or (record.head.find(b"ID:") >= 0 and record.encoding == FIRST_ENCODING)
        )
        if may_be and is_grouped(record):
            self.keep_groups()
        log = self.log
        large = record.large
        log.stored_bytes += reference.size if large is None else reference.size + large.size
        level = None if log.levels is None else log.levels.get(record.priority)
        if level is not None and level.id != self.id:
            self._place_in(level, reference)
        elif reference.location is None or log.takes_in_memory(reference.size):
            log.keep(reference)
            log.ready.append(reference)
        else:
            tail_before = log.cursor.tail_seq
            log.cursor.leave(reference.seq)
            if self.selecting is not None:
                self.selecting.left(reference, self.id, tail_before)
        if self._copying is not None:
            self._copying.placed(reference)
        if self._policies:
            for policy in self._policies:
                policy.placed(reference)

    def _place_in(self, level: Level, reference: MessageReference) -> None:
        """Take a message of a level that is not the queue's own."""
        selecting, cursor = self.deliver_selectively(), level.cursor
        is_stored = reference.location is not None
        if is_stored and not (
            cursor.read_seq >= cursor.tail_seq and self.log.has_room(reference.size)
        ):
            tail_before = cursor.tail_seq
            cursor.leave(reference.seq)
            selecting.left(reference, level.id, tail_before)
            return
        self.log.keep(reference)
        selecting.came(reference)

    # --- consumers

    def attach(
        self,
        consumer: Consumer,
        prefetch: int,
        max_bytes: int,
        *,
        selector: Selector | None = None,
    ) -> QueueSubscription:
        """Add a consumer; deliveries begin with its ``resume``. Raises BrokerError.

        With a ``selector`` it gets what that matches, and nothing of it waits for other consumers.
        """
        options = self.options
        for policy in self._policies:
            policy.attaching()
        takes = selector is not None and self._copying is None
        if takes and (options.exclusive or options.ring_size >= 0):
            kind = "exclusive" if options.exclusive else "a ring"
            raise DestinationRefused(
                f"queue {quoted(self.name)} is {kind}, where messages are taken from the front"
                " alone: subscribe without a selector, or give the queue a filter"
            )
        if self.stream is not None:
            raise DestinationRefused(
                f"queue {quoted(self.name)} is read by stream {quoted(self.stream)} alone"
            )
        if not self.takes_consumers:
            raise LimitExceeded(
                f"queue {quoted(self.name)} has max-consumers {self.max_consumers} already"
            )
        if self._copying is None and (selector is not None or self.log.levels is not None):
            self.deliver_selectively()
        subscription = self._delivery.attach(consumer, prefetch, max_bytes, selector)
        if self.takers.came(self.consumers, self.resume) and self._copying is not None:
            self.services.timers.call_later(0, self.resume)  # for those that came before it
        return subscription

    @override
    def join(self, subscription: QueueSubscription) -> None:
        self._delivery.join(subscription)

    @override
    def detach(self, subscription: QueueSubscription) -> None:
        del self.takers.subscriptions[subscription]
        self._delivery.detach(subscription)
        self.consumer_left()

    def consumer_left(self) -> None:
        """Note that one consumer is gone."""
        if not self.consumers:
            self.takers.all_left()
            for policy in self._policies:
                policy.consumers_gone()

    def leave(self, reason: str) -> None:
        """End every consumer for a ``reason``, and deliver nothing any more."""
        self.is_leaving = True
        for subscription in self.subscriptions:
            subscription.fail(reason, Refusal.DESTINATION)

    # --- going out

    @override
    def resume(self) -> None:
        self._delivery.resume()
        self.refill.refill()
        self.dispatch()

    @override
    def dispatch(self) -> bool:
        delivery, values = self._delivery, self.last_values
        if not self.takers.is_started or (values is not None and not values.is_ready):
            return False
        is_done = delivery.dispatch()
        if delivery is not self._delivery:
            return self.dispatch()  # it went back to the head
        if is_done:
            cursor = self.log.cursor
            if cursor.read_seq < cursor.tail_seq:
                self.refill.refill()
            if self._policies:
                for policy in self._policies:
                    policy.dispatched()
        return is_done

    @override
    def hand_out(self, reference: MessageReference) -> MessageReference | None:
        for policy in self._policies:
            policy.going_out(reference)
        unsettled = self.unsettled
        expires = reference.record.expires_ms
        if expires and expires <= self.services.timers.time_ms():
            self.move_expired(reference)
            return None
        if unsettled.retries and unsettled.is_put_off(reference, self.services.timers.time_ms()):
            for policy in self._policies:
                policy.put_off(reference)
            return None
        unsettled.delivered += 1
        return reference

    @override
    def move_expired(self, reference: MessageReference) -> None:
        for policy in self._policies:
            policy.expiring(reference)
        self.counters.expired += 1
        self.unsettled.retries.pop(reference.seq, None)
        self.drop(reference)
        self.log.release(size_in_store(reference.record))
        self.disposal.expire(self, reference)

    def remove_by_operator(self, reference: MessageReference) -> None:
        """Discount a message that an operator deletes or moves; ``restore_removed`` undoes it.

        It was taken out by ``orthia.broker.core.queue.taking``.
        """
        for policy in self._policies:
            policy.expiring(reference)
        self.counters.removed += 1
        self.unsettled.retries.pop(reference.seq, None)
        self.drop(reference)
        self.log.release(size_in_store(reference.record))

    def remove_acknowledged(self, reference: MessageReference) -> None:
        """Discount a message that nobody has, since an application acknowledged it."""
        self.remove_by_operator(reference)
        self.counters.removed -= 1
        self.counters.acknowledged += 1

    def restore_removed(self, reference: MessageReference) -> None:
        """Take a message again that an operator could not remove: nobody tries again by himself."""
        self.counters.removed -= 1
        self.take_back(reference, 0)

    def drop(self, reference: MessageReference) -> None:
        """Discount a message that moves to another queue or is dropped."""
        self.let_go(reference)
        if self._policies:
            for policy in self._policies:
                policy.gone((reference,))

    def let_go(self, reference: MessageReference) -> None:
        """Discount a message that a policy removes."""
        self.log.let_go(reference)
        if self.selecting is not None:
            self.selecting.acknowledged((reference,))

    def is_current(self, queue_id: int, reference: MessageReference) -> bool:
        """Return whether a message was not replaced since it was read."""
        values = self.last_values
        return values is None or values.is_current(queue_id, reference)

    @override
    def is_looking_for(self, subscription: QueueSubscription) -> bool:
        if self.is_leaving or not self.delivers:
            return False
        if self._copying is not None:
            return self._copying.is_looking_for(subscription)
        pace = self.pace
        if pace.held or pace.is_going_on or pace.waits_for_journal:
            return True
        if self.selecting is not None:
            return self.selecting.is_looking_for(subscription)
        return self.refill.is_reading

    # --- acknowledged

    @override
    def acknowledge(self, taken: Sequence[MessageReference], done: Done | None) -> None:
        self.acknowledged(taken)
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
    def settle(self, taken: Sequence[MessageReference], answer: Answer) -> Settlement:
        if answer is not Answer.ACKNOWLEDGED:
            return Returned(self, taken, answer)
        settlement = Acknowledged(self, taken)
        self.acknowledged(taken)
        self.dispatch()
        return settlement

    @override
    def refuse_returned(self) -> None:
        raise AcknowledgementRefused(
            "the transaction acknowledges messages of a subscription that was closed:"
            " they went back to their queue; nothing of the transaction was done"
        )

    def acknowledged(self, references: Sequence[MessageReference]) -> None:
        """Forget delivered messages; their rows are deleted by the caller."""
        self.counters.acknowledged += len(references)
        if self.selecting is not None:
            self.selecting.acknowledged(references)
        self.unsettled.acknowledged(references)
        if self._policies:
            for policy in self._policies:
                policy.gone(references)

    @override
    def restore(self, references: Sequence[MessageReference]) -> None:
        if self.log.levels is not None:
            self.deliver_selectively()
        if self.selecting is not None:
            self.selecting.restored(references)
        self.counters.acknowledged -= len(references)
        self.unsettled.restored(references)
        for policy in self._policies:
            policy.restored(references)

    # --- coming back

    @override
    def give_back(
        self,
        references: Sequence[MessageReference],
        *,
        attempted: Sequence[MessageReference] = (),
        is_last: bool = False,
        done: Done | None = None,
    ) -> None:
        stored = [one.seq for one in references if one.location is not None]
        if not stored or self._journal.acks is None or not self._gate.is_running:
            self.unsettled.give_back(references, attempted, done, is_last=is_last)
            return
        # Nothing is delivered meanwhile: what comes back may be older than what is next.
        self.pace.suspend()
        self.undecided += 1
        answered = partial(self._give_rest_back, references, attempted, is_last, done)
        self._journal.ask(partial(self._journal.windows.acknowledged, stored), answered)

    def _give_rest_back(
        self,
        references: Sequence[MessageReference],
        attempted: Sequence[MessageReference],
        is_last: bool,  # noqa: FBT001 - it is passed on by ``partial``
        done: Done | None,
        acknowledged: set[int] | OrthiaError,
    ) -> None:
        """Give messages back but for those that an application acknowledged in the database.

        If that could not be read, all come back: whoever gets one again cannot acknowledge it.
        """
        if not (isinstance(acknowledged, OrthiaError) or self.is_leaving or self.is_forgotten):
            settled = [one for one in references if one.seq in acknowledged]
            if settled:
                references = [one for one in references if one.seq not in acknowledged]
                attempted = [one for one in attempted if one.seq not in acknowledged]
                self.acknowledge(settled, None)
        self.undecided -= 1
        self.pace.unsuspend()
        self.unsettled.give_back(references, attempted, done, is_last=is_last)

    def returning(self, references: Sequence[MessageReference]) -> Sequence[MessageReference]:
        """Return those of the messages given back that the queue still keeps."""
        if not (self.is_leaving or self.is_forgotten):
            for policy in self._policies:
                references = policy.returning(references)
        return references

    def answered(self, references: Sequence[MessageReference]) -> None:
        """Note that messages have left their consumers."""
        if self.selecting is not None:
            self.selecting.answered(references)

    def returned(self, references: Sequence[MessageReference]) -> None:
        """Note that messages were given back."""
        for policy in self._policies:
            policy.returned(references)

    def take_in(self) -> None:
        """Sort what was given back to where delivery looks for it."""
        if self.selecting is not None and not self.pace.is_delivering:
            self.selecting.take_in()

    def take_back(self, reference: MessageReference, after_ms: int = BACK_OFF_MS) -> None:
        """Take a message again that was let go to be moved, and could not be: after a while."""
        if self.selecting is not None:
            self.selecting.restored((reference,))
        self.unsettled.take_back(reference, after_ms)
        for policy in self._policies:
            policy.taken_back(reference)

    # --- consumers that do not want every message

    def deliver_selectively(self) -> SelectingDelivery:
        """Return what delivers out of the middle, from here on to all consumers."""
        selecting = self.selecting
        if selecting is None:
            self.refill.outdate()
            selecting = self.selecting = SelectingDelivery(
                self, self.refill, is_permanent=self.last_values is not None
            )
            for subscription in self.takers.subscriptions:
                subscription.has_turn = False
                selecting.add(subscription, None)
            self._head.end()
            self._deliver_by(selecting)
        return selecting

    def _deliver_by(self, delivery: Delivery) -> None:
        if self._copying is None:
            self._delivery = delivery
        else:
            self._copying.below = delivery

    @override
    def deliver_from_head(self) -> None:
        selecting = self.selecting
        stays = self.last_values is not None and not (self.is_leaving or self.is_forgotten)
        if selecting is None or stays:
            return
        ready, returned = selecting.dissolve()
        self.selecting = None
        self._may_group = self.options.has_groups
        self.log.ready.extendleft(reversed(ready))
        for reference in returned:
            heapq.heappush(self.unsettled.returned, (reference.seq, reference))
        self._head.begin()
        self._deliver_by(self._head)

    @override
    def keep_groups(self) -> None:
        # With one consumer all groups are together; a ring is taken from the front alone.
        # And where each gets all, there is nothing to be kept together.
        if not self._may_group:
            return
        self._may_group = False
        if self.options.has_groups:
            self.deliver_selectively().group(Groups(self.options, self._budget.groups))
        elif not self.options.exclusive:
            say_that_a_ring_keeps_none(self.name)

    # --- reading

    @property
    @override
    def reads_at_head(self) -> bool:
        return self.selecting is None and bool(self.takers.subscriptions)

    @override
    def window_answered(self) -> None:
        if self.selecting is not None:
            self.selecting.plain_window_answered()

    def shed(self, size: int) -> bool:
        """Leave the newest messages, up to ``size`` bytes, to the table: nobody consumes here.

        Return whether there is anything left that can be shed later.
        """
        log, selecting = self.log, self.selecting
        if selecting is None:
            log.shed(0 if self.takers.subscriptions or self.refill.is_reading else size)
            log.is_holder = log.in_memory > 0
            return log.is_holder
        size = selecting.shed(size)
        selecting.take_in()
        while size > 0 and not self.takers.subscriptions:
            newest = selecting.leave_newest()
            if newest is None:
                break
            log.let_go(newest)
            size -= newest.size
        log.is_holder = log.in_memory > 0 or selecting.holds
        return log.is_holder

    # --- being emptied

    def delete_rows(self, rows: Iterable[MessageLocation]) -> None:
        """Delete messages from the table that are removed from the queue."""
        unit = Unit()
        for location in rows:
            unit.delete(location, RemovalReason.DELETED)
        try:
            self._journal.append_unit(unit)
        except JournalClosed:
            return  # this node is ending: the next one removes them

    def forget_memory(self) -> int:
        """Forget what is in memory; return how many messages were nowhere else."""
        for policy in self._policies:
            policy.forgotten()
        self.is_forgotten = True  # what clients that are ended still have is given back later
        self.deliver_from_head()
        references = [*self.log.ready, *self.unsettled.forget()]
        self.log.forget(self.unsettled.delivered)
        lost = [one for one in references if one.location is None]
        for one in lost:
            self.log.release(size_in_store(one.record))
        return len(lost)

    # --- priorities

    def id_for_client(self, priority: int) -> int:
        """Return what a client's messages of a priority are stored under.

        Raises NotLive, and LimitExceeded if the level for it would be one too many.
        """
        if not self.log.is_known(priority):
            told = f"what keeps messages of priority {priority} of queue {quoted(self.name)} apart"
            self.services.creations.refuse_for_broker(self.user, told)
        return self.id_for(priority)

    def id_for(self, priority: int) -> int:
        """Return what messages of a priority are stored under; raises NotLive.

        The first message of a priority creates a level, which is stored before it.
        """
        if not self.log.is_known(priority):
            level_id = self._bind_level(priority)
            self.services.creations.opened(self.user)
            self._add_level(Level(level_id, priority, Cursor(withheld=self.log.withheld)))
            return level_id
        return self.log.known_id_for(priority)

    def _bind_level(self, priority: int) -> int:
        """Store the binding of a new level, before any of its messages; return its id."""
        try:
            level_id = self._journal.next_id()
            self._journal.add_binding(
                QueueBinding(
                    level_id,
                    self.name,
                    self.address,
                    self.routing_type,
                    durable=self.durable,
                    priority=priority,
                )
            )
        except JournalClosed as error:
            raise NotLive(str(error)) from None
        return level_id

    def open_level(self, binding: QueueBinding, unread_up_to: int) -> None:
        """Open what an earlier node left of a priority: messages up to the seq."""
        if binding.priority is not None:
            self.services.creations.opened(self.user)
            cursor = Cursor(unread_up_to, self.log.withheld)
            self._add_level(Level(binding.queue_id, binding.priority, cursor))

    def _add_level(self, level: Level) -> None:
        self.log.add_level(level)
        if self.selecting is not None:
            self.selecting.add_level(level)

    # --- what earlier nodes left

    def open_trimmed(self) -> None:
        """Begin to remove what an earlier node left and the policies do not keep."""
        if self.last_values is not None:
            self.last_values.opened()
            return
        for policy in self._policies:
            policy.opened()

    @property
    def uncounted_after(self) -> int | None:
        """The seq behind which messages of earlier epochs are not counted; None if all are."""
        return None if self.is_leaving else self.log.cursor.uncounted_after

    def counted(
        self,
        after: int,
        up_to: int,
        messages: int,
        payload_bytes: int,
        cursor: Cursor | None = None,
    ) -> None:
        """Note how many messages the store has with ``after < seq <= up_to``.

        And of how many bytes, as the journal counts them, which is not as ``use`` does. They are
        the queue's own, or those of the level that has ``cursor``.
        If a window was read since that was asked for, some of them are in memory or gone by now,
        and nobody can say how many: then nothing is noted, and ``uncounted_after`` has moved.
        """
        cursor = cursor or self.log.cursor
        if not self.is_leaving and cursor.uncounted_after == after:
            self.log.count(cursor, up_to, messages, payload_bytes, self.address)
            if self.selecting is not None:
                self.resume()
        for policy in self._policies:
            policy.counted()

    @property
    def is_counted(self) -> bool:
        """Whether all is counted that earlier nodes left."""
        return self.uncounted_after is None and self.log.is_counted
