"""Second check of an audit: which suspected rows the store still has, looked up by key at the end.

An audit reads one table after the other while a pair may serve. A row that exists both before the
first table is read and after the last existed all the time, since no ``seq`` is given out twice; so
did every row it needs. A row that is gone by then proves nothing.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from sqlalchemy import MetaData, exists, func, select
from typing_extensions import override

from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database, translate_errors
from orthia.journal.file.inspect import list_large_references
from orthia.journal.model.moments import MomentKind
from orthia.journal.sql.bodies import is_needed_reference
from orthia.journal.sql.tables import (
    bindings_table,
    history_table,
    large_messages_table,
    messages_table,
    times_table,
)
from orthia.pipeline.sources.file_journal import FileReference, read_files

_KEYS_AT_ONCE = 1_000
_ROWS_AT_ONCE = 50_000


class OrphanedAttempts(NamedTuple):
    """A row of MESSAGES_TIMES that counts failed deliveries of a message that is gone."""

    seq: int
    queue_id: int
    attempts: int


class Recheck(ABC):
    """The rows that exist now."""

    @abstractmethod
    def messages(self, seqs: Iterable[int]) -> set[int]:
        """Return those of ``seqs`` that are still in MESSAGES."""

    @abstractmethod
    def history(self, seqs: Iterable[int]) -> set[int]:
        """Return those of ``seqs`` that are still in the history."""

    @abstractmethod
    def bindings(self, seqs: Iterable[int]) -> set[int]:
        """Return those of ``seqs`` that are still in BINDINGS."""

    @abstractmethod
    def unneeded(self, bodies: Iterable[int]) -> set[int]:
        """Return those of the large bodies that still exist without any reference."""

    def orphaned_attempts(self, limit: int) -> list[OrphanedAttempts]:  # noqa: ARG002 - a default
        """Return rows of MESSAGES_TIMES, ``limit`` at most, whose message is gone.

        Files and exports have no such table.
        """
        return []


class ExportRecheck(Recheck):
    """Answers for an export, which does not change.

    The messages ``left`` left their queue while the export was written, and their large bodies went
    with them, as its manifest records. An export has no unneeded bodies.
    """

    def __init__(self, left: Iterable[int] = ()) -> None:
        self._left = frozenset(left)

    @override
    def messages(self, seqs: Iterable[int]) -> set[int]:
        return set(seqs) - self._left

    @override
    def history(self, seqs: Iterable[int]) -> set[int]:
        return set(seqs)

    bindings = history

    @override
    def unneeded(self, bodies: Iterable[int]) -> set[int]:
        return set()


class StoreRecheck(Recheck):
    """Queries a database; raises StoreError."""

    def __init__(self, settings: DatabaseStoreSettings) -> None:
        self._settings = settings

    @override
    def messages(self, seqs: Iterable[int]) -> set[int]:
        return self._seqs(self._settings.message_table_name, seqs)

    @override
    def history(self, seqs: Iterable[int]) -> set[int]:
        return self._seqs(self._settings.message_history_table_name, seqs)

    @override
    def bindings(self, seqs: Iterable[int]) -> set[int]:
        return self._seqs(self._settings.bindings_table_name, seqs)

    @override
    def unneeded(self, bodies: Iterable[int]) -> set[int]:
        s = self._settings
        with Database.from_settings(s) as database:
            metadata, dialect = MetaData(), database.dialect
            table = large_messages_table(metadata, s.large_message_table_name, dialect)
            holders = (
                messages_table(metadata, s.message_table_name, dialect),
                bindings_table(metadata, s.bindings_table_name, dialect),
                history_table(metadata, s.message_history_table_name, dialect),
            )
            found: set[int] = set()
            with translate_errors("look for large messages"), database.engine.connect() as asking:
                for some in _portions(bodies):
                    mine = select(table.c.id).where(table.c.id.in_(some)).distinct()
                    needed = mine.where(is_needed_reference(table, holders))
                    found.update(asking.execute(mine).scalars())
                    found.difference_update(asking.execute(needed).scalars())
        return found

    @override
    def orphaned_attempts(self, limit: int) -> list[OrphanedAttempts]:
        """One statement for each portion: a row and its message are deleted in one transaction."""
        s = self._settings
        with Database.from_settings(s) as database:
            metadata, dialect = MetaData(), database.dialect
            times = times_table(metadata, s.message_times_table_name, dialect)
            messages = messages_table(metadata, s.message_table_name, dialect)
            is_there = exists().where(messages.c.seq == times.c.seq)
            # A row with a due time is found and deleted at that time.
            wanted = (times.c.kind == int(MomentKind.NEVER), ~is_there)
            ask = select(times.c.seq, times.c.queue_id, times.c.attempts).where(*wanted)
            found: list[OrphanedAttempts] = []
            with translate_errors("look for attempts"), database.engine.connect() as asking:
                last: int | None = asking.execute(select(func.max(times.c.seq))).scalar_one()
                after = -1
                while last is not None and after < last and len(found) < limit:
                    ahead = select(times.c.seq).where(times.c.seq > after).order_by(times.c.seq)
                    end = asking.execute(ahead.offset(_ROWS_AT_ONCE - 1).limit(1)).scalar()
                    end = last if end is None else end
                    portion = ask.where(times.c.seq > after, times.c.seq <= end)
                    rows = asking.execute(portion.order_by(times.c.seq).limit(limit - len(found)))
                    found += [OrphanedAttempts(*row) for row in rows]
                    after = end
        return found

    def _seqs(self, name: str, seqs: Iterable[int]) -> set[int]:
        with Database.from_settings(self._settings) as database:
            table = messages_table(MetaData(), name, database.dialect)
            found: set[int] = set()
            with translate_errors("look for rows"), database.engine.connect() as asking:
                for some in _portions(seqs):
                    found.update(
                        asking.execute(select(table.c.seq).where(table.c.seq.in_(some))).scalars()
                    )
        return found


class FileRecheck(Recheck):
    """Reads the files again; raises JournalError."""

    def __init__(self, reference: FileReference) -> None:
        self._reference = reference

    @override
    def messages(self, seqs: Iterable[int]) -> set[int]:
        found = read_files(self._reference).messages
        return {seq for seq in seqs if found.find(seq) is not None}

    history = messages

    @override
    def bindings(self, seqs: Iterable[int]) -> set[int]:
        return set(seqs) & read_files(self._reference).bindings.records.keys()

    @override
    def unneeded(self, bodies: Iterable[int]) -> set[int]:
        contents = read_files(self._reference)
        return set(bodies) - {one.large_id for one in list_large_references(contents)}


def _portions(keys: Iterable[int]) -> Iterator[Sequence[int]]:
    ordered = sorted(set(keys))
    for at in range(0, len(ordered), _KEYS_AT_ONCE):
        yield ordered[at : at + _KEYS_AT_ONCE]
