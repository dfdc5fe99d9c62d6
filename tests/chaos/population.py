"""Which clients a run has."""

from collections.abc import Sequence
from dataclasses import dataclass

from tests.chaos.clients import GROUPS, LARGE, Client
from tests.chaos.consumers import (
    DEAD,
    EXPIRED,
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
ORDERED = ("orders", "invoices")
"""Queues with one consumer at a time, which neither sends messages back nor lets them expire."""
BULK_QUEUE = "bulk"
_PER_SECOND = 15.0
_CRASHES = 0.002
_CRASHES_OFTEN = 0.05
_OUTSTANDING = 400
_BURST = 200
_DELAYS_SECONDS = (1.0, 8.0)

Sender = Producer | TransactionalProducer | Publisher


ONCE = ("invoices", "readings", "alarms", "/topic/audits")
"""Queues whose producers give their messages duplicate ids."""
GROUPED = ("accounts",)
"""Queues whose messages are of groups."""
SELECTS = {
    "consumer-parcels-1": (frozenset({0}), "lane = 0"),
    "consumer-parcels-2": (frozenset({1, 2}), "lane > 0 AND lane IN ('1', '2')"),
    "auditor-2": (frozenset({1}), "lane BETWEEN 1 AND 1"),
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


def populate(ports: Sequence[int], history: History, seed: int) -> Population:
    """Make the clients of a run, none started."""
    where = (ports, history, seed)
    many = [f"many.{number}" for number in range(MANY_QUEUES)]
    steady, slow = Pace(_PER_SECOND), Pace(_PER_SECOND / 2)
    queues = ("orders", "invoices", "events", "requests")
    senders: list[Sender] = [
        *(
            Producer(
                f"producer-{queue}", [queue], *where, steady, Manner(duplicate_ids=queue in ONCE)
            )
            for queue in queues
        ),
        Producer("producer-poison", ["poison"], *where, slow),
        Producer("producer-fragile", ["fragile"], *where, slow),
        Producer("producer-offers", ["offers"], *where, slow, Manner(lives_seconds=(0.3, 4))),
        Producer("producer-many", many, *where, Pace(_PER_SECOND * 2, burst=10)),
        Producer(
            *("producer-readings", ["readings"], *where, Pace(60.0, _OUTSTANDING, _BURST)),
            Manner(duplicate_ids=True),
        ),
        # Of each group there are some at once, for whoever would take what is another's.
        Producer(
            *("producer-accounts", ["accounts"], *where, Pace(_PER_SECOND, burst=2 * GROUPS)),
            Manner(groups=True),
        ),
        Producer("producer-parcels", ["parcels"], *where, slow, Manner(lanes=True)),
        Producer(
            *("producer-alarms", ["alarms"], *where, slow),
            Manner(delays_seconds=_DELAYS_SECONDS, duplicate_ids=True),
        ),
        Producer(
            *("producer-audits", ["/topic/audits"], *where, slow),
            Manner(duplicate_ids=True, lanes=True),
        ),
        Producer(LARGE, ["pictures"], *where, Pace(0.5, 2)),
        TransactionalProducer(["debits", "credits"], *where),
        Publisher("/topic/prices", *where, _PER_SECOND),
    ]
    crashing, fragile = Habits(crash_probability=_CRASHES), Habits(crash_probability=_CRASHES_OFTEN)
    # With cumulative acknowledgements a consumer has some messages for a while.
    holding = Habits(ack="client", prefetch=10, crash_probability=_CRASHES * 5)
    receivers: list[Client] = [
        Consumer("consumer-orders", "orders", *where),
        Consumer("consumer-invoices", "invoices", *where, Habits(ack="client")),
        Consumer("consumer-events-1", "events", *where, crashing),
        Consumer("consumer-events-2", "events", *where, crashing),
        Consumer("consumer-debits", "debits", *where),
        Consumer("consumer-credits", "credits", *where, crashing),
        Transformer("requests", "results", *where),
        Consumer("consumer-results", "results", *where),
        Consumer("consumer-poison", "poison", *where, Habits(rejects=True)),
        Consumer("consumer-fragile", "fragile", *where, fragile),
        Consumer("consumer-offers", "offers", *where, Habits(prefetch=2, pause_seconds=0.2)),
        Consumer("consumer-readings", "readings", *where, Habits(prefetch=300)),
        Consumer("consumer-pictures", "pictures", *where, Habits(prefetch=2)),
        *(Consumer(f"consumer-accounts-{n}", "accounts", *where, holding) for n in (1, 2, 3)),
        *(
            Consumer(name, "parcels", *where, Habits(selector=selector))
            for name, (_, selector) in SELECTS.items()
            if name.startswith("consumer-parcels")
        ),
        Consumer("consumer-alarms", "alarms", *where, crashing),
        DurableSubscriber("auditor-1", "/topic/audits", *where),
        DurableSubscriber("auditor-2", "/topic/audits", *where, SELECTS["auditor-2"][1]),
        Consumer("consumer-bulk", BULK_QUEUE, *where, Habits(prefetch=10)),
        Consumer("consumer-dead", "DLQ", *where, Habits(moved=DEAD)),
        Consumer("consumer-expired", "ExpiryQueue", *where, Habits(moved=EXPIRED)),
        Sweeper("sweeper", many, *where),
        Subscriber("subscriber-1", "/topic/prices", *where, 0.0),
        Subscriber("subscriber-2", "/topic/prices", *where, _CRASHES),
    ]
    return Population(senders, receivers)
