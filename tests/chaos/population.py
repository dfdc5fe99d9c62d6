"""Which clients a run has."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from tests.chaos.amqp_clients import (
    AmqpConsumer,
    AmqpDurableSubscriber,
    AmqpHabits,
    AmqpProducer,
    AmqpTransactionalProducer,
    AmqpTransformer,
    AmqpUploader,
)
from tests.chaos.checker import DEAD, EXPIRED
from tests.chaos.clients import GROUPS, LARGE, UPLOAD, Client, Given
from tests.chaos.consumers import (
    Consumer,
    Habits,
    Subscriber,
    Sweeper,
    Transformer,
)
from tests.chaos.durable_subscriber import DurableSubscriber
from tests.chaos.history import History
from tests.chaos.producers import Manner, Pace, Producer, Publisher, TransactionalProducer

MANY_QUEUES = 2_000
ORDERED = ("orders", "invoices", "amqp-orders", "amqp-invoices")
"""Queues with one consumer at a time, which neither sends messages back nor lets them expire."""
BULK_QUEUE = "bulk"
_PER_SECOND = 15.0
_CRASHES = 0.002
_CRASHES_OFTEN = 0.05
_OUTSTANDING = 400
_BURST = 200
_DELAYS_SECONDS = (1.0, 8.0)

Sender = Producer | TransactionalProducer | Publisher | AmqpProducer | AmqpTransactionalProducer


class Kinds(StrEnum):
    """Which clients a run has."""

    STOMP = "stomp"
    AMQP = "amqp"
    SQL = "sql"
    """Applications that send and acknowledge in their transactions."""


EVERY_KIND: Final = tuple(Kinds)
ONCE = (
    *("invoices", "readings", "alarms", "/topic/audits"),
    *("amqp-invoices", "amqp-readings", "amqp-alarms", "/topic/reviews"),
)
"""Queues whose producers give their messages duplicate ids."""
GROUPED = ("accounts",)
"""Queues whose messages are of groups."""
SELECTS = {
    "consumer-parcels-1": (frozenset({0}), "lane = 0"),
    "consumer-parcels-2": (frozenset({1, 2}), "lane > 0 AND lane IN ('1', '2')"),
    "auditor-2": (frozenset({1}), "lane BETWEEN 1 AND 1"),
    "amqp-consumer-parcels-1": (frozenset({0}), "lane = 0"),
    "amqp-consumer-parcels-2": (frozenset({1, 2}), "lane > 0 AND lane <= 2"),
}
"""Which lanes a consumer selects, and how it says so."""


@dataclass(frozen=True)
class Population:
    """The clients of a run."""

    senders: list[Sender]
    receivers: list[Client]

    @property
    def everybody(self) -> list[Client]:
        """All of them."""
        return [*self.senders, *self.receivers]


def populate(
    ports: Sequence[int], history: History, seed: int, kinds: Collection[Kinds] = EVERY_KIND
) -> Population:
    """Make the clients of a run, none started."""
    given = Given(ports, history, seed)
    # Where faults send to, and where the broker moves what cannot be delivered.
    senders: list[Sender] = []
    receivers: list[Client] = [
        Consumer("consumer-bulk", BULK_QUEUE, given, Habits(prefetch=10)),
        Consumer("consumer-dead", "DLQ", given, Habits(moved=DEAD)),
        Consumer("consumer-expired", "ExpiryQueue", given, Habits(moved=EXPIRED)),
    ]
    for kind, make in ((Kinds.STOMP, _speaking_stomp), (Kinds.AMQP, _speaking_amqp)):
        if kind in kinds:
            made = make(given)
            senders += made.senders
            receivers += made.receivers
    return Population(senders, receivers)


def _speaking_stomp(given: Given) -> Population:
    many = [f"many.{number}" for number in range(MANY_QUEUES)]
    steady, slow = Pace(_PER_SECOND), Pace(_PER_SECOND / 2)

    def sends(queue: str, pace: Pace, manner: Manner | None = None) -> Producer:
        """Return the producer of a queue."""
        return Producer(f"producer-{queue.rpartition('/')[2]}", [queue], given, pace, manner)

    in_groups = Pace(_PER_SECOND, burst=2 * GROUPS)
    later = Manner(delays_seconds=_DELAYS_SECONDS, duplicate_ids=True)
    senders: list[Sender] = [
        *(sends(one, steady) for one in ("orders", "events", "requests")),
        sends("invoices", steady, Manner(duplicate_ids=True)),
        sends("poison", slow),
        sends("fragile", slow),
        sends("offers", slow, Manner(lives_seconds=(0.3, 4))),
        Producer("producer-many", many, given, Pace(_PER_SECOND * 2, burst=10)),
        sends("readings", Pace(60.0, _OUTSTANDING, _BURST), Manner(duplicate_ids=True)),
        # Of each group there are some at once, for whoever would take what is another's.
        sends("accounts", in_groups, Manner(groups=True)),
        sends("parcels", slow, Manner(lanes=True)),
        sends("alarms", slow, later),
        sends("/topic/audits", slow, Manner(duplicate_ids=True, lanes=True)),
        Producer(LARGE, ["pictures"], given, Pace(0.5, 2)),
        TransactionalProducer(["debits", "credits"], given),
        Publisher("/topic/prices", given, _PER_SECOND),
    ]
    crashing, fragile = Habits(crash_probability=_CRASHES), Habits(crash_probability=_CRASHES_OFTEN)
    # With cumulative acknowledgements a consumer has some messages for a while.
    holding = Habits(ack="client", prefetch=10, crash_probability=_CRASHES * 5)
    receivers: list[Client] = [
        Consumer("consumer-orders", "orders", given),
        Consumer("consumer-invoices", "invoices", given, Habits(ack="client")),
        Consumer("consumer-events-1", "events", given, crashing),
        Consumer("consumer-events-2", "events", given, crashing),
        Consumer("consumer-debits", "debits", given),
        Consumer("consumer-credits", "credits", given, crashing),
        Transformer("requests", "results", given),
        Consumer("consumer-results", "results", given),
        Consumer("consumer-poison", "poison", given, Habits(rejects=True)),
        Consumer("consumer-fragile", "fragile", given, fragile),
        Consumer("consumer-offers", "offers", given, Habits(prefetch=2, pause_seconds=0.2)),
        Consumer("consumer-readings", "readings", given, Habits(prefetch=300)),
        Consumer("consumer-pictures", "pictures", given, Habits(prefetch=2)),
        *(Consumer(f"consumer-accounts-{n}", "accounts", given, holding) for n in (1, 2, 3)),
        *(
            Consumer(name, "parcels", given, Habits(selector=selector))
            for name, (_, selector) in SELECTS.items()
            if name.startswith("consumer-parcels")
        ),
        Consumer("consumer-alarms", "alarms", given, crashing),
        DurableSubscriber("auditor-1", "/topic/audits", given),
        DurableSubscriber("auditor-2", "/topic/audits", given, SELECTS["auditor-2"][1]),
        Sweeper("sweeper", many, given),
        Subscriber("subscriber-1", "/topic/prices", given, 0.0),
        Subscriber("subscriber-2", "/topic/prices", given, _CRASHES),
    ]
    return Population(senders, receivers)


def _speaking_amqp(given: Given) -> Population:
    """Make the clients of AMQP, and two of STOMP at the other end of some queues."""
    steady, slow = Pace(_PER_SECOND), Pace(_PER_SECOND / 2)

    def sends(what: str, pace: Pace, manner: Manner | None = None) -> AmqpProducer:
        return AmqpProducer(f"amqp-producer-{what}", f"amqp-{what}", given, pace, manner)

    def receives(what: str, habits: AmqpHabits | None = None) -> AmqpConsumer:
        queue = f"amqp-{what.rstrip('-12')}"
        return AmqpConsumer(f"amqp-consumer-{what}", queue, given, habits)

    once = Manner(duplicate_ids=True)
    later = Manner(delays_seconds=_DELAYS_SECONDS, duplicate_ids=True)
    senders: list[Sender] = [
        *(sends(one, steady) for one in ("orders", "requests", "outward")),
        sends("invoices", steady, once),
        sends("events", slow),
        sends("poison", slow),
        sends("offers", slow, Manner(lives_seconds=(0.3, 4))),
        sends("readings", Pace(60.0, _OUTSTANDING, _BURST), once),
        sends("parcels", slow, Manner(lanes=True)),
        sends("alarms", slow, later),
        AmqpProducer(f"{LARGE}-amqp", "amqp-pictures", given, Pace(0.5, 2)),
        AmqpUploader(UPLOAD, "amqp-films", given, Pace(0.2, 1)),
        AmqpTransactionalProducer("amqp-transactional", ["amqp-debits", "amqp-credits"], given),
        Producer("producer-inward", ["amqp-inward"], given, steady),
        Producer("producer-reviews", ["/topic/reviews"], given, slow, Manner(duplicate_ids=True)),
    ]
    crashing = AmqpHabits(crash_probability=_CRASHES, release_probability=_CRASHES_OFTEN)
    receivers: list[Client] = [
        receives("orders"),
        receives("invoices", AmqpHabits(at_once=5)),
        receives("events-1", crashing),
        receives("events-2", replace(crashing, settles=True)),
        receives("poison", AmqpHabits(rejects=True)),
        receives("offers", AmqpHabits(prefetch=2, pause_seconds=0.2)),
        receives("readings", AmqpHabits(prefetch=300, at_once=20)),
        *(
            receives(name.removeprefix("amqp-consumer-"), AmqpHabits(selector=selector))
            for name, (_, selector) in SELECTS.items()
            if name.startswith("amqp-consumer")
        ),
        receives("alarms", crashing),
        receives("pictures", AmqpHabits(prefetch=2)),
        receives("films", AmqpHabits(prefetch=2)),
        receives("debits"),
        receives("credits", replace(crashing, prefetch=10, at_once=3)),
        AmqpTransformer("amqp-transformer", "amqp-requests", "amqp-results", given),
        receives("results"),
        receives("inward", crashing),
        AmqpDurableSubscriber("amqp-reviewer", "/topic/reviews", given),
        Consumer("consumer-inward", "amqp-inward", given),
        Consumer("consumer-outward", "amqp-outward", given, Habits(crash_probability=_CRASHES)),
    ]
    return Population(senders, receivers)
