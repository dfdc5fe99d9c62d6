# mypyc compiles this module.
"""The commit of a client's transaction: all of it in one unit of the journal, or nothing."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from orthia.broker.core.api import (
    AfterAll,
    Done,
    OnRefused,
    OutgoingMessage,
    Settlement,
    TransactionWork,
)
from orthia.broker.core.errors import BrokerError, DestinationRefused, LimitExceeded
from orthia.broker.core.identity import Principal
from orthia.broker.core.limits.memory import size_in_memory, size_in_store
from orthia.broker.core.limits.quota import Charges
from orthia.broker.core.queue.levels import ids_for
from orthia.broker.core.queue.queue import Queue
from orthia.broker.core.routing.router import Routed, routed_by
from orthia.broker.core.routing.targets import Route
from orthia.broker.core.sending.duplicates import DuplicateIds
from orthia.broker.core.sending.placing import Placed
from orthia.broker.core.sending.publisher import Publisher
from orthia.broker.core.slices import GO_ON, REST, Finding, Steps
from orthia.broker.core.topics.publication import Publication
from orthia.broker.core.topics.topic import Topic
from orthia.broker.quoting import quoted
from orthia.config.errors import OrthiaError
from orthia.journal.errors import HeldElsewhere, SentBehindRefused, StoreFull
from orthia.journal.model.changes import extended
from orthia.journal.model.message import Message
from orthia.journal.model.unit import Unit

_AT_ONCE = 32
"""How many messages of a transaction are made ready before others have a turn."""

MOST_COPIES = 20_000
"""How many messages a transaction may be in all queues that get them: each is given its place, and
all that in one piece, which takes some 3 us for each."""

PutOff = Callable[[Principal, str, OutgoingMessage], tuple[OutgoingMessage, Queue | None]]
"""Returns a message, and where it waits unless it is to be delivered at once."""


class _Heard(NamedTuple):
    """A message of a transaction that is published."""

    topic: Topic
    record: Message
    stored_as: int | None
    """One of the unit's messages, with which it goes if that is a duplicate."""
    in_memory: tuple[str, str] | None
    """Its address and its duplicate id, if nothing is stored of it."""


def commit(
    publisher: Publisher,
    route: Callable[[Principal, str], Route],
    put_off: PutOff,
    refuse_if_stopped: Callable[[], None],
    principal: Principal,
    work: TransactionWork,
    done: Done,
    on_refused: OnRefused,
) -> Steps:
    """Make ``work`` ready in steps, and do it in the last one; see ``BrokerCore.commit``."""
    refuse_if_stopped()
    unit = Unit()
    unit.sender = principal.sender
    bodies = [message.large for _, message in work.sends if message.large is not None]
    stored: list[Placed] = []
    heard: list[_Heard] = []
    copies = 0
    caches: set[tuple[str, int]] = set()
    with publisher.duplicates.hold() as held:
        for index, (destination, message) in enumerate(work.sends, 1):
            address, routed = yield from _routed(
                publisher, route, put_off, principal, destination, message
            )
            first, known_as, in_memory = len(stored), None, None
            if message.duplicate_id is not None:
                if publisher.stores(routed):
                    known_as = publisher.duplicates.to_store(
                        principal, address, message.duplicate_id
                    )
                else:
                    in_memory = (address, message.duplicate_id)
            for one in routed:
                publisher.refuse_if_full(one.queues, one.record)
                if one.queues:
                    ids = ids_for(one.queues, one.record, asks=True)
                    unit.add_message(ids, publisher.encoded(one.record))
                    stored.append((list(one.queues), one.record))  # the address' own may change
                    copies += len(one.queues)
                    if copies > MOST_COPIES:
                        raise LimitExceeded(
                            f"the messages of the transaction would be more than {MOST_COPIES} in"
                            " all queues that get them: send fewer in one transaction"
                        )
                stored_as = None if known_as is None else first
                heard += [_Heard(topic, one.record, stored_as, in_memory) for topic in one.topics]
            if known_as is not None:
                unit.guard(known_as, range(first, len(stored)))
                caches.add((address, known_as.cache_id))
                held.add(address)
            if not index % _AT_ONCE:
                yield GO_ON
        uses = {queue.use: None for queues, _ in stored for queue in queues}
        for use in uses:
            while (full := use.behind()) is not None:
                yield full.rest
        for topic in {one.topic: None for one in heard}:
            behind = topic.behind()
            while behind is not None and behind.is_behind:
                yield REST
        for subscription, references in work.acknowledgements.items():
            unit.deleted = extended(unit.deleted, subscription.deletes(references))
            yield GO_ON
        charges = Charges()
        publisher.taken_over(bodies)  # counted with their messages from here on
        with charges.unless_refused():
            may_drop = any(use.asks_first for use in uses)
            for placed_in, record in stored:
                if may_drop:
                    _refuse_if_dropped(placed_in, record)
                publisher.charge(charges, placed_in, record)
                yield GO_ON
    # The loop may have done other work between the steps before this; from here on it does none.
    with charges.unless_refused():
        refuse_if_stopped()
        _refuse_if_gone(stored)
        _refuse_if_ended(caches, publisher.duplicates)
    published: list[tuple[_Heard, int]] = []
    for known in _without_known(publisher.duplicates, heard):
        known.topic.sent_seq = seq = publisher.next_id()
        published.append((known, seq))
    settled: list[Settlement] = []

    def refused(error: OrthiaError) -> None:
        charges.take_back()
        publisher.unpin(bodies)
        # In order: what its client has of a queue comes back before what it acknowledged there.
        for settlement in settled:
            settlement.suspend()
        # Before anything goes back: nothing of it is to be delivered to its client once more.
        on_refused(error, done)
        # What is refused for want of room, for a lock, or for what was sent before, was no attempt.
        in_vain = not isinstance(error, StoreFull | HeldElsewhere | SentBehindRefused)
        for settlement in settled:
            settlement.refused(in_vain=in_vain)

    def committed() -> None:
        for one, seq in published:
            one.topic.published_seq = seq
            if one.stored_as in unit.dropped:
                continue
            size = size_in_memory(one.record)
            one.topic.publish(Publication(seq, one.record, size, principal.sender))
            if one.in_memory is not None:
                publisher.duplicates.note(*one.in_memory)
        publisher.unpin(bodies)
        all_done = AfterAll(len(settled) + 1, done)
        for settlement in settled:
            settlement.committed(all_done)
        all_done()

    with charges.unless_refused():
        publisher.append(unit, stored, committed, refused)
    for subscription, references in work.acknowledgements.items():
        settled.append(subscription.settle(references))
    for subscription, references in work.rejections.items():
        # They are no more the subscription's, which may be closed before the commit.
        settled.append(subscription.settle(references, rejected=True))


def _without_known(duplicates: DuplicateIds, heard: Iterable[_Heard]) -> list[_Heard]:
    """Return what is to be published: of what nothing is stored of, each message once."""
    kept: list[_Heard] = []
    seen: dict[tuple[str, str], set[Topic]] = {}
    for one in heard:
        if one.in_memory is not None:
            topics = seen.setdefault(one.in_memory, set())
            if one.topic in topics or duplicates.is_known(*one.in_memory):
                continue
            topics.add(one.topic)
        kept.append(one)
    return kept


def _routed(
    publisher: Publisher,
    route: Callable[[Principal, str], Route],
    put_off: PutOff,
    principal: Principal,
    destination: str,
    message: OutgoingMessage,
) -> Finding[tuple[str, list[Routed]]]:
    """Route a message of a transaction; a refusal says which: the client knows of its commit."""
    try:
        address, queues, topic, router = route(principal, destination)
        if message.stated:
            message, schedule = put_off(principal, destination, message)
            if schedule is not None:
                queues, topic, router = [schedule], None, None
    except BrokerError as error:
        raise type(error)(f"message to {quoted(destination)} in the transaction: {error}") from None
    record = publisher.record(address, message)
    routed = yield from routed_by(router, record, principal, queues, topic)
    return address, routed


def _refuse_if_gone(messages: Iterable[Placed]) -> None:
    for queue in {queue: None for queues, _ in messages for queue in queues}:
        if queue.is_leaving:
            raise DestinationRefused(
                f"queue {quoted(queue.name)} was deleted during the commit: nothing of the"
                " transaction was done"
            )


def _refuse_if_dropped(queues: Iterable[Queue], record: Message) -> None:
    """Refuse a message for which those before it in the transaction left no room."""
    size = size_in_store(record)
    for queue in queues:
        queue.use.refuse_if_dropped(size)


def _refuse_if_ended(caches: Iterable[tuple[str, int]], duplicates: DuplicateIds) -> None:
    for address, cache_id in caches:
        if not duplicates.holds(address, cache_id):
            raise DestinationRefused(
                f"the duplicate ids of address {quoted(address)} were deleted during the commit:"
                " nothing of the transaction was done"
            )
