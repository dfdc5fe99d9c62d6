"""Operator commands on a journal that no node has open: compact and recover."""

import contextlib
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from orthia.config.store_settings import FileStoreSettings
from orthia.journal.errors import CorruptRecord, JournalDamaged, JournalInUse
from orthia.journal.file.artemis import refuse_files_of_artemis
from orthia.journal.file.control import (
    CONTROL,
    missing_outputs,
    publish_outputs,
    read_control,
)
from orthia.journal.file.disk import io_errors, sync_directory
from orthia.journal.file.fence import DirectoryLock, Fence, FenceState
from orthia.journal.file.format import Kind
from orthia.journal.file.inspect import inspect, read_fence
from orthia.journal.file.opening import open_files
from orthia.journal.file.recovery import (
    Contents,
    Listing,
    directory_of,
    list_files,
    read_payload,
)

ATTIC: Final = "attic"
"""Where files that could not be read whole are kept, beside those that take their place."""


@dataclass(frozen=True)
class Compacted:
    """The result of compacting one instance."""

    directory: Path
    records: int
    bytes_before: int
    bytes_after: int


@dataclass
class Recovered:
    """The result of a recovery."""

    findings: list[str] = field(default_factory=list)
    """What could not be read, a sentence each; nothing if all could."""
    kept_in: list[Path] = field(default_factory=list)
    """Copies of the files that could not be read whole."""
    compacted: list[Compacted] = field(default_factory=list)


def compact(s: FileStoreSettings, *, salvage: bool = False) -> list[Compacted]:
    """Copy all that is live into new files and remove the old ones.

    Raises JournalInUse if a node has the journal open, JournalDamaged, UnknownFormat,
    JournalIOError.
    """
    if not s.journal_directory.is_dir():
        raise JournalDamaged(f"there is no journal in {s.journal_directory}")
    opened = open_files(s, token=None, id_block=0, exclusive=True, salvage=salvage)
    try:
        results = []
        for files in opened.instances:
            before = _bytes(files.directory, files.kind)
            files.compact()
            files.reclaim()
            with files.lock:
                live = files.index.total
            results.append(
                Compacted(files.directory, live, before, _bytes(files.directory, files.kind))
            )
        return results
    finally:
        opened.close(seal=True)


def recover(s: FileStoreSettings) -> Recovered:
    """Keep what can be read of a damaged journal, and report what could not.

    Files that are not whole are copied into the attic first. Raises JournalInUse, JournalIOError,
    ForeignJournal, UnknownFormat.
    """
    refuse_files_of_artemis(s)
    recovered = Recovered()
    with contextlib.closing(DirectoryLock(s.journal_directory)) as lock:
        if not lock.try_hold():
            raise JournalInUse(
                f"a node has the journal in {s.journal_directory} open; stop it first"
            )
        _mend_fence(s, recovered)
        _set_controls_aside(s, recovered)
        contents = inspect(s)
        for _, listing in contents.listings:
            damaged = [path for path, _ in listing.damaged]
            broken = [one.path for one in listing.counting if one.damages or one.unreadable]
            for path in (*damaged, *broken):
                recovered.kept_in.append(_keep(path))
            for path in damaged:
                path.unlink()
            recovered.findings += _findings(listing)
        _note_lost_bindings(contents, recovered)
    recovered.compacted = compact(s, salvage=True)
    return recovered


def _note_lost_bindings(contents: Contents, recovered: Recovered) -> None:
    for position, _ in sorted(contents.bindings.records.values()):
        found = contents.file_of(position)
        try:
            read_payload(found, position)
        except CorruptRecord as error:
            recovered.findings.append(f"{error.reason}: the queue or address is lost")
            recovered.kept_in.append(_keep(found.path))


def _findings(listing: Listing) -> list[str]:
    said = [f"{path}: {reason}; all of it is lost" for path, reason in listing.damaged]
    for found in listing.counting:
        said += [
            f"{found.path}: bytes {damage.begin} to {damage.end} cannot be read: what they stored"
            " is lost, and what they deleted is back"
            for damage in found.damages
        ]
        said += [f"{found.path}: record at byte {at}: {why}" for at, why in found.unreadable]
    return said


def _mend_fence(s: FileStoreSettings, recovered: Recovered) -> None:
    """Write a fence that lets the newest files count, if there is none that can be read."""
    with contextlib.closing(Fence(s.journal_directory, create=True)) as fence:
        with contextlib.suppress(JournalDamaged):
            if fence.read().version:
                return
        generation = token = 0
        for kind in Kind:
            listing = list_files(directory_of(s, kind), kind, None)
            for found in (*listing.counting, *listing.stale):
                generation = max(generation, found.header.generation)
                token = max(token, found.header.token)
        if generation:
            recovered.findings.append(
                f"{fence.path} was missing or damaged: files that are not sealed count if they are"
                f" of generation {generation}, the newest there is"
            )
            fence.rewrite(FenceState(0, token, generation, generation))


def _set_controls_aside(s: FileStoreSettings, recovered: Recovered) -> None:
    """Set compactions aside that cannot be carried out, as files that they made are missing."""
    complete = read_fence(s).complete
    for kind in Kind:
        directory = directory_of(s, kind)
        for path in sorted(directory.glob(f"{kind.prefix}-*{CONTROL}")):
            aside: list[Path] = []
            try:
                control = read_control(path)
            except JournalDamaged as error:
                recovered.findings.append(f"{error}; what is left of the files it names counts")
            else:
                missing = missing_outputs(directory, kind, control)
                if control.generation != complete or not missing:
                    continue
                names = ", ".join(one.name for one in missing)
                said = f"{path}: there is no {names}, which replaces other files"
                made = [directory / kind.file_name(file_id) for file_id in control.new]
                if all((directory / kind.file_name(file_id)).exists() for file_id in control.old):
                    # None of them was removed, so they have all that was compacted.
                    aside += [one for one in made if one.exists()]
                    recovered.findings.append(f"{said}; these are there, and count")
                else:
                    with io_errors(f"finish a compaction in {directory}"):
                        publish_outputs(directory, kind, control)
                    recovered.findings.append(f"{said}; what is left of all of them counts")
            # The control file last: without it some records would exist twice.
            for one in (*aside, path):
                recovered.kept_in.append(_keep(one))
                with io_errors(f"set {one} aside"):
                    one.unlink()
                    sync_directory(directory)


def _keep(path: Path) -> Path:
    """Copy a file into the attic and return where it is."""
    attic = path.parent / ATTIC
    with io_errors(f"keep a copy of {path}"):
        attic.mkdir(exist_ok=True)
        kept = attic / path.name
        number = 1
        while kept.exists():
            number += 1
            kept = attic / f"{path.name}.{number}"
        shutil.copy2(path, kept)
        sync_directory(attic)
    return kept


def _bytes(directory: Path, kind: Kind) -> int:
    return sum(path.stat().st_size for path in directory.glob(f"{kind.prefix}-*"))
