"""Applications whose messages and acknowledgements are in the transactions of their own rows.

Each business transaction notes what it sends in a table, and half of them are rolled back; each
consumer notes what it processed in another and counts it, with ``orthia_ack``. At the end the
tables say the same, each once: by SQL, whatever clients and nodes believe. SQLite has no
``orthia_ack``: there each committed row is one message, which may be delivered more than once.
"""

import pickle
import random
import subprocess
import sys
import threading
from abc import abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from typing_extensions import override

from orthia.broker.client.connection import Connection, ConnectionLost, ServerFrame
from orthia.database import Database, Dialect
from tests.chaos.checker import Violations
from tests.chaos.clients import Client, Given, number_of
from tests.chaos.consumers import Consumer, Habits
from tests.chaos.ground import Ground
from tests.chaos.merchant import AGAIN_SECONDS, FAILURES, QUEUE

PRODUCERS: Final = 4
CONSUMERS: Final = 3
_CRASHES: Final = 0.02
_LEFT_OPEN_SECONDS: Final = (0.0, 1.5)
"""How long after a crash of its connection a consumer commits what it did with a message."""
_LIVES_SECONDS: Final = (15.0, 60.0)
"""How long a producer works before it is killed."""
_STOP_SECONDS: Final = 120
_TABLES: Final = """
CREATE TABLE business_sent (name VARCHAR(100) NOT NULL);
CREATE TABLE business_done (name VARCHAR(100) NOT NULL, message_id BIGINT NOT NULL);
CREATE TABLE business_counter (consumer VARCHAR(100) PRIMARY KEY, processed BIGINT NOT NULL);
"""


class Processed(NamedTuple):
    """A message that was processed."""

    name: str
    message_id: int


def check_business(
    sent: Collection[str],
    done: Collection[Processed],
    processed: int,
    rolled_back: Collection[str],
    violations: Violations,
) -> None:
    """Compare what is committed as sent and as processed, each once, and in the producers' order.

    ``processed`` is what the counter says; ``rolled_back`` is what was never sent.
    """
    were_sent, were_done = Counter(sent), Counter(one.name for one in done)
    never = frozenset(rolled_back)
    for name in were_sent - were_done:
        violations.add("business", f"{name} was sent and never processed")
    for name in were_done - were_sent:
        ids = sorted(one.message_id for one in done if one.name == name)
        what = "was rolled back" if name in never else f"was sent {were_sent[name]}x"
        violations.add("business", f"{name} {what} and processed {were_done[name]}x, as {ids}")
    if processed != len(done):
        violations.add("business", f"{len(done)} messages are processed, {processed} are counted")
    highest: dict[str, Processed] = {}
    for one in sorted(done, key=lambda one: one.message_id):
        producer = one.name.rpartition("/")[0]
        before = highest.get(producer)
        if before is not None and number_of(one.name) < number_of(before.name):
            violations.add("business", f"{before.name} came before {one.name}")
        else:
            highest[producer] = one


class Business:
    """The applications of a run, and their tables."""

    def __init__(self, ground: Ground, given: Given) -> None:
        """Make the tables; only in a world where ``is_possible``."""
        self._database = ground.open_database()
        self._waiting = ["ORTHIA_OUTBOX", "ORTHIA_ACKS"]
        with self._database.engine.begin() as connection:
            for statement in filter(None, map(str.strip, _TABLES.split(";"))):
                connection.execute(sa.text(statement))
        self._producers = [_Producer(f"merchant-{n}", ground, given.seed) for n in range(PRODUCERS)]
        self._consumers: list[_Bookkeeper] = [
            _Receiver(f"bookkeeper-{n}", given)
            if self._database.dialect is Dialect.SQLITE
            else _Acknowledger(f"bookkeeper-{n}", given, ground.open_database())
            for n in range(CONSUMERS)
        ]

    @staticmethod
    def is_possible(ground: Ground) -> bool:
        """Return whether there is a database to send by."""
        return "sql" in ground.has

    @property
    def consumers(self) -> list[Client]:
        """Those who process, for the run to start and to stop."""
        return [*self._consumers]

    def start(self) -> None:
        """Begin to send."""
        for one in self._producers:
            one.start()

    def stop(self) -> None:
        """Have the producers end, and wait until they have."""
        for one in self._producers:
            one.stopping.set()
        for one in self._producers:
            one.join(_STOP_SECONDS)

    def is_settled(self) -> bool:
        """Return whether all that was sent is processed, and nothing waits."""
        try:
            sent, done, *waiting = self._counts().values()
        except FAILURES:
            return False
        return sent <= done and not any(waiting)

    def state(self) -> str:
        """Return what waits where, for whoever asks why it is not settled."""
        try:
            return ", ".join(f"{count} {what}" for what, count in self._counts().items())
        except FAILURES as error:
            return f"the tables cannot be read: {error}"

    def _counts(self) -> dict[str, int]:
        with self._database.engine.connect() as connection:
            sent, *waiting = (
                connection.execute(sa.text(f"SELECT COUNT(*) FROM {table}")).scalar_one()
                for table in ("business_sent", *self._waiting)
            )
        return {
            "sent by SQL": sent,
            "processed": len(self._processed()),
            **{f"in {table}": count for table, count in zip(self._waiting, waiting, strict=True)},
        }

    def judge(self, violations: Violations) -> dict[str, int]:
        """Compare what was sent and what was processed; return what was counted."""
        sent, done = self._column("business_sent", "name"), self._processed()
        counted = int(sum(self._column("business_counter", "processed")))
        rolled_back = [name for one in self._producers for name in one.rolled_back()]
        is_acknowledging = self._database.dialect is not Dialect.SQLITE
        check_business(
            sent,
            done,
            counted if is_acknowledging else len(done),
            rolled_back,
            violations,
        )
        for one in self._producers:
            if one.failure is not None:
                violations.add("client", f"{one.name}: {one.failure}")
        self._database.dispose()
        figures = {
            "sent by SQL": len(sent),
            "rolled back": len(rolled_back),
            "applications killed": sum(one.kills for one in self._producers),
        }
        if is_acknowledging:
            figures["processed with orthia_ack"] = len(done)
            figures["counted with orthia_ack"] = counted
            figures["second processings refused"] = sum(one.refused for one in self._consumers)
        return figures

    def _processed(self) -> list[Processed]:
        received = {one for consumer in self._consumers for one in consumer.received_here()}
        with self._database.engine.connect() as connection:
            found = connection.execute(sa.text("SELECT name, message_id FROM business_done"))
            return [*received, *(Processed(str(name), int(seq)) for name, seq in found)]

    def _column(self, table: str, column: str) -> list[Any]:
        with self._database.engine.connect() as connection:
            return list(connection.execute(sa.text(f"SELECT {column} FROM {table}")).scalars())


class _Producer(threading.Thread):
    """A merchant's process, which is killed now and then and started again."""

    def __init__(self, name: str, ground: Ground, seed: int) -> None:
        super().__init__(name=name, daemon=True)
        assert ground.database_settings is not None
        self._settings = pickle.dumps(ground.database_settings)
        self._rolled_back = ground.directory / f"{name}.rolled-back"
        self._log = ground.directory / f"{name}.log"
        self._seed = seed
        self._random = random.Random(f"{seed} {name}")
        self.stopping = threading.Event()
        self.kills = 0
        self.failure: str | None = None

    def rolled_back(self) -> list[str]:
        """Return the names of what was never sent."""
        return self._rolled_back.read_text("utf-8").split()

    @override
    def run(self) -> None:
        with self._rolled_back.open("wb") as output, self._log.open("wb") as log:
            while not self.stopping.is_set() and self.failure is None:
                command = [sys.executable, "-m", "tests.chaos.merchant"]
                command += [f"{self.name}.{self.kills}", str(self._seed)]
                with subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=output, stderr=log
                ) as process:
                    self._live(process)

    def _live(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # what ended it is in its log
            process.stdin.write(self._settings)
            process.stdin.flush()
        is_stopped = self.stopping.wait(self._random.uniform(*_LIVES_SECONDS))
        if is_stopped:
            with suppress(BrokenPipeError):
                process.stdin.close()
        elif process.poll() is None:
            process.kill()
            self.kills += 1
            process.wait()
            return
        if process.wait() != 0:
            self.failure = self._log.read_text("utf-8")[-1_500:]


class _Bookkeeper(Consumer):
    """Processes what merchants send."""

    def __init__(self, name: str, given: Given) -> None:
        super().__init__(name, QUEUE, given, Habits(prefetch=10, crash_probability=_CRASHES))
        self.refused = 0
        """How often a message turned out to be processed already."""

    @abstractmethod
    def received_here(self) -> Iterable[Processed]:
        """Return what it processed, if no table says it; any thread."""


class _Acknowledger(_Bookkeeper):
    """Processes each message in a transaction that acknowledges it."""

    def __init__(self, name: str, given: Given, database: Database) -> None:
        super().__init__(name, given)
        self._database = database
        with database.engine.begin() as session:
            # Each has a counter of its own, for which it waits for nobody.
            begin = sa.text("INSERT INTO business_counter VALUES (:name, 0)")
            session.execute(begin, {"name": name})

    @override
    def received_here(self) -> Iterable[Processed]:
        return ()

    @override
    def received(self, connection: Connection, frame: ServerFrame) -> None:
        leaves = self._random.random() < self._habits.crash_probability
        try:
            with self._database.engine.connect() as session:
                self._process(session, frame)
                if leaves:
                    connection.close()  # and commit when the message is on its way to another
                    self._stopping.wait(self._random.uniform(*_LEFT_OPEN_SECONDS))
                session.commit()
        except IntegrityError:
            self.refused += 1
        except FAILURES:
            self._stopping.wait(AGAIN_SECONDS)
            if not leaves:
                connection.send("NACK", {"id": frame.headers["ack"]})
                return
        if leaves:
            raise ConnectionLost("closed amid a transaction")
        if self._random.random() < 0.3:
            connection.send("ACK", {"id": frame.headers["ack"]})

    def _process(self, session: sa.Connection, frame: ServerFrame) -> None:
        call = "SELECT" if self._database.dialect is Dialect.POSTGRESQL else "CALL"
        name, message_id = frame.body.decode(), frame.headers["message-id"]
        done = sa.text("INSERT INTO business_done (name, message_id) VALUES (:name, :id)")
        session.execute(sa.text(f"{call} orthia_ack(:id)"), {"id": message_id})
        session.execute(done, {"name": name, "id": int(message_id)})
        count = "UPDATE business_counter SET processed = processed + 1 WHERE consumer = :name"
        session.execute(sa.text(count), {"name": self.name})


class _Receiver(_Bookkeeper):
    """Receives and acknowledges by STOMP."""

    def __init__(self, name: str, given: Given) -> None:
        super().__init__(name, given)
        self._received: list[Processed] = []

    @override
    def received_here(self) -> Iterable[Processed]:
        return list(self._received)

    @override
    def received(self, connection: Connection, frame: ServerFrame) -> None:
        self._received.append(Processed(frame.body.decode(), int(frame.headers["message-id"])))
        if self._random.random() < self._habits.crash_probability:
            raise ConnectionLost("closed before the acknowledgement")
        connection.send("ACK", {"id": frame.headers["ack"]})
