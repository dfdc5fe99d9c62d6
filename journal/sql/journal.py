"""Opens a journal on a database."""

import time
from collections.abc import Callable, Sequence
from functools import partial

from sqlalchemy import Engine

from orthia.config.dialects import Dialect
from orthia.config.errors import OrthiaError
from orthia.config.settings import OutboxSettings
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database, NoRoom, StoreUnavailable, TransientStoreError
from orthia.database.sessions import JOURNAL_PURPOSE
from orthia.journal.engine.abc import BatchStore, Recovered
from orthia.journal.engine.acks import AckReader
from orthia.journal.engine.outbox import OutboxReader
from orthia.journal.engine.retention import Pruner
from orthia.journal.engine.retry import pause_seconds
from orthia.journal.engine.sweeping import TimesSweeper
from orthia.journal.engine.threads import Backend, ThreadedJournal
from orthia.journal.journal import MessageJournal
from orthia.journal.limits import JournalLimits
from orthia.journal.model.codec import QueueBinding
from orthia.journal.model.unit import Binding
from orthia.journal.sql.acks import open_acks
from orthia.journal.sql.bodies import SqlBodies
from orthia.journal.sql.fence import fenced_engine
from orthia.journal.sql.history import SqlHistory
from orthia.journal.sql.left_times import SqlLeftTimes
from orthia.journal.sql.locks import who_locks
from orthia.journal.sql.mysql import MysqlStore
from orthia.journal.sql.outbox import open_outbox
from orthia.journal.sql.postgresql import PostgresqlStore
from orthia.journal.sql.recovery import recover
from orthia.journal.sql.sqlite import SqliteStore, free_bytes
from orthia.journal.sql.statements import TableNames
from orthia.journal.sql.windows import WindowQueries

_ATTEMPTS_TO_OPEN = 5


def open_journal(
    database: Database,
    s: DatabaseStoreSettings,
    *,
    token: int,
    still_valid: Callable[[], bool],
    post: Callable[[Callable[[], None]], None],
    on_failure: Callable[[OrthiaError], None],
    limits: JournalLimits | None = None,
    outbox: OutboxSettings | None = None,
) -> MessageJournal:
    """Open the journal of a database: prove the fence, read the bindings, reserve ids.

    ``post`` runs a callable on the event loop, later, in order, from any thread;
    ``still_valid`` is asked on the journal's threads. Blocks; not for the event loop.
    With ``outbox`` it reads what applications send by SQL.
    Replaces a connection that is lost meanwhile: a node that takes over may be the last one.
    Raises Fenced, CorruptRecord, StoreError.
    """
    limits = limits or JournalLimits()
    engine = fenced_engine(database, s, JOURNAL_PURPOSE, token)
    store = batch_store(database, s, engine, token, waits_for_locks=False)
    windows = WindowQueries(database, s)
    read_acks = open_acks(database, s)
    acks = None if read_acks is None else AckReader(read_acks, post=post)

    def begin() -> Recovered:
        try:
            found = recover(engine, s, database.dialect, token=token, id_block=limits.id_block)
        except NoRoom:
            store.give_room()  # that an earlier node reserved
            raise
        store.connect()
        if acks is not None:
            acks.settle_left(store, windows, _kept_queues(found.bindings))
        return found

    try:
        recovered = _persistently(begin, still_valid)
    except OrthiaError:
        engine.dispose()
        windows.close()
        if read_acks is not None:
            read_acks.close()
        raise
    backend = Backend(
        store,
        windows,
        SqlBodies(database, s, token),
        recovered,
        acks=acks,
        sweeper=TimesSweeper(SqlLeftTimes(database, s, token, recovered.horizon)),
        pruner=None
        if s.journal_retention is None
        else Pruner(SqlHistory(database, s, token), s.journal_retention),
        reusable=partial(free_bytes, database),
        outbox=None if outbox is None else _outbox_reader(database, s, outbox, post),
        who_locks=None if database.dialect is Dialect.SQLITE else partial(who_locks, database, s),
    )
    journal = ThreadedJournal(
        backend, still_valid=still_valid, post=post, on_failure=on_failure, limits=limits
    )
    journal.start()
    return journal


def _outbox_reader(
    database: Database,
    s: DatabaseStoreSettings,
    outbox: OutboxSettings,
    post: Callable[[Callable[[], None]], None],
) -> OutboxReader:
    return OutboxReader(
        open_outbox(database, s, notify=outbox.notify),
        post=post,
        longest_pause_seconds=outbox.poll_period / 1000,
    )


def _kept_queues(bindings: Sequence[Binding]) -> set[int]:
    """Return the ids of the queues that acknowledged messages do not leave, and of their levels."""
    queues = [one for one in bindings if isinstance(one, QueueBinding)]
    names = {one.name for one in queues if one.options.non_destructive}
    return {one.queue_id for one in queues if one.name in names}


def _persistently(begin: Callable[[], Recovered], still_valid: Callable[[], bool]) -> Recovered:
    """Call ``begin``, repeatedly if it fails; raises its last error.

    Ids reserved by a call of unknown outcome stay unused, which is harmless.
    """
    for attempt in range(1, _ATTEMPTS_TO_OPEN):
        try:
            return begin()
        except (StoreUnavailable, TransientStoreError):
            if not still_valid():
                raise
            time.sleep(pause_seconds(attempt))
    return begin()


def batch_store(
    database: Database,
    s: DatabaseStoreSettings,
    engine: Engine,
    token: int,
    *,
    waits_for_locks: bool = True,
) -> BatchStore:
    """Return the batch store for this DBMS, on ``engine`` and under ``token``.

    With ``waits_for_locks`` a batch waits for locks of other sessions as long as for anything else,
    and not only for a moment. On SQLite it always does, since a lock covers the whole database.
    """
    names = TableNames.from_settings(s, database.dialect)
    match database.dialect:
        case Dialect.SQLITE:
            return SqliteStore(engine, names, token, database.turnstile)
        case Dialect.POSTGRESQL:
            return PostgresqlStore(engine, names, token, waits_for_locks=waits_for_locks)
        case Dialect.MYSQL:
            return MysqlStore(engine, names, token, waits_for_locks=waits_for_locks)
