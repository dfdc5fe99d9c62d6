"""Reading the files of one instance back: which of them count, and what is in each.

==================================  ==============================================================
a file                              counts
==================================  ==============================================================
sealed                              up to its seal
of the generation that is complete  up to its last durable record: its writer died or was fenced
of an earlier one, not sealed       not: a fenced writer made it after its successor had read
of a later one                      not: whoever opened the journal died before it was open
==================================  ==============================================================

Files that compaction was replacing are as its control file says: it is carried out, whole, or if it
was not there yet, nothing of it.
"""

import mmap
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from orthia.journal.errors import JournalDamaged, UnknownFormat
from orthia.journal.file import disk
from orthia.journal.file.control import COMPACTED, UNFINISHED, Control
from orthia.journal.file.disk import io_errors
from orthia.journal.file.encoding import attempts_of, large_id, moment_of
from orthia.journal.file.format import (
    HEADER_BYTES,
    BadHeader,
    FileHeader,
    Kind,
    Scanned,
    Seal,
    UnknownVersion,
    decode_header,
    decode_seal,
    decode_seqs,
)
from orthia.journal.file.index import Added, RecordIndex
from orthia.journal.file.scan import Damage, FileScan
from orthia.journal.file.transactions import Transactions
from orthia.journal.model.message import RECORD_OVERHEAD, moment_bytes
from orthia.journal.model.records import RecordType, UserRecordType


@dataclass
class FoundFile:
    """A journal file and what its header says."""

    path: Path
    header: FileHeader
    size: int
    seal: Seal | None
    end: int = HEADER_BYTES
    """Where its last record ends, once it was read."""
    records: int = 0
    torn_bytes: int = 0
    damages: list[Damage] = field(default_factory=list)
    unreadable: list[tuple[int, str]] = field(default_factory=list)
    """Records whose payload is damaged, or that make no sense: offset and what is wrong."""

    @property
    def file_id(self) -> int:
        """The number in its name."""
        return self.header.file_id


@dataclass
class Listing:
    """The files of one instance, sorted by whether they count."""

    counting: list[FoundFile] = field(default_factory=list)
    stale: list[FoundFile] = field(default_factory=list)
    leftovers: list[Path] = field(default_factory=list)
    """What an interrupted step left: never read."""
    damaged: list[tuple[Path, str]] = field(default_factory=list)
    """Files whose header cannot be read."""
    highest_id: int = 0

    @property
    def highest_order(self) -> int:
        """The highest place that a sealed file has."""
        return max((found.seal.order for found in self.counting if found.seal), default=0)


def list_files(
    directory: Path, kind: Kind, complete: int | None, published: Sequence[Control] = ()
) -> Listing:
    """Look at every file of one instance; changes nothing. Raises JournalIOError, UnknownFormat.

    Without a generation that is ``complete`` only what is sealed counts. Compactions that are
    ``published`` are taken for carried out, and no others.
    """
    listing = Listing()
    pattern = re.compile(
        rf"{re.escape(kind.prefix)}-([0-9]+)\.{kind.extension}"
        rf"(?:\.[0-9]+{re.escape(COMPACTED)})?"
    )
    replaced = {file_id for control in published for file_id in control.old}
    compacted = {
        control.unfinished(directory / kind.file_name(file_id))
        for control in published
        for file_id in control.new
    }
    with io_errors(f"list {directory}"):
        names = sorted(path.name for path in directory.glob(f"{kind.prefix}-*"))
    for name in names:
        path = directory / name
        matched = pattern.fullmatch(name)
        if matched is not None:
            listing.highest_id = max(listing.highest_id, int(matched[1]))
        if (
            matched is None
            or (name.endswith(COMPACTED) and path not in compacted)
            or int(matched[1]) in replaced
        ):
            listing.leftovers.append(path)
        else:
            _sort_in(listing, path, kind, int(matched[1]), complete)
    listing.counting.sort(key=_reading_order)
    return listing


def remove_unborn(directory: Path, listing: Listing, complete: int) -> None:
    """Remove what openings that came to nothing have left; raises JournalIOError.

    Nobody began to write in a file of a generation later than the ``complete`` one, nor in one that
    has no name yet. On a full disk they would be in the way of each opening that follows.
    """
    unborn = [one.path for one in listing.stale if one.header.generation > complete]
    with io_errors(f"tidy {directory}"):
        for path in (*unborn, *(one for one in listing.leftovers if one.suffix == UNFINISHED)):
            disk.remove(path)


def _reading_order(found: FoundFile) -> tuple[bool, int, int, int]:
    # Of those that are not sealed only one has records: the one that was written last.
    order = 0 if found.seal is None else found.seal.order
    return found.seal is None, order, found.header.generation, found.file_id


def _sort_in(listing: Listing, path: Path, kind: Kind, file_id: int, complete: int | None) -> None:
    try:
        with io_errors(f"read {path}"), path.open("rb") as file:
            head = file.read(HEADER_BYTES)
            size = path.stat().st_size
        header = decode_header(head)
        seal = decode_seal(head)
    except BadHeader as error:
        listing.damaged.append((path, str(error)))
        return
    except UnknownVersion as error:
        # Not damage: nobody is to recover what another version of Orthia can read.
        raise UnknownFormat(path, str(error)) from None
    if (header.kind, header.file_id) != (kind, file_id):
        true_name = header.kind.file_name(header.file_id)
        listing.damaged.append((path, f"it says that it is {true_name}"))
        return
    found = FoundFile(path, header, size, seal)
    counts = seal is not None or header.generation == complete
    (listing.counting if counts else listing.stale).append(found)


@contextmanager
def scan(found: FoundFile) -> Iterator[Iterator[tuple[Scanned, bool, bytes]]]:
    """Give the records of a file with their payloads, and whether these are intact.

    Afterwards ``found`` knows where the file ends and what is damaged. Raises JournalIOError.
    """
    with (
        io_errors(f"read {found.path}"),
        found.path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        sealed_end = None if found.seal is None else found.seal.end
        reading = FileScan(data, found.header, sealed_end)  # type: ignore[arg-type]

        def records() -> Iterator[tuple[Scanned, bool, bytes]]:
            for record, intact in reading.records():
                found.records += 1
                yield record, intact, _needed_payload(record, data)
            found.end = reading.end
            found.torn_bytes = reading.torn_bytes
            found.damages = reading.damages

        try:
            yield records()
        finally:
            reading.release()


_WITH_PAYLOAD: Final = frozenset(
    {RecordType.DELETE_RECORD, RecordType.DELETE_RECORD_TX, RecordType.COMMIT_RECORD}
)


_WHOLE: Final = frozenset(
    {int(UserRecordType.ADD_LARGE_MESSAGE), int(UserRecordType.DELIVERY_ATTEMPTS)}
)


def _needed_payload(record: Scanned, data: mmap.mmap) -> bytes:
    """Return the payload of a record whose meaning is in it; others are read when asked for."""
    begin = record.end - record.payload_size
    if record.record_type in _WITH_PAYLOAD or record.user_record_type in _WHOLE:
        return data[begin : record.end]
    if record.user_record_type == UserRecordType.ADD_MESSAGE:
        return data[begin : begin + moment_bytes(data[begin : begin + RECORD_OVERHEAD])]
    return b""


class Replay:
    """Replays the files of one instance into its index."""

    def __init__(self, index: RecordIndex, transactions: Transactions) -> None:
        self._index = index
        self.transactions = transactions
        self.highest_id = 0
        """The highest seq or id that any record names."""

    def replay(self, found: FoundFile) -> None:
        """Take the records of one file; what is damaged is noted in ``found``."""
        with scan(found) as records:
            for record, intact, payload in records:
                self.highest_id = max(self.highest_id, record.seq, record.id)
                if not intact and record.record_type in _WITH_PAYLOAD:
                    found.unreadable.append((record.offset, "what it deletes cannot be read"))
                    continue
                try:
                    readable = payload if intact else b""
                    effective = self.transactions.take(found.file_id, record, readable)
                    self.apply(effective)
                except ValueError as error:
                    found.unreadable.append((record.offset, str(error)))

    def apply(self, effective: list[tuple[int, Scanned, bytes]]) -> None:
        """Make records effective; raises ValueError."""
        for file_id, record, payload in effective:
            if record.record_type in (RecordType.DELETE_RECORD, RecordType.DELETE_RECORD_TX):
                self._index.delete(file_id, decode_seqs(payload))
            else:
                self._index.add(file_id, added(record, payload))


def added(record: Scanned, payload: bytes) -> Added:
    """Return what the index keeps of a record."""
    return Added(
        record.seq,
        record.id,
        record.user_record_type,
        record.queue_id,
        record.offset,
        record.payload_size,
        large_id(record.user_record_type, payload) if payload else None,
        moment_of(record.user_record_type, payload) if payload else None,
        attempts_of(record.user_record_type, payload) if payload else None,
    )


def refuse_damage(directory: Path, listing: Listing) -> None:
    """Raise JournalDamaged if anything that was durable cannot be read."""
    problems = [f"{path.name}: {reason}" for path, reason in listing.damaged]
    for found in listing.counting:
        name = found.path.name
        problems += [
            f"{name}: bytes {damage.begin} to {damage.end} are no records"
            for damage in found.damages
        ]
        problems += [f"{name}: record at byte {at}: {reason}" for at, reason in found.unreadable]
    if problems:
        shown = "; ".join(problems[:5])
        more = f"; and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise JournalDamaged(
            f"the journal in {directory} has changed since it was written: {shown}{more}."
            " Nothing was changed. Look at the disk, restore the directory if you can, or have"
            " `orthia data recover` keep what can be read"
        )
