"""Journals on files, their crashes, and what is in them afterwards."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from config.settings import FileStoreSettings, JournalType
from journal import Unit
from journal.batch import Batch
from journal.file import disk
from journal.file.inspect import inspect
from journal.file.journal import FileKeeper
from journal.file.opening import OpenedFiles, open_files
from journal.file.store import FileStore
from journal.unit import AppendedMessage, AppendedUnit, MessageLocation, expand
from tests.journal.support import QUEUE, payload

FILE_SIZE = 8 * 1024


def file_settings(directory: Path, **given: object) -> FileStoreSettings:
    """Return settings of a journal of small files, written with NIO."""
    base = FileStoreSettings(directory / "journal", directory / "bindings")
    small = {
        "journal_type": JournalType.NIO,
        "journal_file_size": FILE_SIZE,
        "journal_compact_min_files": 4,
    }
    return replace(base, **{**small, **given})  # type: ignore[arg-type]


class SimulatedCrash(BaseException):
    """Ends the journal between two calls to the file system."""


@contextmanager
def crash_at(call: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Have the ``call``-th change of a directory or file, counted from 1, not happen any more.

    Gives the names of the calls that were made.
    """
    made: list[str] = []

    def counted(name: str, real: Callable[..., object]) -> Callable[..., object]:
        def step(*arguments: object, **named: object) -> object:
            if len(made) + 1 >= call:
                raise SimulatedCrash(f"{name}, call {call}")
            made.append(name)
            return real(*arguments, **named)

        return step

    with monkeypatch.context() as patch:
        for name in (
            "create",
            "rename",
            "rename_if_free",
            "remove",
            "rewrite_header",
            "seal",
            "sync_directory",
            "write_all",
        ):
            patch.setattr(disk, name, counted(name, getattr(disk, name)))
        yield made


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
            unit = AppendedUnit(None, self.seq)
            unit.add_deletes([MessageLocation(seq)])
            batch.add(unit)
        self.store.store(batch)

    def unit(self, unit: Unit) -> list[MessageLocation]:
        """Store a unit and return where its messages are."""
        appended, locations = expand(unit, self.seq + 1)
        self.seq = appended.last_seq
        batch = Batch()
        batch.add(appended)
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
