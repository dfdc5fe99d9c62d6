"""What the holder of a lock reports beside it, for ``orthia status`` of any process.

Rows 8 and 9 of NODE_MANAGER_STORE, of the live and the backup lock, 10 and 11 with where each
serves its API, and 12 with what the live node says of the outbox. ``orthia db upgrade`` makes
them, or a node that first needs them and may insert rows. Nodes of older versions read rows 0 to 4
only, and neither see nor change them. HOLDER_ID and HOLDER_TOKEN say who reports under which token:
a report counts while the row of the lock says the same. NODE_ID has the digest of the users, STATE
the letter of ``Refusal``, HOLDER_EXPIRATION_TIME until when failback is put off. Of rows 10 and 11
HOLDER_ID has the URL and NODE_ID a digest of the holder's id: they count with the row that they go
with. Of row 12 HOLDER_ID has why rows of the outbox are held, HOLDER_EXPIRATION_TIME when the
oldest was inserted, NODE_ID how many wait and are sent a second; it counts with row 8 of its token.

A row is changed in place, which a database without room for new rows still does. No lease depends
on it.
"""

import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Final

from sqlalchemy import Engine, MetaData, insert, select, update
from typing_extensions import override

from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database, DuplicateKey, translate_errors, write_transaction
from orthia.nodemanager.locks.lease import Lock, LockStatus
from orthia.nodemanager.tables import node_manager_store

REPORT_ROWS: Final = {Lock.LIVE: 8, Lock.BACKUP: 9}
API_ROWS: Final = {Lock.LIVE: 10, Lock.BACKUP: 11}
OUTBOX_ROW: Final = 12
_MOST_HELD: Final = 128
"""The characters of a reason that are kept: HOLDER_ID has no room for more."""


class Refusal(Enum):
    """Why a live node refuses SENDs for want of room; the value is the letter in its row."""

    DISK = "D"
    """``max-disk-usage`` or ``min-disk-free``."""
    MAX_STORE_BYTES = "B"
    DATABASE = "S"
    """The store itself says that it is full."""


@dataclass(frozen=True)
class OutboxReport:
    """What a live node says of the rows that applications insert."""

    waiting: int
    """Rows that are committed and not sent yet."""
    oldest: datetime | None
    """When the oldest of them was inserted, by the clock of the store; None without any."""
    per_second: float
    """Rows that were sent in each second since the last look."""
    held: str | None
    """Why rows wait, or the beginning of it; None if nothing holds them."""


@dataclass(frozen=True)
class Report:
    """What a node says of itself."""

    users_digest: str | None = None
    """36 characters that two nodes with the same users share; None if there are no users to log
    in, or their files cannot be read."""
    refusal: Refusal | None = None
    """None while messages are taken."""
    failback_put_off_until: datetime | None = None
    """By the clock of the store."""
    api_url: str | None = None
    """Where it serves its API, as others reach it; None if it does not, or is of an older
    version."""
    outbox: OutboxReport | None = None
    """None without an outbox, or while the node is not live."""


@dataclass(frozen=True)
class Published:
    """A report, and who published it."""

    holder_id: str
    token: int
    report: Report

    def is_of(self, lock: LockStatus) -> bool:
        """Return whether it is of the present holder of ``lock``."""
        return lock.is_held and (self.holder_id, self.token) == (lock.holder_id, lock.token)


class ReportStore(ABC):
    """Where the reports of both locks are."""

    @abstractmethod
    def write(self, lock: Lock, holder_id: str, token: int, report: Report) -> None:
        """Write the report of who has ``lock``, unless a newer holder did; raises StoreError."""

    @abstractmethod
    def read(self) -> Mapping[Lock, Published]:
        """Return the reports there are, also of holders that are gone; raises StoreError."""


class SqlReportStore(ReportStore):
    """The rows 8 and 9."""

    def __init__(self, database: Database, settings: DatabaseStoreSettings) -> None:
        """Use the pool of ``database``; connects nowhere yet."""
        self._engine: Engine = database.engine
        name = settings.node_manager_store_table_name
        self._table = node_manager_store(MetaData(), name, database.dialect)

    @override
    def write(self, lock: Lock, holder_id: str, token: int, report: Report) -> None:
        values = {
            "holder_id": holder_id,
            "holder_token": token,
            "node_id": report.users_digest,
            "state": None if report.refusal is None else report.refusal.value,
            "holder_expiration_time": report.failback_put_off_until,
        }
        self._put(REPORT_ROWS[lock], token, values, f"report beside the {lock.name.lower()} lock")
        values = {
            "holder_id": report.api_url,
            "holder_token": token,
            "node_id": _digest(holder_id),
        }
        self._put(API_ROWS[lock], token, values, f"publish the API beside the {lock.name} lock")
        outbox = report.outbox
        if outbox is not None and lock is Lock.LIVE:
            values = {
                "holder_id": outbox.held and outbox.held[:_MOST_HELD],
                "holder_token": token,
                "node_id": f"{outbox.waiting} {outbox.per_second:g}",
                "holder_expiration_time": outbox.oldest,
            }
            self._put(OUTBOX_ROW, token, values, "report of the outbox")

    def _put(self, row: int, token: int, values: Mapping[str, object], what: str) -> None:
        """Change a row, or make it, unless it is of a greater token."""
        c = self._table.c
        change = update(self._table).where(c.id == row, c.holder_token <= token).values(values)
        with write_transaction(self._engine, what) as connection:
            if connection.execute(change).rowcount:
                return
        try:
            with write_transaction(self._engine, what) as connection:
                connection.execute(insert(self._table).values(id=row, **values))
        except DuplicateKey:
            return  # of a newer holder

    @override
    def read(self) -> Mapping[Lock, Published]:
        c = self._table.c
        numbers = (*REPORT_ROWS.values(), *API_ROWS.values(), OUTBOX_ROW)
        wanted = select(self._table).where(c.id.in_(numbers))
        with translate_errors("read the reports of nodes"), self._engine.connect() as connection:
            rows = {row.id: row for row in connection.execute(wanted)}
        return {
            lock: Published(
                rows[number].holder_id,
                int(rows[number].holder_token),
                Report(
                    rows[number].node_id,
                    _refusal(rows[number].state),
                    rows[number].holder_expiration_time,
                    _api_url(rows.get(API_ROWS[lock]), rows[number]),
                    _outbox(rows.get(OUTBOX_ROW), rows[number]) if lock is Lock.LIVE else None,
                ),
            )
            for lock, number in REPORT_ROWS.items()
            if number in rows and rows[number].holder_id
        }


def _api_url(row: Any, report: Any) -> str | None:
    """Return the URL in a row that was published by who wrote a report."""
    is_same = row is not None and (row.holder_token, row.node_id) == (
        report.holder_token,
        _digest(report.holder_id),
    )
    return row.holder_id if is_same else None


def _outbox(row: Any, report: Any) -> OutboxReport | None:
    """Return what a row says that was published by who wrote a report."""
    if row is None or row.holder_token != report.holder_token or not row.node_id:
        return None
    waiting, per_second = row.node_id.split()
    return OutboxReport(
        int(waiting), row.holder_expiration_time, float(per_second), row.holder_id or None
    )


def _digest(holder_id: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, holder_id))


def _refusal(letter: str | None) -> Refusal | None:
    """Return what a letter says; one of a newer version says nothing here."""
    return next((one for one in Refusal if one.value == letter), None)
