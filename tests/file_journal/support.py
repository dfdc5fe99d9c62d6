"""Journals on files, their crashes, and what is in them afterwards."""

from dataclasses import replace
from pathlib import Path

from orthia.config.store_settings import FileStoreSettings, JournalType
from orthia.journal.engine.batch import Batch
from orthia.journal.file.inspect import inspect
from orthia.journal.file.journal import FileKeeper
from orthia.journal.file.opening import OpenedFiles, open_files
from orthia.journal.file.store import FileStore
from orthia.journal.model.changes import MessageLocation
from orthia.journal.model.unit import AppendedMessage, Unit
from tests.journal.support import QUEUE, payload

FILE_SIZE = 8 * 1024
BODY = "x" * 700


def file_settings(directory: Path, **given: object) -> FileStoreSettings:
    """Return settings of a journal of small files, written with NIO."""
    base = FileStoreSettings(
        directory / "journal", directory / "bindings", directory / "large-messages"
    )
    small = {
        "journal_type": JournalType.NIO,
        "journal_file_size": FILE_SIZE,
        "journal_compact_min_files": 4,
    }
    return replace(base, **{**small, **given})  # type: ignore[arg-type]


class SimulatedCrash(BaseException):
    """Ends the journal between two calls to the file system."""


class DirectJournal:
    """A journal without threads: each call is done when it returns."""

    def __init__(self, s: FileStoreSettings, token: int = 1) -> None:
        self.settings = s
        self.opened: OpenedFiles = open_files(s, token=token, id_block=10_000)
        self.keeper = FileKeeper(self.opened, s)
        self.store = FileStore(
            self.opened,
            sync_transactional=s.journal_sync_transactional,
            sync_non_transactional=s.journal_sync_non_transactional,
            rolled=lambda: None,
            closed=lambda: None,
        )
        self.seq = self.opened.horizon

    def add(self, *texts: str, queue: int = QUEUE) -> list[int]:
        """Store a batch of messages and return their seqs."""
        batch = Batch()
        seqs = []
        for text in texts:
            self.seq += 1
            seqs.append(self.seq)
            batch.add(AppendedMessage(self.seq, queue, payload(text), None))
        self.store.store(batch)
        return seqs

    def delete(self, *seqs: int) -> None:
        """Delete messages, a unit each, in one batch."""
        batch = Batch()
        for seq in seqs:
            unit = Unit(None, self.seq)
            unit.add_deletes([MessageLocation(seq)])
            batch.add(unit)
        self.store.store(batch)

    def unit(self, unit: Unit) -> list[MessageLocation]:
        """Store a unit and return where its messages are."""
        locations = unit.place(self.seq + 1)
        self.seq = unit.last_seq
        batch = Batch()
        batch.add(unit)
        self.store.store(batch)
        return locations

    def live(self) -> list[int]:
        """Return the seqs that the journal believes to be live."""
        return sorted(p.seq for p, _ in self.opened.contents.messages.rows())

    def close(self) -> None:
        """Close in good order."""
        self.store.close()

    def abandon(self) -> None:
        """Let go of everything as a crash does."""
        self.opened.close(seal=False)


def stored(s: FileStoreSettings) -> list[int]:
    """Return the seqs that whoever opens the journal now would find."""
    return sorted(p.seq for p, _ in inspect(s).messages.rows())


class Client:
    """Remembers what it was told, as an honest sender and consumer would."""

    def __init__(self) -> None:
        self.confirmed: set[int] = set()
        self.deleted: set[int] = set()
        self.unsure: set[int] = set()
        """In flight when the journal stopped: may be stored, and may be deleted."""

    def add(self, journal: DirectJournal, count: int) -> None:
        """Store messages; they count once the call has returned."""
        coming = set(range(journal.seq + 1, journal.seq + count + 1))
        self.unsure |= coming
        journal.add(*[BODY] * count)
        self.unsure -= coming
        self.confirmed |= coming

    def delete(self, journal: DirectJournal, seqs: list[int]) -> None:
        """Delete messages; likewise."""
        self.unsure |= set(seqs)
        journal.delete(*seqs)
        self.unsure -= set(seqs)
        self.confirmed -= set(seqs)
        self.deleted |= set(seqs)

    @property
    def known(self) -> set[int]:
        """Everything it ever sent."""
        return self.confirmed | self.deleted | self.unsure

    def check(self, found: list[int]) -> None:
        """Fail if anything that was confirmed is missing, or what was deleted is back."""
        assert self.confirmed - self.unsure <= set(found)
        assert not self.deleted & set(found)
        assert set(found) <= self.confirmed | self.unsure


def rolling(journal: DirectJournal, client: Client) -> None:
    """Fill files, delete most, use files again, compact, and go on."""
    for _ in range(6):
        client.add(journal, 7)
    journal.keeper.keep()
    client.delete(journal, sorted(client.confirmed)[:14])
    journal.keeper.keep()
    for _ in range(4):
        client.add(journal, 7)
    client.delete(journal, [seq for seq in sorted(client.confirmed) if seq % 5])
    journal.keeper.keep()
    client.add(journal, 7)
    client.delete(journal, sorted(client.confirmed)[::2])
    journal.keeper.keep()
