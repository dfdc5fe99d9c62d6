"""A loop to be driven by hand, messages, and stores of every kind to open journals on."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from sqlalchemy import MetaData, Table, delete, select, update
from typing_extensions import override

from orthia.config.errors import OrthiaError
from orthia.config.store_settings import DatabaseStoreSettings, FileStoreSettings, JournalType
from orthia.database import Database
from orthia.journal import (
    JournalLimits,
    MemoryJournal,
    MemoryStore,
    Message,
    MessageJournal,
    MessageLocation,
    QueueCounts,
    QueuePlace,
    Unit,
    Window,
    encode_message,
)
from orthia.journal.engine.batch import Batch
from orthia.journal.engine.threads import ThreadedJournal
from orthia.journal.errors import JournalIOError
from orthia.journal.file import open_file_journal
from orthia.journal.file.fence import Fence
from orthia.journal.file.format import RECORD_BYTES, Scanned
from orthia.journal.file.index import Position
from orthia.journal.file.inspect import inspect
from orthia.journal.file.recovery import FoundFile, Listing, scan
from orthia.journal.file.store import FileStore
from orthia.journal.sql.fence import fenced_engine
from orthia.journal.sql.journal import batch_store, open_journal
from orthia.journal.sql.tables import bindings_table, messages_table
from orthia.nodemanager.tables import node_manager_store
from tests.support.schema import make_tables
from tests.support.waiting import wait_until

QUEUE = 7
OTHER_QUEUE = 8
THIRD_QUEUE = 9
ALWAYS = 2**62
"""An ``up_to_seq`` above every seq."""

NO_BYTE_LIMIT = 2**40
PATIENT = JournalLimits(drain_timeout_ms=120_000, abandon_timeout_ms=60_000)
"""A journal that is closed waits for its threads, however slow the machine is."""
PATIENT_SETTINGS: dict[str, Any] = {
    "jdbc_network_timeout": 120_000,
    "jdbc_lock_expiration": 240_000,
}
"""Nothing is done in vain because a machine stood still: nobody holds a lease here, but a quarter
of it is how long the server lets a transaction do so."""


def record(text: str = "hello") -> Message:
    """Return a message whose body is ``text``."""
    return Message("orders", b"colour:red\n", text.encode(), 1_700_000_000_000, 0, 4)


def payload(text: str = "hello") -> bytes:
    """Return the encoded message whose body is ``text``."""
    return encode_message(record(text))


Done = Callable[[], None]
Work = Callable[[MessageJournal, int, Done], object]


def _transaction(journal: MessageJournal, consumed: int, done: Done) -> None:
    unit = Unit(done)
    unit.add_message([QUEUE], payload())
    unit.delete(MessageLocation(consumed))
    journal.append_unit(unit)


def _fan_out(journal: MessageJournal, consumed: int, done: Done) -> None:
    unit = Unit(done)
    unit.add_message([QUEUE, OTHER_QUEUE], payload())
    unit.delete(MessageLocation(consumed))
    journal.append_unit(unit)


WORK: dict[str, Work] = {
    "one message": lambda journal, _, done: journal.append_message(QUEUE, payload(), done),
    "a transaction": _transaction,
    "several queues": _fan_out,
    "a delete": lambda journal, seq, done: journal.delete([MessageLocation(seq)], done),
}
"""What a journal stores in ways of its own: alone, in few statements or in many.

A lone message is one statement, which commits itself; a delete may be repeated whatever became of
it. Each gets the seq of a message to acknowledge, and calls ``done`` once.
"""


class Loop:
    """Stands in for the event loop: callbacks run when a test says so, on the test's thread."""

    def __init__(self) -> None:
        self._callbacks: SimpleQueue[Callable[[], None]] = SimpleQueue()

    def post(self, callback: Callable[[], None]) -> None:
        """Take a callback, from any thread."""
        self._callbacks.put(callback)

    @property
    def posted(self) -> int:
        """How many callbacks are here."""
        return self._callbacks.qsize()

    def run_until(
        self, predicate: Callable[[], object], what: str, timeout_seconds: float = 120
    ) -> None:
        """Run callbacks until ``predicate()`` is true; AssertionError if none comes any more."""
        while not predicate():
            try:
                callback = self._callbacks.get(timeout=timeout_seconds)
            except Empty:
                raise AssertionError(f"{what} did not come true") from None
            callback()

    def run_posted(self) -> int:
        """Run the callbacks that are here and return how many they were."""
        count = 0
        while True:
            try:
                callback = self._callbacks.get_nowait()
            except Empty:
                return count
            callback()
            count += 1


class JournalStore(ABC):
    """Something that journals are opened on, one after the other."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.failures: list[OrthiaError] = []
        self.lease_valid = True
        self._opened: list[MessageJournal] = []

    def open(self, token: int = 1, limits: JournalLimits | None = None) -> MessageJournal:
        """Open a journal that is closed at the end of the test."""
        journal = self._open(token, limits or PATIENT)
        self._opened.append(journal)
        return journal

    def close(self) -> None:
        """Close every journal that was opened."""
        for journal in self._opened:
            journal.close(drain=False)

    @abstractmethod
    def _open(self, token: int, limits: JournalLimits) -> MessageJournal: ...

    @abstractmethod
    def advance_fence(self, token: int) -> None:
        """Make ``token`` the newest, as another node that becomes live does."""

    @abstractmethod
    def rows(self) -> dict[int, tuple[int | None, int]]:
        """Return the rows of MESSAGES: seq to queue id and epoch."""

    @abstractmethod
    def spoil(self, seq: int, record_bytes: bytes) -> None:
        """Overwrite the record of a row of MESSAGES."""

    @abstractmethod
    def spoil_binding(self, binding_id: int, record_bytes: bytes) -> None:
        """Overwrite the record of a row of BINDINGS."""

    @abstractmethod
    def remove(self, seq: int) -> None:
        """Delete a row of MESSAGES behind the journal's back."""

    def append(self, journal: MessageJournal, *texts: str, queue: int = QUEUE) -> list[int]:
        """Store one message a text and wait until all are stored."""
        stored: list[int] = []
        seqs = [
            journal.append_message(queue, payload(text), lambda: stored.append(1)) for text in texts
        ]
        self.loop.run_until(lambda: len(stored) == len(texts), f"{len(texts)} messages stored")
        return seqs

    def settle(self, journal: MessageJournal) -> None:
        """Wait until everything appended so far is stored."""
        done: list[int] = []
        journal.delete([], lambda: done.append(1))
        self.loop.run_until(lambda: done, "everything appended is stored")

    def window(
        self,
        journal: MessageJournal,
        queue: int = QUEUE,
        after: int = 0,
        up_to: int = ALWAYS,
        max_messages: int = 1_000,
        max_bytes: int = NO_BYTE_LIMIT,
    ) -> Window:
        """Read a window and wait for it."""
        answers: list[Window | OrthiaError] = []
        journal.read_window(queue, after, up_to, max_messages, max_bytes, answers.append)
        self.loop.run_until(lambda: answers, "the window")
        (answer,) = answers
        assert isinstance(answer, Window), answer
        return answer

    def count(
        self, journal: MessageJournal, after: QueuePlace, up_to: int, limit: int
    ) -> QueueCounts:
        """Count a stretch of all queues and wait for the answer."""
        answers: list[QueueCounts | OrthiaError] = []
        journal.count(after, up_to, limit, answers.append)
        self.loop.run_until(lambda: answers, "the count")
        (answer,) = answers
        assert isinstance(answer, QueueCounts)
        return answer

    def bodies(self, journal: MessageJournal, queue: int = QUEUE) -> list[str]:
        """Return the bodies of everything in a queue, in order."""
        return [m.record.body.decode() for m in self.window(journal, queue).messages]


class MemoryJournalStore(JournalStore):
    """The in-memory twin."""

    def __init__(self) -> None:
        super().__init__()
        self.store = MemoryStore()

    def _open(self, token: int, limits: JournalLimits) -> MessageJournal:
        return MemoryJournal(
            self.store,
            token=token,
            still_valid=lambda: self.lease_valid,
            post=self.loop.post,
            on_failure=self.failures.append,
            limits=limits,
        )

    @override
    def advance_fence(self, token: int) -> None:
        self.store.fence_token = token

    @override
    def rows(self) -> dict[int, tuple[int | None, int]]:
        return {seq: (row.queue_id, epoch) for seq, (row, epoch) in self.store.messages.items()}

    @override
    def spoil(self, seq: int, record_bytes: bytes) -> None:
        row, epoch = self.store.messages[seq]
        self.store.messages[seq] = (row._replace(record=record_bytes), epoch)

    @override
    def spoil_binding(self, binding_id: int, record_bytes: bytes) -> None:
        row = self.store.bindings[binding_id]
        self.store.bindings[binding_id] = row._replace(record=record_bytes)

    @override
    def remove(self, seq: int) -> None:
        del self.store.messages[seq]


def threads_of(journal: MessageJournal) -> ThreadedJournal:
    """Return a journal on a store with its threads."""
    assert isinstance(journal, ThreadedJournal)
    return journal


def count_connects(journal: MessageJournal) -> list[int]:
    """Return what grows with each attempt of a journal's writer to connect anew."""
    attempts: list[int] = []
    connect = threads_of(journal).writer._store.connect

    def count() -> None:
        attempts.append(1)
        connect()

    threads_of(journal).writer._store.connect = count  # type: ignore[method-assign]
    return attempts


class SqlJournalStore(JournalStore):
    """A migrated database."""

    def __init__(self, settings: DatabaseStoreSettings) -> None:
        super().__init__()
        self.settings = settings
        self.database = Database.from_settings(settings)
        make_tables(self.database, settings)
        metadata = MetaData()
        dialect = self.database.dialect
        self.messages: Table = messages_table(metadata, settings.message_table_name, dialect)
        self.bindings = bindings_table(metadata, settings.bindings_table_name, dialect)
        self.fence = node_manager_store(metadata, settings.node_manager_store_table_name, dialect)
        self.advance_fence(1)

    def _open(self, token: int, limits: JournalLimits) -> MessageJournal:
        return open_journal(
            self.database,
            self.settings,
            token=token,
            still_valid=lambda: self.lease_valid,
            post=self.loop.post,
            on_failure=self.failures.append,
            limits=limits,
        )

    @override
    def close(self) -> None:
        super().close()
        self.database.dispose()

    @override
    def advance_fence(self, token: int) -> None:
        with self.database.engine.begin() as connection:
            connection.execute(
                update(self.fence).where(self.fence.c.id == 4).values(holder_token=token)
            )

    def store(self, batch: Batch) -> None:
        """Store ``batch`` under token 1 as the writer does, without a writer beside it."""
        engine = fenced_engine(self.database, self.settings, "journal", 1)
        store = batch_store(self.database, self.settings, engine, 1)
        try:
            store.connect()
            store.store(batch)
        finally:
            store.close()

    @override
    def rows(self) -> dict[int, tuple[int | None, int]]:
        columns = self.messages.c
        ask = select(columns.seq, columns.queue_id, columns.epoch)
        with self.database.engine.connect() as connection:
            return {seq: (queue, epoch) for seq, queue, epoch in connection.execute(ask)}

    @override
    def spoil(self, seq: int, record_bytes: bytes) -> None:
        row = update(self.messages).where(self.messages.c.seq == seq)
        with self.database.engine.begin() as connection:
            connection.execute(row.values(record=record_bytes))

    @override
    def spoil_binding(self, binding_id: int, record_bytes: bytes) -> None:
        row = update(self.bindings).where(self.bindings.c.seq == binding_id)
        with self.database.engine.begin() as connection:
            connection.execute(row.values(record=record_bytes))

    @override
    def remove(self, seq: int) -> None:
        with self.database.engine.begin() as connection:
            connection.execute(delete(self.messages).where(self.messages.c.seq == seq))


class FileJournalStore(JournalStore):
    """A directory of journal files, read as the next node that opens it would read it."""

    def __init__(self, directory: Path, **settings: object) -> None:
        super().__init__()
        small = {"journal_type": JournalType.NIO, "journal_file_size": 64 * 1024}
        base = FileStoreSettings(
            directory / "journal", directory / "bindings", directory / "large-messages"
        )
        self.settings = replace(base, **{**small, **settings})  # type: ignore[arg-type]

    def _open(self, token: int, limits: JournalLimits) -> MessageJournal:
        return open_file_journal(
            self.settings,
            token=token,
            still_valid=lambda: self.lease_valid,
            post=self.loop.post,
            on_failure=self.failures.append,
            limits=limits,
        )

    @override
    def advance_fence(self, token: int) -> None:
        self.settings.journal_directory.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(Fence(self.settings.journal_directory, create=True)) as fence:
            before = fence.read()
            fence.write(replace(before, token=token, generation=before.generation + 1))

    @override
    def rows(self) -> dict[int, tuple[int | None, int]]:
        """A file that is taken out of use meanwhile is not looked for."""
        found: list[dict[int, tuple[int | None, int]]] = []

        def look() -> bool:
            with contextlib.suppress(JournalIOError):
                found.append(self._rows())
            return bool(found)

        wait_until(look, what="the journal's files are read while none is taken out of use")
        return found[0]

    def _rows(self) -> dict[int, tuple[int | None, int]]:
        contents = inspect(self.settings)
        epochs = {
            (found.file_id, record.offset): record.epoch
            for found in contents.message_files.counting
            for record in self._records(found)
        }
        return {
            position.seq: (queue_id, epochs[position.file_id, position.offset])
            for position, queue_id in contents.messages.rows()
        }

    @staticmethod
    def _records(found: FoundFile) -> list[Scanned]:
        with scan(found) as records:
            return [record for record, _, _ in records]

    @override
    def spoil(self, seq: int, record_bytes: bytes) -> None:
        """The record keeps its length, or its neighbours would be lost.

        Something is stored after it first: until then it is taken for a write that was torn.
        """
        for journal in self._opened:
            journal.delete([MessageLocation(ALWAYS)])
            self.settle(journal)
        contents = inspect(self.settings)
        self._spoil(contents.message_files, contents.messages.find(seq), record_bytes)

    @override
    def spoil_binding(self, binding_id: int, record_bytes: bytes) -> None:
        contents = inspect(self.settings)
        self._spoil(contents.binding_files, contents.bindings.find(binding_id), record_bytes)

    def _spoil(self, files: Listing, position: Position | None, record_bytes: bytes) -> None:
        assert position is not None
        (path,) = [one.path for one in files.counting if one.file_id == position.file_id]
        with path.open("r+b") as file:
            file.seek(position.offset + RECORD_BYTES)
            file.write(record_bytes[: position.size].ljust(position.size, b"\0"))

    @override
    def remove(self, seq: int) -> None:
        """The journal that is open finds it gone."""
        (journal,) = self._opened
        store = threads_of(journal).writer._store
        assert isinstance(store, FileStore)
        files = store._opened.messages
        with files.lock:
            files.index.delete(files.file_id, [seq])
