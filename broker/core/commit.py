"""A client's COMMIT: all of its transaction in one unit of the journal, or nothing."""

from collections.abc import Callable, Iterable

from orthia.broker.core.addresses import Route
from orthia.broker.core.api import (
    BrokerError,
    DestinationRefused,
    Done,
    OnRefused,
    OutgoingMessage,
    Principal,
    Settlement,
    TransactionWork,
)
from orthia.broker.core.memory import size_in_memory
from orthia.broker.core.publication import Publication
from orthia.broker.core.publisher import Placed, Publisher
from orthia.broker.core.quota import Charges
from orthia.broker.core.routing import Routed
from orthia.broker.core.slices import GO_ON, REST, Steps
from orthia.broker.core.topic import Topic
from orthia.broker.quoting import quoted
from orthia.config.errors import OrthiaError
from orthia.journal.errors import SentBehindRefused, StoreFull
from orthia.journal.message import Message
from orthia.journal.unit import Unit

_AT_ONCE = 32
"""How many messages of a transaction are made ready before others have a turn."""


def commit(
    publisher: Publisher,
    route: Callable[[Principal, str], Route],
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
    heard: list[tuple[Topic, Message]] = []
    for index, (destination, message) in enumerate(work.sends, 1):
        for one in _routed(publisher, route, principal, destination, message):
            publisher.refuse_if_full(one.queues, one.record)
            if one.queues:
                ids = [queue.id for queue in one.queues]
                unit.add_message(ids, publisher.encoded(one.record))
                stored.append((list(one.queues), one.record))  # the address' own may change
            heard += [(topic, one.record) for topic in one.topics]
        if not index % _AT_ONCE:
            yield GO_ON
    for topic in {topic: None for topic, _ in heard}:
        behind = topic.behind()
        while behind is not None and behind.is_behind:
            yield REST
    for subscription, references in work.acknowledgements.items():
        unit.deleted += subscription.deletes(references)
        yield GO_ON
    # Others had their turn meanwhile; from here on nobody has.
    refuse_if_stopped()
    _refuse_if_gone(stored)
    charges = Charges()
    published = [(topic, record, publisher.next_id()) for topic, record in heard]
    settled: list[Settlement] = []

    def refused(error: OrthiaError) -> None:
        charges.take_back()
        publisher.unpin(bodies)
        # Before anything goes back: nothing of it is to be delivered to its client once more.
        on_refused(error, done)
        # For want of room, or for what was refused before, nobody tried anything in vain.
        in_vain = not isinstance(error, StoreFull | SentBehindRefused)
        for settlement in settled:
            settlement.refused(in_vain=in_vain)

    def committed() -> None:
        for topic, record, seq in published:
            size = size_in_memory(record)
            topic.publish(Publication(seq, record, size, principal.sender))
        publisher.unpin(bodies)
        for settlement in settled:
            settlement.committed()
        done()

    publisher.taken_over(bodies)
    with charges.unless_refused():
        for placed_in, record in stored:
            publisher.charge(charges, placed_in, record)
        publisher.append(unit, stored, committed, refused)
    for subscription, references in work.acknowledgements.items():
        settled.append(subscription.settle(references))
    for subscription, references in work.rejections.items():
        # They are no more the subscription's, which may be closed before the commit.
        settled.append(subscription.settle(references, rejected=True))


def _routed(
    publisher: Publisher,
    route: Callable[[Principal, str], Route],
    principal: Principal,
    destination: str,
    message: OutgoingMessage,
) -> list[Routed]:
    """Route a SEND of a transaction; a refusal says which, since the client sees the COMMIT."""
    try:
        address, queues, topic, router = route(principal, destination)
    except BrokerError as error:
        raise type(error)(f"SEND to {quoted(destination)} in the transaction: {error}") from None
    record = publisher.record(address, message)
    topics = () if topic is None else (topic,)
    if router is None:
        return [Routed(record, queues, topics)]
    return router.route(record, principal, queues, topics)


def _refuse_if_gone(messages: Iterable[Placed]) -> None:
    for queue in {queue: None for queues, _ in messages for queue in queues}:
        if queue.is_leaving:
            raise DestinationRefused(
                f"queue {quoted(queue.name)} was deleted during the COMMIT: nothing of the"
                " transaction was done"
            )
