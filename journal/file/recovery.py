"""Recovery: read back what the files of both instances hold, and make that durable.

==================================  ==============================================================
a file                              counts
==================================  ==============================================================
sealed                              up to its seal
of the complete generation          up to its last durable record: its writer died or was fenced
of an earlier one, not sealed       not: a fenced writer made it after its successor had read
of a later one                      not: the node that was opening the journal died
==================================  ==============================================================

A compaction counts once its control file is published: then it is carried out as a whole; before
that, nothing of it counts.

The order: list the files, scan each for records, replay the records whose transactions ended into
the indexes, then write once more and seal what was read. Only the last step changes anything.
"""

import contextlib
import logging
import mmap
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from orthia.config.store_settings import FileStoreSettings
from orthia.journal.errors import CorruptRecord, JournalDamaged, UnknownFormat
from orthia.journal.file import disk
from orthia.journal.file.artemis import refuse_files_of_artemis
from orthia.journal.file.control import (
    COMPACTED,
    UNFINISHED,
    Control,
    finish_compactions,
    read_controls,
)
from orthia.journal.file.disk import io_errors
from orthia.journal.file.encoding import attempts_of, large_id, moment_of
from orthia.journal.file.format import (
    HEADER_BYTES,
    LAST_OF_SYNC,
    RECORD_BYTES,
    BadHeader,
    FileHeader,
    Kind,
    Scanned,
    Seal,
    UnknownVersion,
    decode_count,
    decode_header,
    decode_seal,
    decode_seqs,
    encode_seal,
    parse,
)
from orthia.journal.file.index import Added, BindingIndex, Position, RecordIndex
from orthia.journal.file.message_index import MessageIndex
from orthia.journal.model.message import RECORD_OVERHEAD, moment_bytes
from orthia.journal.model.records import RecordType, UserRecordType

LOGGER = logging.getLogger("orthia.journal")


class Damage(NamedTuple):
    """A stretch of a file that was durable and cannot be read any more."""

    begin: int
    end: int


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


# --- which files there are, and which count


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
    """Remove what failed openings have left; raises JournalIOError.

    Files of a generation later than the ``complete`` one hold nothing yet, nor do those that have
    no name yet. On a full disk they would block every later opening.
    """
    unborn = [one.path for one in listing.stale if one.header.generation > complete]
    with io_errors(f"tidy {directory}"):
        for path in (*unborn, *(one for one in listing.leftovers if one.suffix == UNFINISHED)):
            disk.remove(path)


def _reading_order(found: FoundFile) -> tuple[bool, int, int, int]:
    # Of the files that are not sealed only the one written last has records.
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
        # Not damage: another version of Orthia can read it, so it must not be recovered.
        raise UnknownFormat(path, str(error)) from None
    if (header.kind, header.file_id) != (kind, file_id):
        true_name = header.kind.file_name(header.file_id)
        listing.damaged.append((path, f"it says that it is {true_name}"))
        return
    found = FoundFile(path, header, size, seal)
    counts = seal is not None or header.generation == complete
    (listing.counting if counts else listing.stale).append(found)


# --- the records of one file: where it ends, and what of it is damaged


class FileScan:
    """Reads the records of one file; ``end`` and ``damages`` are known once it is read through.

    ``data`` supports ``find`` and slices, as bytes and a memory map do.
    """

    def __init__(self, data: bytes, header: FileHeader, sealed_end: int | None) -> None:
        self._data = data
        self._view = memoryview(data)
        self._mark = header.mark
        self._sealed_end = sealed_end
        self._limit = len(data) if sealed_end is None else min(sealed_end, len(data))
        self.end = HEADER_BYTES
        """Where the last durable record ends."""
        self.damages: list[Damage] = []
        self.torn_bytes = 0
        """How many bytes behind ``end`` look like records and never were durable."""
        self._durable_sync = 1
        """The sync that the record at ``_taken_end`` belongs to."""
        self._taken_end = HEADER_BYTES
        """Where the last accepted record ends: before ``end``, if damage lies between."""

    def records(self) -> Iterator[tuple[Scanned, bool]]:
        """Yield each record and whether its payload is intact; one that is not is damaged."""
        while True:
            found = self._parse(self.end)
            if found is not None and self._intact(found):
                yield self._take(found), True
                continue
            if self._sealed_end is not None and self.end >= self._sealed_end:
                return
            if not self._is_durable(self.end):
                return
            if found is not None and found.end <= self._limit:
                yield self._take(found), False
                continue
            resumed = self._next_record(self.end + 1)
            begin, self.end = self.end, self._limit if resumed is None else resumed.offset
            self.damages.append(Damage(begin, self.end))
            if resumed is None:
                return

    def release(self) -> None:
        """Release the data, so that it can be closed."""
        self._view.release()

    def _take(self, found: Scanned) -> Scanned:
        self.end = self._taken_end = found.end
        self._durable_sync = found.sync + (found.flags & LAST_OF_SYNC)
        return found

    def _parse(self, offset: int) -> Scanned | None:
        found = parse(self._view[: self._limit], offset, self._mark)
        return found if found is not None and self._can_stand(found) else None

    def _can_stand(self, found: Scanned) -> bool:
        """Return whether the sync of a record goes on from the last one where the record stands.

        Each sync has a record, and there is room for so many between the two: none at the end.
        """
        between = (found.offset - self._taken_end) // RECORD_BYTES
        return self._durable_sync <= found.sync <= self._durable_sync + between

    def _intact(self, found: Scanned) -> bool:
        begin = found.offset + RECORD_BYTES
        return found.end <= self._limit and found.is_intact(self._view[begin : found.end])

    def _is_durable(self, offset: int) -> bool:
        """Return whether what should be at ``offset`` is known to have been synced."""
        if self._sealed_end is not None:
            return True
        found = self._next_record(offset + 1)
        torn = found is not None
        while found is not None:
            if found.sync > self._durable_sync:
                return True
            found = self._next_record(found.end if self._intact(found) else found.offset + 1)
        self.torn_bytes = self._limit - offset if torn else 0
        return False

    def _next_record(self, offset: int) -> Scanned | None:
        while True:
            offset = self._data.find(self._mark.start, offset, self._limit)
            if offset < 0:
                return None
            found = self._parse(offset)
            if found is not None:
                return found
            offset += 1


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
    """Return the payload if replaying needs it; other payloads are read on demand."""
    begin = record.end - record.payload_size
    if record.record_type in _WITH_PAYLOAD or record.user_record_type in _WHOLE:
        return data[begin : record.end]
    if record.user_record_type == UserRecordType.ADD_MESSAGE:
        return data[begin : begin + moment_bytes(data[begin : begin + RECORD_OVERHEAD])]
    return b""


# --- which records count, by how their transactions ended


class Transactions:
    """Passes records on once their transaction is committed: the fold over a journal's records.

    Records outside transactions pass at once. What is neither committed nor prepared when the
    journal ends was never durable as a whole, and is dropped.
    """

    def __init__(self, watched: Iterable[int] = ()) -> None:
        self._open: dict[int, list[tuple[int, Scanned, bytes]]] = {}
        self._prepared: set[int] = set()
        self._watched = frozenset(watched)
        self.committed: set[int] = set()
        """Those of the ``watched`` transactions whose commit was met."""
        self.highest_tx_id = 0

    @property
    def in_doubt(self) -> set[int]:
        """Transactions that were prepared and neither committed nor rolled back."""
        return set(self._prepared)

    def take(
        self, file_id: int, record: Scanned, payload: bytes
    ) -> list[tuple[int, Scanned, bytes]]:
        """Return what becomes effective: file id, record and payload, in the order written.

        Raises ValueError for a commit that lacks records, and for a record of no known type.
        """
        tx_id = record.tx_id
        self.highest_tx_id = max(self.highest_tx_id, tx_id)
        match record.record_type:
            case RecordType.ADD_RECORD | RecordType.UPDATE_RECORD | RecordType.DELETE_RECORD:
                return [(file_id, record, payload)]
            case (
                RecordType.ADD_RECORD_TX | RecordType.UPDATE_RECORD_TX | RecordType.DELETE_RECORD_TX
            ):
                self._open.setdefault(tx_id, []).append((file_id, record, payload))
                return []
            case RecordType.PREPARE_RECORD:
                self._prepared.add(tx_id)
                return []
            case RecordType.COMMIT_RECORD:
                return self.commit(tx_id, decode_count(payload))
            case RecordType.ROLLBACK_RECORD:
                self.roll_back(tx_id)
                return []
        raise ValueError(f"its type {record.record_type} is not one this node knows")

    def commit(self, tx_id: int, count: int | None = None) -> list[tuple[int, Scanned, bytes]]:
        """Commit a transaction of ``count`` records, or of any number.

        If its records are gone, it was compacted since.
        """
        if tx_id in self._watched:
            self.committed.add(tx_id)
        self._prepared.discard(tx_id)
        records = self._open.pop(tx_id, [])
        if records and count not in (None, len(records)):
            raise ValueError(f"transaction {tx_id} has {len(records)} records instead of {count}")
        return records

    def roll_back(self, tx_id: int) -> None:
        """Forget a transaction."""
        self._prepared.discard(tx_id)
        self._open.pop(tx_id, None)


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


# --- both instances


@dataclass
class Contents:
    """What both instances hold."""

    messages: MessageIndex
    bindings: BindingIndex
    message_files: Listing
    binding_files: Listing
    decided: dict[int, bool]
    """Transactions that were in doubt in the bindings, and whether they are committed."""
    highest_id: int
    highest_tx_id: int

    def file_of(self, position: Position) -> FoundFile:
        """Return the file of a binding."""
        (found,) = [one for one in self.binding_files.counting if one.file_id == position.file_id]
        return found

    @property
    def listings(self) -> list[tuple[Kind, Listing]]:
        """The files of both, each with its kind."""
        return [(Kind.MESSAGES, self.message_files), (Kind.BINDINGS, self.binding_files)]


def directory_of(s: FileStoreSettings, kind: Kind) -> Path:
    """Return where the files of an instance are."""
    return s.journal_directory if kind is Kind.MESSAGES else s.bindings_directory


def published(s: FileStoreSettings, complete: int) -> dict[Kind, list[Control]]:
    """Return the compactions that must be carried out; raises JournalDamaged."""
    return {kind: read_controls(directory_of(s, kind), kind, complete) for kind in Kind}


def read_contents(
    s: FileStoreSettings, complete: int, compactions: Mapping[Kind, Sequence[Control]]
) -> Contents:
    """Read both instances, as if ``compactions`` were carried out; changes nothing.

    Raises JournalIOError, UnknownFormat.

    The listings note what is damaged; transactions in doubt are resolved in the index.
    """
    listings = {
        kind: list_files(directory_of(s, kind), kind, complete, compactions.get(kind, ()))
        if directory_of(s, kind).is_dir()
        else Listing()
        for kind in Kind
    }
    bindings, messages = BindingIndex(), MessageIndex()
    of_bindings = Replay(bindings, Transactions())
    for found in listings[Kind.BINDINGS].counting:
        of_bindings.replay(found)
    in_doubt = of_bindings.transactions.in_doubt
    of_messages = Replay(messages, Transactions(in_doubt))
    for found in listings[Kind.MESSAGES].counting:
        of_messages.replay(found)
    messages.settle()
    committed = of_messages.transactions.committed
    for tx_id in sorted(committed):
        of_bindings.apply(of_bindings.transactions.commit(tx_id))
    return Contents(
        messages,
        bindings,
        listings[Kind.MESSAGES],
        listings[Kind.BINDINGS],
        {tx_id: tx_id in committed for tx_id in in_doubt},
        max(of_bindings.highest_id, of_messages.highest_id),
        max(of_bindings.transactions.highest_tx_id, of_messages.transactions.highest_tx_id),
    )


def read_payload(found: FoundFile, position: Position) -> bytes:
    """Read the payload of one record; raises CorruptRecord, JournalIOError."""
    path = found.path
    with io_errors(f"read {path}"), path.open("rb") as file:
        data = os.pread(file.fileno(), RECORD_BYTES + position.size, position.offset)
    record = parse(data, position.offset, found.header.mark, position.offset)
    if record is None or record.seq != position.seq:
        raise CorruptRecord(position.seq, f"it is not at byte {position.offset} of {path.name}")
    payload = record.payload(data, position.offset)
    if not record.is_intact(payload):
        raise CorruptRecord(position.seq, f"its checksum in {path.name} does not match")
    return payload


def refuse_files_without_fence(s: FileStoreSettings) -> None:
    """Raise JournalDamaged if there are files of a journal although its fence was never written.

    Raises ForeignJournal if they are Artemis'.
    """
    refuse_files_of_artemis(s)
    for kind in Kind:
        directory = directory_of(s, kind)
        if any(directory.glob(f"{kind.prefix}-*.{kind.extension}")):
            raise JournalDamaged(
                f"{directory} holds files of a journal, and {s.journal_directory} lacks"
                " journal.fence, which says which of them count; restore it with the files it"
                " belongs to, or have `orthia data recover` read them all"
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


# --- making what was read durable
#
# A writer that died or met an error may have left bytes that the system has in memory and the disk
# has not: those of its last write, or a seal. They are read as if they were durable, and are gone
# after a power failure. To sync them is not enough: a sync that failed may have left them marked as
# written. So they are written once more, unchanged, and synced then.
#
# The writer before us may still run, and notice only at its next look at the fence that it lost its
# place. It may be reusing, under another name, a sealed file that it had closed. So of those we
# write only one byte, which is the same in every file.


def take_over(s: FileStoreSettings, complete: int, *, salvage: bool) -> Contents:
    """Carry out what was published, read everything, make it durable and seal it."""
    # Read once, after the fence is written: what a fenced writer publishes later is void. If only
    # some of the following steps saw it, files that count would be removed.
    compactions = published(s, complete)
    for kind, controls in compactions.items():
        with io_errors(f"finish a compaction in {directory_of(s, kind)}"):
            finish_compactions(directory_of(s, kind), kind, controls)
    contents = read_contents(s, complete, {})
    for kind, listing in contents.listings:
        if not salvage:
            refuse_damage(directory_of(s, kind), listing)
        for found in listing.counting:
            if found.torn_bytes:
                LOGGER.warning(
                    "%s ends at byte %d with a write that was never durable: dropping it; no client"
                    " was told that it is stored",
                    found.path.name,
                    found.end,
                )
        seal_files(listing, complete)
    for kind, listing in contents.listings:
        remove_unborn(directory_of(s, kind), listing, complete)
    return contents


ALWAYS_ZERO_AT: Final = HEADER_BYTES - 1
"""A byte in the sector of the seal that is no part of it: writing it rewrites the sector."""
_COPY_BYTES: Final = 1024 * 1024


def seal_files(listing: Listing, complete: int) -> None:
    """Make what was read durable, and seal what is not sealed where it ends.

    Whoever opened the journal as the ``complete`` generation did so with all files of those before
    it, before it said that it is complete; so their seals are durable. Raises JournalIOError.
    """
    order = listing.highest_order
    for found in listing.counting:
        with io_errors(f"seal {found.path}"):
            if found.seal is None:
                order += 1
                found.seal = Seal(found.end, order)
                _seal_at_end(found.path, found.seal)
            elif found.header.generation >= complete:
                _sync_seal(found.path)


def _seal_at_end(path: Path, seal: Seal) -> None:
    with path.open("r+b", buffering=0) as file:
        _write_again(file.fileno(), seal.end)
        # Before the seal, which states that all before it is durable.
        os.fsync(file.fileno())
        disk.seal(file.fileno(), encode_seal(seal))


def _sync_seal(path: Path) -> None:
    # A file that has vanished was sealed durably by its writer, and nothing in it is needed.
    with contextlib.suppress(FileNotFoundError), path.open("r+b", buffering=0) as file:
        disk.write_all(file.fileno(), b"\0", ALWAYS_ZERO_AT)
        os.fsync(file.fileno())


def _write_again(descriptor: int, end: int) -> None:
    """Write the bytes before ``end`` as they are, so that the next sync is about them."""
    for at in range(0, end, _COPY_BYTES):
        disk.write_all(descriptor, os.pread(descriptor, min(_COPY_BYTES, end - at), at), at)
