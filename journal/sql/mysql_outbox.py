"""Reads the outbox of MySQL and MariaDB, where no row tells whether an earlier one is to come.

The reader goes on behind the highest id it has met, and remembers the *holes* before it: ids of
which it has met no row. What belongs there is of a transaction that is open, or was rolled back, or
is on its way into the table. Each look asks for the holes and for what is new by one statement, so
that rows come in the order of id, and one whose transaction was open comes once it is committed.
Rows that were sent and deleted are in no hole, so nobody walks over them, however long somebody's
snapshot keeps them in the table.

A hole in which a read of uncommitted rows shows none is forgotten after a while. Should a row get
there later, the *sweep* finds it: from time to time all rows before the highest id are looked at.
"""

# ruff: noqa: S608  (the only text put into SQL is table names, which are validated, and numbers)

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from typing_extensions import override

from orthia.config.clock import monotonic_seconds
from orthia.config.dialects import Dialect
from orthia.config.outbox import READ_BODY_BYTES, READ_HEADERS
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database
from orthia.journal.engine.abc import Outbox, OutboxRow
from orthia.journal.model.windows import fitting
from orthia.journal.sql.outbox_session import SWEEP_SECONDS, SWEEP_SHARE, OutboxSession
from orthia.journal.sql.statements import TableNames

GRACE_SECONDS: Final = 5.0
"""How long a hole is looked at in which no uncommitted row is."""
LOOK_SECONDS: Final = 0.5
"""How often uncommitted rows are looked for in holes."""
MOST_HOLES: Final = 2_000
_RECENT_IDS: Final = 1_000
"""How many ids before the first row may be of inserts that are under way when reading begins."""
_MOST_UNCOMMITTED: Final = 5_000


@dataclass(frozen=True)
class Hole:
    """Ids, the first and the last included, of which no row was met."""

    first: int
    last: int
    since: float
    """When it was met, in seconds of the reader's clock."""


def holes_between(after: int, ids: Sequence[int], now: float) -> list[Hole]:
    """Return the holes between an id and the ascending ``ids`` that were met behind it."""
    before = [after, *ids[:-1]]
    return [
        Hole(first + 1, last - 1, now)
        for first, last in zip(before, ids, strict=True)
        if last > first + 1
    ]


def without(holes: Iterable[Hole], ids: Sequence[int]) -> list[Hole]:
    """Return holes without the ascending ``ids``, which were met."""
    left: list[Hole] = []
    for hole in holes:
        first = hole.first
        for met in ids[bisect_left(ids, hole.first) :]:
            if met > hole.last:
                break
            if met > first:
                left.append(Hole(first, met - 1, hole.since))
            first = met + 1
        if first <= hole.last:
            left.append(Hole(first, hole.last, hole.since))
    return left


def kept(
    holes: Iterable[Hole], uncommitted: Sequence[int], now: float, *, looked_to: int | None = None
) -> list[Hole]:
    """Return the holes that are still to be looked at, given the uncommitted rows, ascending.

    Of too many those met last, and those with uncommitted rows. Behind ``looked_to``, if that is
    given, nobody has looked.
    """
    found: list[Hole] = []
    others: list[Hole] = []
    for hole in holes:
        place = bisect_left(uncommitted, hole.first)
        is_open = place < len(uncommitted) and uncommitted[place] <= hole.last
        if is_open:
            found.append(hole)
        elif now - hole.since < GRACE_SECONDS or not (looked_to is None or hole.last <= looked_to):
            others.append(hole)
    found += others[max(0, len(others) - max(0, MOST_HOLES - len(found))) :]
    return sorted(found, key=lambda one: one.first)


class MysqlOutbox(Outbox):
    """Reads behind the highest id, and in the holes before it."""

    def __init__(
        self,
        database: Database,
        s: DatabaseStoreSettings,
        clock: Callable[[], float] = monotonic_seconds,
    ) -> None:
        table = TableNames.from_settings(s, Dialect.MYSQL).outbox
        self._session = OutboxSession(database, s)
        self._clock = clock
        self._position = 0
        self._holes: list[Hole] = []
        self._look_again = 0.0
        self._sweep_again = 0.0
        self._swept: int | None = None
        """The id up to which all rows were looked at; None if that is not under way."""
        # An application may have set a date that is none.
        created = (
            "COALESCE(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', created_at),"
            " TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))) DIV 1000"
        )
        by_key = f"FROM {table} FORCE INDEX (PRIMARY) WHERE "
        size = "LENGTH(body) + COALESCE(LENGTH(headers), 0)"
        self._sizes_sql = f"SELECT id, {size} {by_key}"
        self._ids_sql = f"SELECT id {by_key}"
        is_long = f"LENGTH(body) > {READ_BODY_BYTES:d}"
        self._rows_sql = (
            f"SELECT id, destination, LEFT(headers, {READ_HEADERS:d}), IF({is_long}, '', body),"
            f" {created}, IF({is_long}, LENGTH(body), 0) {by_key}"
        )
        self._count_sql = f"SELECT COUNT(*) FROM (SELECT 1 {by_key} id > %s LIMIT %s) AS c"

    @override
    def next_rows(self, limit: int, max_bytes: int) -> list[OutboxRow]:
        with self._session.cursor("read the outbox") as cursor:
            if self._session.is_new:
                self.start_over()
            now = self._clock()
            if self._swept is not None or now >= self._sweep_again:
                rows = self._sweep(cursor, limit, max_bytes, now)
                if rows:
                    return rows
            if self._holes and now >= self._look_again:
                self._look_again = now + LOOK_SECONDS
                self._forget_holes(cursor, now)
            where = " OR ".join([*_ranges(self._holes), f"id > {self._position:d}"])
            rows = self._read(cursor, where, limit, max_bytes)
            if rows:
                if not self._position:
                    self._begin(cursor, rows[0].id, now)
                self._met([one.id for one in rows], now)
            return rows

    def _read(self, cursor: Any, where: str, limit: int, max_bytes: int) -> list[OutboxRow]:
        """Return committed rows, the first of them in the order of id."""
        cursor.execute(f"{self._sizes_sql} ({where}) ORDER BY id LIMIT {limit:d}")
        sizes = cursor.fetchall()
        if not sizes:
            return []
        taken = fitting([int(size) for _, size in sizes], limit, max_bytes)
        ids = ",".join(str(one) for one, _ in sizes[:taken])
        cursor.execute(f"{self._rows_sql} id IN ({ids}) ORDER BY id")
        return [
            OutboxRow(int(row_id), to, headers, bytes(body), int(created_ms), int(unread))
            for row_id, to, headers, body, created_ms, unread in cursor.fetchall()
        ]

    def _begin(self, cursor: Any, first: int, now: float) -> None:
        """Remember what is open before the first row that is read at all."""
        recent = max(1, first - _RECENT_IDS)
        found = self._uncommitted(cursor, f"id < {recent:d}")
        self._holes = [Hole(one, one, now) for one in found]
        if recent < first:
            self._holes.append(Hole(recent, first - 1, now))
        self._position = first - 1

    def _sweep(self, cursor: Any, limit: int, max_bytes: int, now: float) -> list[OutboxRow]:
        """Return rows that are before the highest id, whether they were met or not."""
        if self._swept is None:
            self._swept = 0
            self._sweep_again = now + SWEEP_SECONDS
        where = f"id > {self._swept:d} AND id <= {self._position:d}"
        rows = self._read(cursor, where, limit, max_bytes)
        self._sweep_again += SWEEP_SHARE * (self._clock() - now)
        self._swept = rows[-1].id if rows else None
        return rows

    def _met(self, ids: Sequence[int], now: float) -> None:
        """Remember the rows that are returned, and the holes between them."""
        new = [one for one in ids if one > self._position]
        self._holes = without(self._holes, ids)
        if new:
            self._holes += holes_between(self._position, new, now)
            self._position = new[-1]

    def _forget_holes(self, cursor: Any, now: float) -> None:
        """Forget holes in which there is nothing."""
        uncommitted = self._uncommitted(cursor, " OR ".join(_ranges(self._holes)))
        is_cut = len(uncommitted) == _MOST_UNCOMMITTED
        looked_to = uncommitted[-1] if is_cut else None
        self._holes = kept(self._holes, uncommitted, now, looked_to=looked_to)

    def _uncommitted(self, cursor: Any, where: str) -> list[int]:
        """Return the ids of rows, of those that are not committed, too."""
        cursor.execute("SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED")
        cursor.execute(f"{self._ids_sql} ({where}) ORDER BY id LIMIT {_MOST_UNCOMMITTED:d}")
        return [int(row_id) for (row_id,) in cursor.fetchall()]

    @override
    def waiting(self, limit: int) -> int:
        with self._session.cursor("count the outbox") as cursor:
            cursor.execute(self._count_sql, (self._position, limit))
            ((count,),) = cursor.fetchall()
        return int(count)

    @override
    def start_over(self) -> None:
        self._position, self._holes, self._swept = 0, [], None
        self._sweep_again = self._clock() + SWEEP_SECONDS

    @override
    def close(self) -> None:
        self._session.close()


def _ranges(holes: Iterable[Hole]) -> list[str]:
    return [
        f"id = {one.first:d}"
        if one.first == one.last
        else f"id BETWEEN {one.first:d} AND {one.last:d}"
        for one in holes
    ]
