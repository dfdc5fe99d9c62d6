"""Make journals and failover logs of any size, as a pair in use writes them.

    python -m benchmarks.pipeline_data --url sqlite:///big.db --rows 1000000 --events 0

Writes the rows directly, without a broker: into a throw-away database that has no nodes.
"""

import argparse
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sqlalchemy import MetaData, insert, text, update

from orthia import migrations
from orthia.config.address_settings import RoutingType
from orthia.config.dialects import Dialect
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.config.urls import DatabaseUrl
from orthia.database import Database
from orthia.journal.model.codec import QueueBinding, encode_queue_binding
from orthia.journal.model.message import Message, encode_message
from orthia.journal.model.records import RecordType, UserRecordType
from orthia.journal.sql.tables import bindings_table, messages_table
from orthia.nodemanager import events
from orthia.nodemanager.events import Event
from orthia.nodemanager.failover_log import Entry
from orthia.nodemanager.locks.lease import Lock
from orthia.nodemanager.tables import node_manager_store

PAYLOAD_BYTES = 208
QUEUES = 10
ROWS_AN_EPOCH = 250_000
ID_BLOCK = 1_000_000
"""Between two epochs the rest of a reserved block is left out, as at a takeover."""
_BATCH = 20_000
_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_COLUMNS = ("seq", "id", "record_type", "user_record_type", "queue_id", "epoch", "written_at")

Row = tuple[int, int, int, int, int, int, datetime, bytes]


def journal_rows(
    count: int, payload_bytes: int = PAYLOAD_BYTES, queues: int = QUEUES
) -> Iterator[Row]:
    """Yield rows of MESSAGES: in some queues, an epoch every 250,000 rows, 1,000 rows a second.

    ``payload_bytes`` is the size of a record, headers and all.
    """
    add, kind = int(RecordType.ADD_RECORD), int(UserRecordType.ADD_MESSAGE)
    empty = len(_record(0, b""))
    body = bytes(range(256)) * (1 + payload_bytes // 256)
    for number in range(count):
        epoch = 1 + number // ROWS_AN_EPOCH
        seq = 1 + QUEUES + number + (epoch - 1) * ID_BLOCK
        record = _record(number, body[: payload_bytes - empty])
        at = _BEGIN + number * _MILLISECOND
        yield seq, seq, add, kind, 1 + number % queues, epoch, at, record


def _record(number: int, body: bytes) -> bytes:
    at = 1_767_225_600_000 + number
    headers = b"content-type:text/plain\ncustomer:%04d\n" % (number % 1_000)
    return encode_message(Message("orders", headers, body, at, 0, 4))


def fill_journal(
    database: Database, settings: DatabaseStoreSettings, count: int, queues: int = QUEUES
) -> None:
    """Fill an empty migrated store with ``count`` messages, their queues and the fence.

    The messages are in the first ``queues`` of ten queues.
    """
    metadata, dialect = MetaData(), database.dialect
    messages = messages_table(metadata, settings.message_table_name, dialect)
    bindings = bindings_table(metadata, settings.bindings_table_name, dialect)
    locks = node_manager_store(metadata, settings.node_manager_store_table_name, dialect)
    epoch = 1 + max(0, count - 1) // ROWS_AN_EPOCH
    shared = {"record_type": 11, "epoch": 1, "written_at": _BEGIN}
    queue_rows = []
    for queue_id in range(1, QUEUES + 1):
        binding = QueueBinding(queue_id, f"orders.{queue_id}", "orders", RoutingType.MULTICAST)
        record = encode_queue_binding(binding)
        row = {"seq": queue_id, "id": queue_id, "queue_id": queue_id, "record": record}
        queue_rows.append(shared | row | {"user_record_type": 21})
    limit = count + (epoch + 1) * ID_BLOCK
    counter = {"seq": 0, "id": limit, "user_record_type": 24, "queue_id": None, "record": b""}
    with database.engine.begin() as connection:
        connection.execute(insert(bindings), [*queue_rows, shared | counter])
        connection.execute(update(locks).where(locks.c.id == 4).values(holder_token=epoch))
    if dialect is Dialect.POSTGRESQL and count > ROWS_AN_EPOCH:
        _multiply(database, settings, count, queues)
        return
    rows = journal_rows(count, queues=queues)
    while batch := [row for _, row in zip(range(_BATCH), rows, strict=False)]:
        if dialect is Dialect.POSTGRESQL:
            _copy(database, settings, batch)
            continue
        names = (*_COLUMNS, "record")
        with database.engine.begin() as connection:
            connection.execute(
                insert(messages), [dict(zip(names, row, strict=True)) for row in batch]
            )


def _multiply(database: Database, settings: DatabaseStoreSettings, count: int, queues: int) -> None:
    """Make the rows of the first epoch here; the database copies them for all later epochs."""
    first = journal_rows(ROWS_AN_EPOCH, queues=queues)
    while batch := [row for _, row in zip(range(_BATCH), first, strict=False)]:
        _copy(database, settings, batch)
    table = settings.message_table_name
    step = ROWS_AN_EPOCH + ID_BLOCK
    statement = text(
        f"INSERT INTO {table} ({', '.join(_COLUMNS)}, record)"
        " SELECT seq + :by, id + :by, record_type, user_record_type, queue_id, :epoch,"
        f" written_at + :later * interval '1 millisecond', record FROM {table}"
        " WHERE epoch = 1 ORDER BY seq LIMIT :rows"
    )
    for earlier in range(1, -(-count // ROWS_AN_EPOCH)):
        written = earlier * ROWS_AN_EPOCH
        values = {
            "by": earlier * step,
            "epoch": 1 + earlier,
            "later": written,
            "rows": count - written,
        }
        with database.engine.begin() as connection:
            connection.execute(statement, values)


def _copy(database: Database, settings: DatabaseStoreSettings, batch: list[Row]) -> None:
    from io import StringIO

    lines = (
        "\t".join((*map(str, row[:6]), row[6].isoformat(), f"\\\\x{row[7].hex()}")) for row in batch
    )
    source = StringIO("\n".join(lines) + "\n")
    raw = database.engine.raw_connection()
    try:
        cursor = raw.cursor()
        columns = ", ".join((*_COLUMNS, "record"))
        cursor.copy_expert(f"COPY {settings.message_table_name} ({columns}) FROM STDIN", source)
        raw.commit()
    finally:
        raw.close()


def failover_entries(count: int, pairs: int = 200, seed: int = 1) -> Iterator[Entry]:
    """Yield about ``count`` events of a number of pairs: late renewals and failovers."""
    chance = random.Random(seed)
    for number in range(pairs):
        yield from _Pair(f"pair-{number:03d}", chance).live_through(count // pairs)


class _Pair:
    """Two nodes that take over from each other."""

    def __init__(self, name: str, chance: random.Random) -> None:
        self._name = name
        self._chance = chance
        self._now = _BEGIN
        self._lives = 0
        self._numbers: dict[str, int] = {}

    def live_through(self, count: int) -> Iterator[Entry]:
        """Yield the pair's events; each node serves for some fifty events."""
        token, written = 0, 0
        while written < count:
            token += 1
            self._lives += 1
            node, holder = f"node-{'ab'[token % 2]}", f"{self._name}-{self._lives}@host"
            life: list[Event] = [events.CrashDetected("", 2_500.0, 17_000.0)] if token > 1 else []
            life += [
                events.LiveLockObtained(Lock.LIVE, token),
                events.FenceAdvanced(token, 3.0),
                events.LiveActive(token),
                events.TakeoverTimings(token, 1.0, 3.0, 20.0, 12.0),
            ]
            late = self._chance.randrange(20, 80)
            slow = (2_000.0 + self._chance.expovariate(0.005) for _ in range(late))
            life += [events.RenewalSlow(Lock.LIVE, token, one, 2_000) for one in slow]
            if self._chance.random() < 0.3:
                life.append(events.LockReleased(Lock.LIVE, token))
            for event in life:
                written += 1
                yield self._entry(node, holder, event)
            self._now += timedelta(seconds=self._chance.uniform(2, 30))

    def _entry(self, node: str, holder: str, event: Event) -> Entry:
        seconds = 0.01 if not isinstance(event, events.RenewalSlow) else 600
        self._now += timedelta(seconds=self._chance.uniform(0, seconds))
        number = self._numbers[holder] = self._numbers.get(holder, 0) + 1
        lock = getattr(event, "lock", None)
        return Entry(
            db_time=self._now,
            node_time=self._now + timedelta(milliseconds=self._chance.uniform(-50, 50)),
            node_id=self._name,
            node_name=node,
            holder_id=holder,
            role="live",
            code=event.code,
            level="INFO",
            event=type(event).__name__,
            lock=None if lock is None else "live",
            token=getattr(event, "token", None),
            event_seq=number,
            message=event.message,
            details=event.details(),
        )


def write_logs(directory: Path, count: int, pairs: int = 200) -> None:
    """Write about ``count`` events as log files of the nodes of a number of pairs."""
    directory.mkdir(parents=True, exist_ok=True)
    by_pair: dict[str, list[str]] = {}
    for entry in failover_entries(count, pairs):
        by_pair.setdefault(str(entry.node_id), []).append(entry.to_json() + "\n")
    for name, lines in by_pair.items():
        (directory / f"failover-{name}.jsonl").write_text("".join(lines))


def main() -> None:
    """Make what the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--url", help="an empty database for the journal")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--logs", type=Path, help="a directory for the failover logs")
    parser.add_argument("--events", type=int, default=25_000)
    parser.add_argument("--pairs", type=int, default=200)
    arguments = parser.parse_args()
    if arguments.url is not None:
        settings = DatabaseStoreSettings(DatabaseUrl.parse(arguments.url))
        database = Database.from_settings(settings)
        migrations.upgrade(database, settings)
        fill_journal(database, settings, arguments.rows)
        database.dispose()
    if arguments.logs is not None:
        write_logs(arguments.logs, arguments.events, arguments.pairs)


if __name__ == "__main__":
    main()
