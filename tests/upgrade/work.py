"""Clients that work while nodes change their version, and whether they lost anything."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database
from tests.chaos import witness
from tests.chaos.amqp_clients import AmqpConsumer, AmqpProducer, AmqpTransactionalProducer
from tests.chaos.checker import Checker
from tests.chaos.clients import LARGE, Client, Given
from tests.chaos.consumers import Consumer, Habits, Subscriber, Transformer
from tests.chaos.history import History, Operation
from tests.chaos.population import Sender
from tests.chaos.producers import Pace, Producer, Publisher, TransactionalProducer
from tests.chaos.topic_checker import TopicChecker
from tests.chaos.writers import check_changes
from tests.support.waiting import wait_until
from tests.upgrade.versions import HAVE_ONE_RECORD

_SEED = 1
_ORDERED = ("orders", "invoices")
_PROGRESS = 10


class Work:
    """Senders and receivers of all kinds, on whichever node serves."""

    def __init__(
        self, ports: Sequence[int], history: History, checker: Checker, topics: TopicChecker
    ) -> None:
        self.checker = checker
        self.topics = topics
        given = Given(ports, history, _SEED)
        steady = Pace(40.0)
        self._senders: list[Sender] = [
            *(Producer(f"producer-{queue}", [queue], given, steady) for queue in _ORDERED),
            Producer("producer-requests", ["requests"], given, Pace(15.0)),
            Producer("producer-readings", ["readings"], given, Pace(100.0, 400, 50)),
            Producer(LARGE, ["pictures"], given, Pace(2.0, 2)),
            TransactionalProducer(["debits", "credits"], given),
            Publisher("/topic/prices", given, 20.0),
        ]
        self._receivers: list[Client] = [
            Consumer("consumer-orders", "orders", given),
            Consumer("consumer-invoices", "invoices", given, Habits(ack="client")),
            Consumer("consumer-readings", "readings", given, Habits(prefetch=300)),
            Transformer("requests", "results", given),
            Consumer("consumer-results", "results", given),
            Consumer("consumer-pictures", "pictures", given, Habits(prefetch=2)),
            Consumer("consumer-debits", "debits", given),
            Consumer("consumer-credits", "credits", given),
            Subscriber("subscriber", "/topic/prices", given, 0.0),
        ]
        if HAVE_ONE_RECORD:
            self._senders += [
                AmqpProducer("amqp-producer", "amqp-orders", given, steady),
                AmqpTransactionalProducer("amqp-transactional", ["amqp-debits"], given),
            ]
            self._receivers += [
                AmqpConsumer(f"amqp-consumer-{what}", f"amqp-{what}", given)
                for what in ("orders", "debits")
            ]

    def start(self) -> None:
        """Begin, and return once every sender has had messages confirmed."""
        for client in (*self._senders, *self._receivers):
            client.start()
        self.goes_on()

    def goes_on(self) -> None:
        """Wait until every sender has had further messages confirmed."""
        for sender in self._senders:
            wanted = sender.confirmed + _PROGRESS
            wait_until(
                lambda sender=sender, wanted=wanted: sender.confirmed >= wanted,  # type: ignore[misc]
                what=f"{sender.name} has further receipts",
            )

    def finish(self) -> None:
        """Send no more, and consume everything."""
        for sender in self._senders:
            sender.stop()
        for sender in self._senders:
            sender.join(120)
        wait_until(lambda: not self.checker.missing, what="every confirmed message is acknowledged")

    def abandon(self) -> None:
        """End every client, whatever it is at."""
        for client in (*self._senders, *self._receivers):
            client.abandon()
        for client in (*self._senders, *self._receivers):
            if client.ident is not None:
                client.join(30)

    def failures(self) -> list[str]:
        """Return what ended clients before their time."""
        everybody = (*self._senders, *self._receivers)
        return [f"{one.name}: {one.failure!r}" for one in everybody if one.failure is not None]


@contextmanager
def at_work(
    ports: Sequence[int], directory: Path, settings: DatabaseStoreSettings
) -> Iterator[Work]:
    """Have clients work on the nodes of a migrated database; check all they saw at the end.

    Nothing that was confirmed is lost, nothing that was acknowledged comes back, and no writer's
    rows follow those of its successor.
    """
    database = Database.from_settings(settings)
    witness.install(database, settings)
    checker = Checker([*_ORDERED, "amqp-orders"])
    topics = TopicChecker(checker.violations)

    def heard(operation: Operation) -> None:
        checker.observe(operation)
        topics.observe(operation)

    with History(directory / "history.jsonl", heard) as history:
        work = Work(ports, history, checker, topics)
        try:
            work.start()
            yield work
            work.finish()
            tables = (settings.message_table_name, settings.large_message_table_name)
            for table in tables:
                wait_until(
                    lambda table=table: witness.count(database, table) == 0,  # type: ignore[misc]
                    what=f"nothing is left in {table}",
                )
        finally:
            work.abandon()
    violations = checker.finish()
    check_changes(witness.changes(database), violations)
    database.dispose()
    assert work.failures() == []
    assert violations.told == []
    assert topics.heard
