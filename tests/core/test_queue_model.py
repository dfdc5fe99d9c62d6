"""One queue against a model of it, with every option of a queue and all that clients say together.

Each run draws what kind of queue it is, how much of it is in memory, how often and when messages
come again, and whether the store is slow. Clients then send, consume, browse, commit and leave at
random; the store refuses, another queue needs memory, time passes, and nodes follow one another.
With a store that answers at once the model says exactly what each consumer gets next. With a slow
one it says what nobody may get, and what is there once all is stored.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from orthia.broker.core.api import Browser, MessageReference, TransactionWork
from orthia.broker.core.queue import refill, showing, taken
from orthia.config.address_settings import (
    AddressSettings,
    QueueSettings,
    RoutingType,
)
from orthia.config.errors import OrthiaError
from orthia.config.settings import Settings
from orthia.journal.errors import HeldElsewhere, StoreFull, UnitRefused
from orthia.journal.model.message import decode_message
from tests.core.support import (
    ANYONE,
    SETTINGS,
    Clock,
    CoreUnderTest,
    FakeBrowser,
    FakeConsumer,
    anyone,
    declared,
)
from tests.core.support import message as outgoing
from tests.stomp.test_scheduled import send

NAME: Final = "orders"
QUEUE: Final = f"/queue/{NAME}"
SCHEDULE: Final = f"orthia.scheduled.anycast.{NAME}"
KINDS: Final = "abc"
"""What messages say of themselves, one after the other at random."""
SELECTORS: Final[dict[str | None, str]] = {
    None: KINDS,
    "kind = 'a'": "a",
    "kind <> 'a'": "bc",
    "kind IN ('a', 'b')": "ab",
    "kind = 'd'": "",
}
"""And which of them a selector matches."""
QUEUES: Final[dict[str, dict[str, Any]]] = {
    "plain": {},
    "exclusive": {"exclusive": True},
    "ring": {"ring_size": 4},
    "ring of none": {"ring_size": 0},
    "last value": {"last_value": True},
    "purged": {"purge_on_no_consumers": True},
    "for two": {"consumers_before_dispatch": 2},
    "copying": {"non_destructive": True},
    "copying last value": {"non_destructive": True, "last_value": True},
}
"""The kinds of queues there are."""
LONGEST_MS: Final = 30
"""How long a message is delayed, or lives, at most; and after how long it is delivered again."""
SCANS_MS: Final = 61_000
"""In which expired messages are looked for, whatever the queue does."""
EXAMPLES: Final = int(os.environ.get("QUEUE_EXAMPLES", "20"))
DATA = st.data()
POISON: Final = UnitRefused("for the model")
REASONS = st.sampled_from([POISON, StoreFull("for the model"), HeldElsewhere()])
"""Why the store refuses a unit: it is poison, there is no room, or another has locked a row."""


@dataclass
class Sent:
    """What a client says of a message, and what became of it."""

    kind: str
    group: str
    value: str
    priority: int
    persistent: bool
    expires_ms: int = 0
    attempts: int = 0
    was_delivered: bool = False
    """Perhaps: whoever gets it next is told so."""


@dataclass(eq=False)
class ModelConsumer(FakeConsumer):
    """A consumer whose deliveries are judged as they come."""

    judge: Callable[["ModelConsumer", MessageReference], None] = lambda *_: None
    mistakes: list[AssertionError] = field(default_factory=list)
    """Deliveries that were wrong: the broker would take the error for one of the client."""
    prefetch: int = 1
    kinds: str = KINDS
    """What it is to get."""
    seen: set[int] = field(default_factory=set)
    """What it was shown of a queue that shows copies."""
    unanswered: int = 0
    """How many of those it has not answered."""

    def deliver(self, reference: MessageReference) -> None:
        """Note and judge a delivery."""
        super().deliver(reference)
        try:
            self.judge(self, reference)
        except AssertionError as mistake:
            self.mistakes.append(mistake)


def number_of(reference: MessageReference) -> int:
    """Return which message it is."""
    return int(reference.record.body)


def unexpected() -> None:
    """Fail: what was refused is said to be done."""
    raise AssertionError("it was refused")


class QueueMachine(RuleBasedStateMachine):
    """The model is the list of what must still be there, and who has what of it."""

    options: Settings
    clock: Clock

    def __init__(self, queue: str) -> None:
        """Begin later with a queue of one of the kinds of ``QUEUES``."""
        super().__init__()
        self.queue = queue

    @initialize(
        in_memory=st.sampled_from([-1, 4, 4, 1]),
        attempts=st.sampled_from([-1, -1, 2]),
        delay_ms=st.sampled_from([0, 0, LONGEST_MS]),
        is_slow=st.sampled_from([False, False, True]),
        prefetches=st.lists(st.integers(1, 6), max_size=2),
    )
    def begin(
        self,
        in_memory: int,
        attempts: int,
        delay_ms: int,
        prefetches: list[int],
        *,
        is_slow: bool,
    ) -> None:
        """A node begins, and some clients come."""
        options = QUEUES[self.queue]
        self.is_ring = "ring_size" in options
        # What is too much of a ring and in the table goes a moment later, if others read there.
        self.is_slow = is_slow or (self.is_ring and in_memory >= 0)
        self.in_memory = in_memory
        self.attempts = -1 if self.is_slow else attempts
        self.delay_ms = delay_ms
        itself = QueueSettings(NAME, RoutingType.ANYCAST, options=options)
        self.options = replace(
            SETTINGS,
            addresses=(declared(NAME, itself),),
            address_settings=(
                AddressSettings(
                    NAME,
                    max_size_messages=in_memory,
                    max_delivery_attempts=self.attempts,
                    redelivery_delay=delay_ms,
                ),
            ),
        )
        self.clock = Clock(self.options)
        self.core.journal.auto_commit = not self.is_slow
        self.ring_size = options.get("ring_size", 0)
        self.is_copying = "non_destructive" in options
        self.has_values = "last_value" in options
        self.mistakes: list[AssertionError] = []
        self.sent: dict[int, Sent] = {}
        self.waiting: list[int] = []
        """What is in the queue, in the order in which it came."""
        self.consumers: list[ModelConsumer] = []
        self.held: dict[int, ModelConsumer] = {}
        """Who was delivered a message and has not answered."""
        self.aside: set[int] = set()
        """What is in a transaction that commits."""
        self.owners: dict[str, ModelConsumer] = {}
        """Who has a group."""
        self.delayed: dict[int, int] = {}
        """When a message is delivered again that was delivered in vain."""
        self.coming_back: set[int] = set()
        """Which of those may be delivered from this moment on, in any order."""
        self.due: dict[int, int] = {}
        """When a message comes into the queue, of those that have not yet."""
        self.arriving: list[int] = []
        """What is due at this moment, and comes into the queue one after the other."""
        self.superseded: set[int] = set()
        """What consumers have and is not the last value any more: it does not come back, and is
        stored only if the newer one came in a later transaction."""
        self.known: set[str] = set()
        """The duplicate ids that were sent."""
        self.dead: list[int] = []
        self.uncounted: dict[int, int] = {}
        """Attempts in the store of messages of which it refused to count the last ones."""
        self.maybe_expired: set[int] = set()
        """What had expired when it was deleted for another reason: perhaps it was moved before."""
        self.maybe_gone: set[int] = set()
        """What a slow store may have deleted by now."""
        self.stored: set[int] = set()
        """What a slow store has said to have."""
        self.is_started = self.queue != "for two"
        for prefetch in prefetches:
            self.subscribe(prefetch, None)

    @property
    def core(self) -> CoreUnderTest:
        """The node that is live."""
        return self.clock.core

    # --- what is to be delivered

    def judge(self, consumer: ModelConsumer, reference: MessageReference) -> None:
        """Accept a delivery: the next in order, to nobody else, flagged if it may be known."""
        number = number_of(reference)
        assert number in self.sent
        sent = self.sent[number]
        while number in self.arriving:
            # Of what is due at one moment no more need have come before what is delivered.
            self.place(self.arriving.pop(0))
        assert consumer.is_writable
        assert sent.kind in consumer.kinds
        assert number in self.waiting
        if self.is_copying:
            assert number not in consumer.seen
            assert not reference.redelivered
            consumer.seen.add(number)
            consumer.unanswered += 1
            behind = [one for one in consumer.seen if self.comes_before(number, one)]
            assert self.has_values or not behind
            return
        assert number not in self.held
        if self.is_slow or self.aside or number in self.coming_back:
            self.delayed.pop(number, None)
            assert self.has_group(consumer, number)
            assert number in self.coming_back or number not in self.aside
        else:
            assert number == next(self.wanted_by(consumer), None)
        if not self.is_slow:
            assert reference.redelivered is sent.was_delivered
            assert reference.attempts == sent.attempts
        sent.was_delivered = True
        self.held[number] = consumer
        if sent.group and self.queue != "exclusive" and not self.is_ring:
            self.owners[sent.group] = consumer
        assert self.unanswered(consumer) <= consumer.prefetch

    def comes_before(self, number: int, other: int) -> bool:
        """Whether one of two messages of a priority came before the other."""
        is_before = self.waiting.index(number) < self.place_of(other)
        return is_before and self.sent[number].priority == self.sent[other].priority

    def place_of(self, number: int) -> int:
        """Return the place of a message in the queue; before all others if it has left."""
        return self.waiting.index(number) if number in self.waiting else -1

    def wanted_by(self, consumer: ModelConsumer) -> Iterator[int]:
        """Yield what a consumer wants, and may have, and nobody has; in order."""
        is_next = self.queue != "exclusive" or consumer is self.consumers[0]
        if not is_next or not self.is_started:
            return
        for number in self.in_order(self.waiting):
            is_free = number not in (consumer.seen if self.is_copying else self.held)
            is_here = number not in self.aside and number not in self.delayed
            is_its_own = self.sent[number].kind in consumer.kinds
            may_have = is_its_own and self.has_group(consumer, number)
            if is_free and is_here and may_have and not self.has_expired(number):
                yield number

    def has_group(self, consumer: ModelConsumer, number: int) -> bool:
        """Whether a consumer may have a message as far as its group says."""
        return self.owners.get(self.sent[number].group, consumer) is consumer

    def in_order(self, numbers: Iterable[int]) -> list[int]:
        """Put what is in order of arrival into that of delivery."""
        if self.has_values:
            return list(numbers)
        return sorted(numbers, key=lambda one: -self.sent[one].priority)

    def has_expired(self, number: int) -> bool:
        """Whether a message is not to be delivered any more."""
        return 0 < self.sent[number].expires_ms <= self.clock.ms()

    def unanswered(self, consumer: ModelConsumer) -> int:
        """Return how many messages a consumer holds."""
        if self.is_copying:
            return consumer.unanswered
        return sum(1 for one in self.held.values() if one is consumer)

    # --- what becomes of messages

    def place(self, number: int) -> None:
        """A message comes into the queue."""
        self.waiting.append(number)
        if not self.has_values or not self.sent[number].value:
            return
        for older in self.waiting[:-1]:
            if self.sent[older].value != self.sent[number].value:
                continue
            if self.is_slow:
                self.maybe_gone.add(older)
            elif older in self.held or older in self.aside:
                self.superseded.add(older)
            else:
                self.delete(older)

    def delete(self, number: int) -> None:
        """A message leaves the queue without a consumer."""
        if self.has_expired(number):
            self.maybe_expired.add(number)
        self.waiting.remove(number)
        self.delayed.pop(number, None)

    def come_back(self, number: int, *, in_vain: bool) -> None:
        """A consumer has a message no more, and has not acknowledged it."""
        self.held.pop(number, None)
        if number in self.superseded:
            self.waiting.remove(number)
            return
        sent = self.sent[number]
        sent.attempts += in_vain
        if in_vain:
            self.uncounted.pop(number, None)
        if in_vain and 0 < self.attempts <= sent.attempts:
            self.waiting.remove(number)
            self.dead.append(number)
        elif in_vain and self.delay_ms:
            self.delayed[number] = self.clock.ms() + self.delay_ms

    def settle(self) -> None:
        """Whatever is to happen at this moment has happened."""
        self.core.settle()
        for mistake in self.mistakes:
            raise mistake
        if self.queue == "purged" and not self.consumers:
            if self.is_slow:
                self.maybe_gone.update(self.waiting)
            else:
                self.clock.pass_ms(0)
                for number in [*self.waiting]:
                    self.delete(number)
        elif self.is_ring:
            left = [one for one in self.waiting if one not in self.held and one not in self.aside]
            if self.is_slow:
                self.maybe_gone.update(left)
                return
            left.sort(key=lambda one: self.sent[one].priority)
            for number in left[: max(0, len(left) - self.ring_size)]:
                self.delete(number)

    # --- what clients do

    @rule(
        kinds=st.text(KINDS, min_size=1, max_size=9),
        group=st.sampled_from(["", "", "", "g", "h"]),
        value=st.sampled_from(["", "x", "y", "z"]),
        priority=st.sampled_from([4, 4, 4, 9, 0]),
        persistent=st.booleans(),
        delay_ms=st.sampled_from([0, 0, 0, 1, 5, LONGEST_MS]),
        lives_ms=st.sampled_from([0, 0, 0, 1, 7, LONGEST_MS]),
        duplicate_id=st.sampled_from(["", "", "", "1", "2"]),
    )
    def send(
        self, kinds: str, delay_ms: int, lives_ms: int, duplicate_id: str, **said: Any
    ) -> None:
        """A producer sends one message after the other."""
        if self.is_slow:
            delay_ms, lives_ms, duplicate_id, said["persistent"] = 0, 0, "", True
        if self.is_ring:
            lives_ms, said["priority"] = 0, 4  # which of several goes depends on where they are
        for kind in kinds:
            number = len(self.sent) + 1
            expires_ms = self.clock.ms() + lives_ms if lives_ms else 0
            self.sent[number] = Sent(kind, expires_ms=expires_ms, **said)
            if duplicate_id and duplicate_id in self.known:
                pass  # it was sent before
            elif delay_ms:
                self.due[number] = self.clock.ms() + delay_ms
            else:
                self.place(number)
            if duplicate_id and (delay_ms or self.consumers or self.queue != "purged"):
                self.known.add(duplicate_id)  # of what is not stored the store keeps no id
            if delay_ms:
                headers = self.headers(number)
                if duplicate_id:
                    headers["_AMQ_DUPL_ID"] = duplicate_id
                send(self.clock, str(number), AMQ_SCHEDULED_DELAY=delay_ms, **headers)
            else:
                self.send_at_once(number, duplicate_id or None)
            self.settle()

    def headers(self, number: int) -> dict[str, Any]:
        """Return what a client says of a message."""
        sent = self.sent[number]
        headers: dict[str, Any] = {"kind": sent.kind, "priority": sent.priority}
        if sent.group:
            headers["JMSXGroupID"] = sent.group
        if sent.value:
            headers["_AMQ_LVQ_NAME"] = sent.value
        if sent.expires_ms:
            headers["expires"] = sent.expires_ms
        if not sent.persistent:
            headers["persistent"] = "false"
        return headers

    def send_at_once(self, number: int, duplicate_id: str | None = None) -> None:
        """Send a message that is not delayed."""
        sent = self.outgoing(number)._replace(duplicate_id=duplicate_id)
        self.core.broker.send(ANYONE, QUEUE, sent, lambda: self.stored.add(number))

    def outgoing(self, number: int) -> Any:
        """Return a message as a session hands it on."""
        sent = self.sent[number]
        lines = (f"{name}:{value}\n" for name, value in self.headers(number).items())
        return outgoing(
            str(number),
            headers="".join(lines).encode(),
            persistent=sent.persistent,
            priority=sent.priority,
            expires_ms=sent.expires_ms,
        )

    @precondition(lambda self: len(self.consumers) < 3)
    @rule(prefetch=st.integers(1, 6), selector=st.sampled_from([None, None, *SELECTORS]))
    def come(self, prefetch: int, selector: str | None) -> None:
        """A consumer comes."""
        self.subscribe(prefetch, selector)

    def subscribe(self, prefetch: int, selector: str | None) -> None:
        """Attach a consumer."""
        if self.queue == "exclusive" or self.is_ring:
            selector = None
        consumer = ModelConsumer(
            judge=self.judge,
            mistakes=self.mistakes,
            prefetch=prefetch,
            kinds=SELECTORS[selector],
        )
        self.consumers.append(consumer)
        self.is_started |= len(self.consumers) >= 2
        consumer.subscription = self.core.broker.subscribe(
            ANYONE, QUEUE, consumer, prefetch=prefetch, selector=selector
        )
        consumer.end.resume()
        self.settle()

    @precondition(lambda self: self.held)
    @rule(data=DATA, answers=st.lists(st.booleans(), min_size=1, max_size=6))
    def answer(self, data: st.DataObject, answers: list[bool]) -> None:
        """Consumers reject some of their messages, and acknowledge others."""
        for is_rejected in answers:
            if not self.held:
                break
            number = data.draw(st.sampled_from(sorted(self.held)))
            consumer = self.held[number]
            if is_rejected:
                self.come_back(number, in_vain=True)
                consumer.reject(str(number))
            else:
                self.acknowledged(number)
                consumer.acknowledge(str(number))
            self.settle()

    def acknowledged(self, number: int) -> None:
        """A message leaves with its consumer."""
        self.held.pop(number, None)
        self.waiting.remove(number)

    @precondition(lambda self: self.is_copying and any(one.seen for one in self.consumers))
    @rule(data=DATA, rejected=st.booleans())
    def look_on(self, data: st.DataObject, *, rejected: bool) -> None:
        """A consumer that is shown copies answers all of them, whereby it takes none."""
        consumer = data.draw(st.sampled_from([one for one in self.consumers if one.seen]))
        consumer.unanswered = 0
        (consumer.end.reject if rejected else consumer.end.acknowledge)(consumer.received, None)
        self.settle()

    @precondition(lambda self: self.consumers)
    @rule(data=DATA, failed=st.booleans())
    def lose_consumer(self, data: st.DataObject, *, failed: bool) -> None:
        """A consumer leaves, or its connection is lost."""
        self.lose(data.draw(st.sampled_from(self.consumers)), failed=failed)

    def lose(self, consumer: ModelConsumer, *, failed: bool = False) -> None:
        """A consumer leaves."""
        self.leave(consumer, failed=failed)
        self.settle()

    def leave(self, consumer: ModelConsumer, *, failed: bool = False) -> None:
        """What a consumer held goes back, and its groups may go to others."""
        self.consumers.remove(consumer)
        self.owners = {name: one for name, one in self.owners.items() if one is not consumer}
        for number in [one for one, holder in self.held.items() if holder is consumer]:
            self.come_back(number, in_vain=failed)
        if not self.consumers:
            self.is_started = self.queue != "for two"
        consumer.end.close(attempted=consumer.received if failed else ())

    @precondition(lambda self: self.consumers)
    @rule(data=DATA, writable=st.booleans())
    def fill_or_drain_a_socket(self, data: st.DataObject, *, writable: bool) -> None:
        """A client stops reading, or goes on."""
        consumer = data.draw(st.sampled_from(self.consumers))
        consumer.is_writable = writable
        if writable:
            consumer.end.resume()
        self.settle()

    @precondition(lambda self: not self.is_slow)
    @rule(selector=st.sampled_from([None, None, *SELECTORS]))
    def browse(self, selector: str | None) -> None:
        """A browser is shown all there is, in the order of delivery, and changes nothing."""
        browser = FakeBrowser()
        end: Browser = browser
        browser.subscription = self.core.broker.browse(
            ANYONE, QUEUE, end, prefetch=0, selector=selector
        )
        browser.end.resume()
        self.settle()
        assert browser.is_over
        shown = [number_of(one) for one in browser.received]
        there = [
            one
            for one in self.in_order(self.waiting)
            if self.sent[one].kind in SELECTORS[selector] and not self.has_expired(one)
        ]
        assert shown == [one for one in there if one in shown], (shown, there)
        # What is in memory only is not shown while somebody has it, nor is what is superseded
        # if a newer value came in its transaction.
        left_out = set(there) - set(shown) - self.superseded
        assert not [n for n in left_out if n not in self.held or self.sent[n].persistent]
        browser.end.close()

    @precondition(lambda self: self.held and not self.is_slow)
    @rule(
        data=DATA,
        kinds=st.text(KINDS, max_size=3),
        priority=st.sampled_from([4, 9]),
        value=st.sampled_from(["", "x", "y"]),
        reason=st.none() | REASONS,
    )
    def commit(
        self,
        data: st.DataObject,
        kinds: str,
        priority: int,
        value: str,
        reason: OrthiaError | None,
    ) -> None:
        """A client commits; if the store refuses it that ends the client, and all comes again."""
        consumer = self.held[data.draw(st.sampled_from(sorted(self.held)))]
        its_own = sorted(number for number, one in self.held.items() if one is consumer)
        settled = data.draw(st.lists(st.sampled_from(its_own), min_size=1, unique=True))
        rejected = {one for one in settled if data.draw(st.booleans())}
        work = TransactionWork()
        if self.is_ring:
            priority = 4
        new = [*range(len(self.sent) + 1, len(self.sent) + 1 + len(kinds))]
        for number, kind in zip(new, kinds, strict=True):
            self.sent[number] = Sent(kind, "", value, priority, persistent=True)
            work.sends.append((QUEUE, self.outgoing(number)))
        for number in settled:
            settles = work.rejections if number in rejected else work.acknowledgements
            consumer.end.set_aside(consumer.take(str(number)))
            settles.setdefault(consumer.end, []).extend(consumer.take(str(number)))
            del self.held[number]
        self.aside = set(settled)
        consumer.end.resume()
        self.core.settle()  # what it has room for now it gets before anything replaces that
        if reason is None:
            self.committed(work, new, rejected)
        else:
            self.commit_in_vain(consumer, work, reason)
        self.aside.clear()
        self.coming_back.clear()
        self.settle()

    def committed(self, work: TransactionWork, new: list[int], rejected: set[int]) -> None:
        """All of it is done: what is sent comes first, and then what is rejected."""
        for number in new:
            self.place(number)
        for number in [*self.aside]:
            if number in rejected:
                self.coming_back.add(number)
                self.come_back(number, in_vain=True)
            else:
                self.acknowledged(number)
        done: list[bool] = []
        self.core.commit(work, lambda: done.append(True))
        self.core.settle()
        assert done

    def commit_in_vain(
        self, consumer: ModelConsumer, work: TransactionWork, reason: OrthiaError
    ) -> None:
        """Nothing of it is done, and it is an attempt if it may be to blame."""
        told: list[OrthiaError] = []

        def refused(error: OrthiaError, _: object) -> None:
            told.append(error)
            aside, self.aside = self.aside, set()
            for number in aside:
                self.coming_back.add(number)
                self.come_back(number, in_vain=reason is POISON)
            self.leave(consumer)

        steps = self.core.broker.commit(anyone(), work, unexpected, refused)
        self.refuse(lambda: self.core.broker.slices.run(steps), reason)
        assert told == [reason]

    # --- what the store does

    def refuse(self, act: Callable[[], object], reason: OrthiaError) -> None:
        """Have the store refuse the last unit of a client that ``act`` leads to, and no other."""
        journal = self.core.journal
        self.core.settle()
        journal.auto_commit = False
        act()
        its_own = [n for n, one in enumerate(journal.waiting) if one.refused is not None]
        if its_own:
            journal.commit(its_own[-1])
            journal.refuse(reason)
        journal.auto_commit = True
        journal.commit()
        self.core.settle()

    @precondition(lambda self: not self.is_slow and (self.consumers or self.queue != "purged"))
    @rule(
        priority=st.sampled_from([4, 4, 9, 0]),
        value=st.sampled_from(["x", "y"]),
        reason=REASONS,
        expires=st.booleans(),
    )
    def send_in_vain(
        self, priority: int, value: str, reason: OrthiaError, *, expires: bool
    ) -> None:
        """The store refuses what a producer sends, who is told; nothing of it is left."""
        told: list[OrthiaError] = []
        poison = outgoing(
            "0",
            headers=f"_AMQ_LVQ_NAME:{value}\n".encode(),
            priority=priority,
            expires_ms=2**52 if expires else 0,
        )
        self.refuse(
            lambda: self.core.broker.send(
                anyone(), QUEUE, poison, None, lambda error, _: told.append(error)
            ),
            reason,
        )
        assert told == [reason]
        self.settle()

    @precondition(
        lambda self: self.held and not self.is_slow and self.attempts < 0 and not self.delay_ms
    )
    @rule(data=DATA, reason=REASONS)
    def reject_in_vain(self, data: st.DataObject, reason: OrthiaError) -> None:
        """The store refuses to count a rejection: the message comes again all the same."""
        number = data.draw(st.sampled_from(sorted(self.held)))
        consumer = self.held[number]
        in_store = self.uncounted.get(number, self.sent[number].attempts)
        self.come_back(number, in_vain=True)
        self.uncounted[number] = in_store
        self.refuse(lambda: consumer.reject(str(number)), reason)
        self.settle()

    @rule(size=st.integers(1, 5_000))
    def shed(self, size: int) -> None:
        """Another queue needs memory."""
        self.core.broker.queues()[NAME].shed(size)
        self.settle()

    @precondition(lambda self: self.is_slow)
    @rule(units=st.integers(1, 4))
    def store(self, units: int) -> None:
        """The store commits some of what waits for it."""
        self.core.journal.commit(min(units, len(self.core.journal.waiting)))
        self.settle()

    @precondition(lambda self: self.is_slow)
    @rule()
    def rest(self) -> None:
        """After a while all is stored, what is counted is there, and all have what they want."""
        for _ in range(30):
            self.core.journal.commit()
            self.clock.pass_ms(500)
        self.delayed.clear()
        there = self.numbers_stored()
        assert set(self.waiting) - self.maybe_gone <= there <= set(self.waiting)
        # What a newer value replaces while it is delivered is with its consumer only.
        self.waiting = [one for one in self.waiting if one in there or one in self.held]
        self.maybe_gone &= self.held.keys()
        queue = self.core.broker.queues()[NAME]
        assert queue.depth == queue.use.messages == len(self.waiting)
        assert all(not [*self.wanted_by(one)] for one in self.consumers if self.has_room(one))
        if self.has_values:
            values = [self.sent[n].value for n in there - self.held.keys() if self.sent[n].value]
            assert len(values) == len(set(values))
        if self.is_ring:
            assert len(there - self.held.keys()) <= self.ring_size
        if self.queue == "purged" and not self.consumers:
            assert not there

    def numbers_stored(self) -> set[int]:
        """Return what the store has of the queue."""
        ids = self.core.broker.queues()[NAME].log.ids
        return {
            int(decode_message(row.record, row.seq).body)
            for row, _ in self.core.journal.store.messages.values()
            if row.queue_id in ids
        }

    @rule(milliseconds=st.integers(1, LONGEST_MS))
    def pass_ms(self, milliseconds: int) -> None:
        """Time passes; what is due comes to the end of the queue."""
        for _ in range(milliseconds):
            now_ms = self.clock.ms() + 1
            due = sorted((at, number) for number, at in self.due.items() if at <= now_ms)
            self.arriving = [number for _, number in due]
            for number in self.arriving:
                del self.due[number]
            self.coming_back = {one for one, at in self.delayed.items() if at <= now_ms}
            self.clock.pass_ms(1)
            for number in self.coming_back:
                self.delayed.pop(number, None)
            for number in [*self.arriving]:
                self.place(number)
            self.arriving, self.coming_back = [], set()
            self.settle()

    @rule(come_again=st.booleans())
    def take_over(self, *, come_again: bool) -> None:
        """The node is gone; the next one opens the same store, and clients may come again."""
        prefetches = [one.prefetch for one in self.consumers if come_again]
        there = self.numbers_stored()
        if self.is_slow:
            assert there <= self.sent.keys()
            assert self.stored & set(self.waiting) - self.maybe_gone <= there
        else:
            assert there <= set(self.waiting)
            gone = {one for one in self.waiting if self.has_expired(one) and one not in self.held}
            lasting = {one for one in self.waiting if self.sent[one].persistent}
            assert lasting - gone - self.superseded <= there
            self.maybe_expired |= gone
        left = [one for one in self.place_order() if one in there]
        self.consumers.clear()
        self.held.clear()
        self.owners.clear()
        self.superseded.clear()
        self.is_started = self.queue != "for two"
        self.delayed = {one: at for one, at in self.delayed.items() if one in there}
        self.waiting = []
        for number in left:
            self.sent[number].was_delivered = True
            self.sent[number].attempts = self.uncounted.pop(number, self.sent[number].attempts)
            self.place(number)
        self.clock.takeover(self.options)
        self.core.journal.auto_commit = not self.is_slow
        self.settle()
        for prefetch in prefetches:
            self.subscribe(prefetch, None)

    def place_order(self) -> list[int]:
        """Return all that may be stored in the order in which it came."""
        return sorted(self.sent) if self.is_slow else self.waiting

    # --- what always holds

    def has_room(self, consumer: ModelConsumer) -> bool:
        """Whether a consumer takes another message."""
        return consumer.is_writable and self.unanswered(consumer) < consumer.prefetch

    @precondition(lambda self: not self.is_slow)
    @invariant()
    def nothing_is_stuck(self) -> None:
        """A consumer with room holds back only if there is nothing for it."""
        for one in self.consumers:
            if self.has_room(one):
                assert not list(self.wanted_by(one))

    @precondition(lambda self: not self.is_slow)
    @invariant()
    def what_counts_is_what_is_there(self) -> None:
        """Of the queue, and against the limits of its address; the expired may have left."""
        queues = self.core.broker.queues()
        queue = queues[NAME]
        expired = [one for one in self.waiting if one not in self.held and self.has_expired(one)]
        assert len(self.waiting) - len(expired) <= queue.depth <= len(self.waiting)
        # What is to come there later counts, too.
        there = sum(one.depth for one in queues.values() if one.use is queue.use)
        assert queue.use.messages == there
        assert (queue.use.used == 0) is (there == 0)

    @invariant()
    def memory_is_bounded(self) -> None:
        """In memory are at most the limit, one window more, and what was ever delivered."""
        queue = self.core.broker.queues()[NAME]
        known = sum(self.sent[one].was_delivered for one in self.waiting)
        if self.in_memory >= 0 and not self.is_slow:
            assert queue.log.in_memory <= self.in_memory + refill.WINDOW_MESSAGES + known
        assert (queue.log.in_memory == 0) is (queue.log.bytes_in_memory == 0)

    def teardown(self) -> None:
        """Take the rest: each message is once where it belongs, and no memory is taken."""
        if not hasattr(self, "clock"):
            return
        if self.is_slow:
            self.rest()
            while self.consumers:
                self.lose(self.consumers[0])
            self.rest()
            self.core.journal.auto_commit = True
        while self.consumers:
            self.lose(self.consumers[0])
        self.pass_ms(LONGEST_MS)
        self.clock.pass_ms(SCANS_MS)
        expired = {one for one in self.waiting if self.has_expired(one)}
        there = self.in_order(one for one in self.waiting if one not in expired)
        assert self.drain(QUEUE) == there
        expired_there = set(self.drain("/queue/ExpiryQueue"))
        assert expired <= expired_there <= expired | self.maybe_expired
        lasting = [one for one in self.dead if self.sent[one].persistent]
        assert set(lasting) <= set(self.drain("/queue/DLQ")) <= set(self.dead)
        assert not self.core.broker.depths().get(SCHEDULE)
        assert self.core.memory_used == 0
        if not self.is_copying:
            assert self.core.broker.store_use.used == 0
            assert not self.core.journal.store.times

    def drain(self, destination: str) -> list[int]:
        """Take all that is in a queue."""
        consumers = [self.core.consume(destination)]
        if self.queue == "for two":
            consumers.append(self.core.consume(destination))
        received = sorted(
            (one for consumer in consumers for one in consumer.received),
            key=lambda one: (-one.record.priority * (not self.has_values), one.seq),
        )
        for consumer in consumers:
            consumer.end.acknowledge(consumer.received, None)
            consumer.end.close()
        self.core.settle()
        return [number_of(one) for one in received]


@pytest.mark.parametrize("queue", QUEUES)
@pytest.mark.parametrize("few", [3, 1_000])
def test_a_queue_does_what_its_model_says(
    queue: str, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In windows of so few messages that most end within the queue, and of the usual size.

    QUEUE_EXAMPLES says how often; ``make queue-model`` often.
    """
    monkeypatch.setattr(refill, "WINDOW_MESSAGES", few)
    monkeypatch.setattr(showing, "_WINDOW_MESSAGES", few)
    monkeypatch.setattr(taken, "_SWEEP_AT", 1 if few < 10 else 1_024)

    class OfKind(QueueMachine):
        """Runs of this kind."""

        def __init__(self) -> None:
            super().__init__(queue)

    run_state_machine_as_test(
        OfKind,
        settings=hypothesis_settings(max_examples=EXAMPLES, stateful_step_count=40, deadline=None),
    )
