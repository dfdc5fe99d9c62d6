"""Applications whose messages and acknowledgements are in the transactions of their own rows.

Each business transaction notes what it sends in a table, and half of them are rolled back; each
consumer notes what it processed in another, with ``orthia_ack``. At the end both tables say the
same, each once: by SQL, whatever clients and nodes believe.
"""

import random
import threading
from collections import Counter
from typing import Final

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from orthia.broker.client.connection import Connection, ConnectionLost, ServerFrame
from orthia.config.errors import OrthiaError
from orthia.database import Database, Dialect
from tests.chaos.checker import Violations
from tests.chaos.clients import Client, Given
from tests.chaos.consumers import Consumer, Habits
from tests.chaos.ground import Ground

QUEUE: Final = "ledger"
PRODUCERS: Final = 4
CONSUMERS: Final = 3
_PAUSE_SECONDS: Final = (0.02, 0.3)
_MOST_SENT: Final = 3
_CRASHES: Final = 0.02
_AGAIN_SECONDS: Final = 0.3
_FAILURES: Final = (SQLAlchemyError, OrthiaError)


class Business:
    """The applications of a run, and their tables."""

    def __init__(self, ground: Ground, given: Given) -> None:
        """Make the tables; only in a world where ``is_possible``."""
        self._ground = ground
        self._database = ground.open_database()
        self._tables = ("ORTHIA_OUTBOX", "ORTHIA_ACKS")
        with self._database.engine.begin() as connection:
            for table in ("business_sent", "business_done"):
                connection.execute(sa.text(f"CREATE TABLE {table} (name VARCHAR(100) NOT NULL)"))
        self.producers = [
            _Producer(f"business-{n}", ground.open_database(), given.seed) for n in range(PRODUCERS)
        ]
        self.consumers: list[Client] = [
            _AckingConsumer(f"bookkeeper-{n}", given, ground.open_database())
            for n in range(CONSUMERS)
        ]

    @staticmethod
    def is_possible(ground: Ground) -> bool:
        """Return whether applications have routines to call."""
        return {"sql", "server"} <= ground.has

    def stop(self) -> None:
        """Have the producers end, and wait until they have."""
        for one in self.producers:
            one.stopping.set()
        for one in self.producers:
            one.join(120)

    def is_settled(self) -> bool:
        """Return whether all that was sent is processed, and nothing waits."""
        try:
            with self._database.engine.connect() as connection:
                sent, done, *left = (
                    connection.execute(sa.text(f"SELECT COUNT(*) FROM {table}")).scalar_one()
                    for table in ("business_sent", "business_done", *self._tables)
                )
        except _FAILURES:
            return False
        return sent <= done and not any(left)

    def judge(self, violations: Violations) -> dict[str, int]:
        """Compare what was sent and what was processed; return what was counted."""
        with self._database.engine.connect() as connection:
            sent, done = (
                Counter(connection.execute(sa.text(f"SELECT name FROM {table}")).scalars())
                for table in ("business_sent", "business_done")
            )
        for name in sent - done:
            violations.add("business", f"{name} was sent and never processed")
        for name in done - sent:
            violations.add("business", f"{name} was processed {done[name]}x, sent {sent[name]}x")
        for one in self.producers:
            if one.failure is not None:
                violations.add("client", f"{one.name}: {one.failure!r}")
            one.database.dispose()
        self._database.dispose()
        return {
            "sent by SQL": sent.total(),
            "rolled back": sum(one.rolled_back for one in self.producers),
            "processed with orthia_ack": done.total(),
            "second processings refused": sum(
                one.refused for one in self.consumers if isinstance(one, _AckingConsumer)
            ),
        }


class _Producer(threading.Thread):
    """Business transactions, one after the other, of which half are rolled back."""

    def __init__(self, name: str, database: Database, seed: int) -> None:
        super().__init__(name=name, daemon=True)
        self.database = database
        self.stopping = threading.Event()
        self.rolled_back = 0
        self.failure: Exception | None = None
        self._random = random.Random(f"{seed} {name}")

    def run(self) -> None:
        """Work until stopped."""
        number = 0
        try:
            while not self.stopping.wait(self._random.uniform(*_PAUSE_SECONDS)):
                names = [
                    f"{self.name}/{number + n}" for n in range(self._random.randint(1, _MOST_SENT))
                ]
                number += len(names)
                try:
                    self._transact(names, commits=self._random.random() < 0.5)
                except _FAILURES:
                    self.stopping.wait(_AGAIN_SECONDS)
        except Exception as error:  # noqa: BLE001 - it is told with the result of the run
            self.failure = error

    def _transact(self, names: list[str], *, commits: bool) -> None:
        send = "SELECT orthia_send" if _has_functions(self.database) else "CALL orthia_send"
        sent = sa.text(f"{send}(:to, :body, :headers)")
        with self.database.engine.connect() as connection:
            for name in names:
                connection.execute(sa.text("INSERT INTO business_sent VALUES (:n)"), {"n": name})
                asked = {"to": f"/queue/{QUEUE}", "body": name.encode(), "headers": "{}"}
                connection.execute(sent, asked)
            if commits:
                connection.commit()
            else:
                connection.rollback()
                self.rolled_back += len(names)


class _AckingConsumer(Consumer):
    """Processes each message in a transaction that acknowledges it."""

    def __init__(self, name: str, given: Given, database: Database) -> None:
        super().__init__(name, QUEUE, given, Habits(prefetch=10, crash_probability=_CRASHES))
        self._database = database
        self.refused = 0
        """How often a message turned out to be processed already."""

    def received(self, connection: Connection, frame: ServerFrame) -> None:
        """Process a message; then, now and then, acknowledge it to the broker, too."""
        leaves = self._random.random() < self._habits.crash_probability
        try:
            with self._database.engine.connect() as session:
                self._process(session, frame)
                if leaves:
                    connection.close()  # and commit when the message is on its way to another
                    self._stopping.wait(self._random.uniform(0, 0.1))
                session.commit()
        except IntegrityError:
            self.refused += 1
        except _FAILURES:
            self._stopping.wait(_AGAIN_SECONDS)
            if not leaves:
                connection.send("NACK", {"id": frame.headers["ack"]})
                return
        if leaves:
            raise ConnectionLost("closed amid a transaction")
        if self._random.random() < 0.3:
            connection.send("ACK", {"id": frame.headers["ack"]})

    def _process(self, session: sa.Connection, frame: ServerFrame) -> None:
        name = frame.body.decode()
        acknowledge = "SELECT orthia_ack" if _has_functions(self._database) else "CALL orthia_ack"
        session.execute(sa.text("INSERT INTO business_done VALUES (:n)"), {"n": name})
        session.execute(sa.text(f"{acknowledge}(:id)"), {"id": frame.headers["message-id"]})


def _has_functions(database: Database) -> bool:
    return database.dialect is Dialect.POSTGRESQL
