"""``python -m tests.chaos.merchant NAME SEED``: an application that sends in its transactions.

A process of its own, so that it can be killed amid a transaction. It is given the database's
settings, pickled, on standard input, and works until that is closed. Each transaction notes the
names of what it sends in the table ``business_sent``, and half of them are rolled back; what was,
it writes to standard output, a name a line. What it sends in a row has rising numbers: ``NAME/7``.
"""

import pickle
import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from orthia.config.errors import OrthiaError
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database, Dialect

QUEUE: Final = "ledger"
FAILURES: Final = (SQLAlchemyError, OrthiaError)
AGAIN_SECONDS: Final = 0.3
"""The pause after a transaction that failed."""
_PAUSE_SECONDS: Final = (0.02, 0.3)
_MOST_SENT: Final = 4


@dataclass
class Merchant:
    """Business transactions, one after the other."""

    name: str
    database: Database
    random: random.Random
    stopping: threading.Event = field(default_factory=threading.Event)
    _number: int = 0
    _failures: int = 0

    def work(self) -> None:
        """Work until stopped."""
        while not self.stopping.wait(self.random.uniform(*_PAUSE_SECONDS)):
            names = [self._next_name() for _ in range(self.random.randint(1, _MOST_SENT))]
            try:
                self._transact(names)
            except FAILURES:
                # Whether it is committed nobody knows, or when: order is kept among what follows.
                self._failures += 1
                self.stopping.wait(AGAIN_SECONDS)

    def _next_name(self) -> str:
        self._number += 1
        return f"{self.name}.{self._failures}/{self._number}"

    def _transact(self, names: list[str]) -> None:
        way = self.random.choice(
            ["commit", "commit a part", "commit", "roll back", "roll back", "leave"]
        )
        with self.database.engine.connect() as session:
            self._send(session, names)
            if way == "commit a part":
                taken_back = [self._next_name()]
                with _rolled_back_savepoint(session):
                    self._send(session, taken_back)
            else:
                taken_back = names
            match way:
                case "roll back":
                    session.rollback()
                case "leave":
                    session.invalidate()
                case _:
                    session.commit()
        if way != "commit":
            sys.stdout.write("".join(f"{name}\n" for name in taken_back))
            sys.stdout.flush()

    def _send(self, session: sa.Connection, names: list[str]) -> None:
        noted = sa.text("INSERT INTO business_sent (name) VALUES (:name)")
        asked = [
            {"name": name, "destination": f"/queue/{QUEUE}", "body": name.encode()}
            for name in names
        ]
        session.execute(noted, [{"name": name} for name in names])
        session.execute(sa.text(self._statement()), asked)

    def _statement(self) -> str:
        if self.database.dialect is Dialect.SQLITE or self.random.random() < 0.5:
            columns = "destination, body, headers"
            return f"INSERT INTO orthia_outbox ({columns}) VALUES (:destination, :body, '{{}}')"
        call = "SELECT" if self.database.dialect is Dialect.POSTGRESQL else "CALL"
        return f"{call} orthia_send(:destination, :body, '{{}}')"


@contextmanager
def _rolled_back_savepoint(session: sa.Connection) -> Iterator[None]:
    with session.begin_nested() as inner:
        yield
        inner.rollback()


def main() -> None:
    """Work until standard input is closed."""
    name, seed = sys.argv[1:]
    settings: DatabaseStoreSettings = pickle.load(sys.stdin.buffer)
    merchant = Merchant(name, Database.from_settings(settings), random.Random(f"{seed} {name}"))

    def stop() -> None:
        sys.stdin.buffer.read()
        merchant.stopping.set()

    threading.Thread(target=stop, daemon=True).start()
    merchant.work()
    merchant.database.dispose()


if __name__ == "__main__":
    main()
