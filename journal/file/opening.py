"""Opening the journal: fence, read, seal, begin files of our own. The steps are in ``fence``."""

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from orthia.config.errors import OrthiaError
from orthia.config.store_settings import FileStoreSettings, JournalType
from orthia.journal.errors import CorruptRecord, Fenced, JournalDamaged, JournalInUse
from orthia.journal.file import disk, recovery
from orthia.journal.file.artemis import refuse_files_of_artemis
from orthia.journal.file.bodies import LargeReferences
from orthia.journal.file.control import Control, finish_compactions, read_controls
from orthia.journal.file.disk import io_errors
from orthia.journal.file.encoding import added_at, counter_record, end_record
from orthia.journal.file.fence import DirectoryLock, Fence
from orthia.journal.file.format import RECORD_BYTES, Kind, parse
from orthia.journal.file.index import BindingIndex, Position
from orthia.journal.file.instance import JournalFiles
from orthia.journal.file.message_index import MessageIndex
from orthia.journal.file.recovery import FoundFile, Listing, Replay
from orthia.journal.file.sealing import seal_files
from orthia.journal.file.transactions import Transactions
from orthia.journal.file.writing import OpenFile, opener, probe
from orthia.journal.model.changes import LargeReference
from orthia.journal.model.codec import PreparedTransaction, decode_binding
from orthia.journal.model.records import ID_COUNTER_SEQ, RecordType
from orthia.journal.model.unit import Binding, large_references

LOGGER = logging.getLogger("orthia.journal")
PROBE_FILE = "journal.probe"


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
    """Return the compactions that are to be carried out; raises JournalDamaged."""
    return {kind: read_controls(directory_of(s, kind), kind, complete) for kind in Kind}


def read_contents(
    s: FileStoreSettings, complete: int, compactions: Mapping[Kind, Sequence[Control]]
) -> Contents:
    """Read both instances, as if ``compactions`` were carried out; changes nothing.

    Raises JournalIOError, UnknownFormat.

    What is damaged is noted in the listings, and what is in doubt is decided in the index.
    """
    listings = {
        kind: recovery.list_files(directory_of(s, kind), kind, complete, compactions.get(kind, ()))
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


@dataclass
class OpenedFiles:
    """The journal of one generation: open, fenced, ready to be written."""

    messages: JournalFiles
    bindings: JournalFiles
    contents: Contents
    fence: Fence
    directory_lock: DirectoryLock
    token: int
    bound: list[Binding]
    horizon: int
    """The highest id that may ever have been given out."""
    large_references: LargeReferences

    @property
    def highest_tx_id(self) -> int:
        """The highest transaction id there is."""
        return self.contents.highest_tx_id

    @property
    def instances(self) -> tuple[JournalFiles, JournalFiles]:
        """Both instances."""
        return self.messages, self.bindings

    def close(self, *, seal: bool) -> None:
        """Close everything; ``seal`` if all that the files hold is known. Never raises."""
        for files in self.instances:
            # Sealing is a courtesy to whoever opens the journal next: without it the file is read,
            # and if it is not durable it is made so.
            with contextlib.suppress(OSError, OrthiaError):
                files.close(seal=seal)
        self.fence.close()
        self.directory_lock.close()


def open_files(
    s: FileStoreSettings,
    *,
    token: int | None,
    id_block: int,
    exclusive: bool = False,
    salvage: bool = False,
) -> OpenedFiles:
    """Open the journal under ``token``, or under the one it has if that is None.

    ``exclusive`` refuses a journal that a node has open. ``salvage`` goes on past damage. Raises
    Fenced, JournalInUse, JournalDamaged, UnknownFormat, CorruptRecord, JournalIOError.
    """
    disk.make_directory(
        s.journal_directory, create=s.create_journal_dir, element="create-journal-dir"
    )
    disk.make_directory(
        s.bindings_directory, create=s.create_bindings_dir, element="create-bindings-dir"
    )
    refuse_files_of_artemis(s)
    with contextlib.ExitStack() as undo:
        directory_lock = DirectoryLock(s.journal_directory)
        undo.callback(directory_lock.close)
        if not directory_lock.try_hold():
            if exclusive:
                raise JournalInUse(
                    f"a node has the journal in {s.journal_directory} open; stop it first"
                )
            LOGGER.warning(
                "another process still has the journal in %s open; it is fenced, and can store"
                " nothing any more",
                s.journal_directory,
            )
        fence = Fence(s.journal_directory, create=True)
        undo.callback(fence.close)
        with _opening(fence):
            opened = _open_fenced(
                s, fence, directory_lock, token=token, id_block=id_block, salvage=salvage
            )
        undo.pop_all()
    return opened


@contextmanager
def _opening(fence: Fence) -> Iterator[None]:
    fence.lock()
    try:
        yield
    finally:
        fence.unlock()


def _open_fenced(
    s: FileStoreSettings,
    fence: Fence,
    directory_lock: DirectoryLock,
    *,
    token: int | None,
    id_block: int,
    salvage: bool,
) -> OpenedFiles:
    before = fence.read()
    if token is None:
        token = before.token
    if before.token > token:
        raise Fenced(token)
    if before.version == 0:
        refuse_files_without_fence(s)
    state = fence.write(replace(before, token=token, generation=before.generation + 1))
    fence.adopt(state)
    contents = _take_over(s, state.complete, salvage=salvage)
    bound = _bindings(contents, salvage=salvage)
    made: list[JournalFiles] = []
    is_complete = False
    try:
        for kind, listing in contents.listings:
            index = contents.messages if kind is Kind.MESSAGES else contents.bindings
            open_file = _opener(s, kind)
            files = JournalFiles(
                directory_of(s, kind),
                kind,
                index,
                s,
                fence,
                open_file,
                generation=state.generation,
                token=token,
            )
            files.start(listing)
            made.append(files)
        messages, bindings = made
        horizon = contents.highest_id
        _write_first_records(bindings, contents, horizon + id_block, token)
        fence.check()
        is_complete = True  # or perhaps, if the next line fails
        fence.adopt(fence.write(replace(state, complete=state.generation)))
        for kind, listing in contents.listings:
            (messages if kind is Kind.MESSAGES else bindings).discard(listing)
    except BaseException as error:
        for files in made:
            with contextlib.suppress(OSError, OrthiaError):
                files.close(seal=False)
        if isinstance(error, OrthiaError) and not is_complete:
            for kind in Kind:
                with contextlib.suppress(OSError, OrthiaError):
                    listing = recovery.list_files(directory_of(s, kind), kind, state.complete)
                    recovery.remove_unborn(directory_of(s, kind), listing, state.complete)
        raise
    return OpenedFiles(
        messages,
        bindings,
        contents,
        fence,
        directory_lock,
        token,
        bound,
        horizon,
        LargeReferences(_large_references(contents, bound)),
    )


def _large_references(contents: Contents, bound: list[Binding]) -> Iterator[LargeReference]:
    """Yield what needs a large body: messages in queues, and transactions in doubt."""
    yield from contents.messages.large_references()
    for binding in bound:
        if isinstance(binding, PreparedTransaction):
            yield from large_references(binding)


def refuse_files_without_fence(s: FileStoreSettings) -> None:
    """Raise JournalDamaged if there are files of a journal; for a fence that was never written.

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


def _take_over(s: FileStoreSettings, complete: int, *, salvage: bool) -> Contents:
    """Finish what was published, read everything, make it durable and seal it where it ends."""
    # Once, after the fence is written: what a writer that lost its place publishes later is void.
    # Seen by some of what follows and not by the rest it would have files removed that count.
    compactions = published(s, complete)
    for kind, controls in compactions.items():
        with io_errors(f"finish a compaction in {directory_of(s, kind)}"):
            finish_compactions(directory_of(s, kind), kind, controls)
    contents = read_contents(s, complete, {})
    for kind, listing in contents.listings:
        if not salvage:
            recovery.refuse_damage(directory_of(s, kind), listing)
        for found in listing.counting:
            if found.torn_bytes:
                LOGGER.warning(
                    "%s ends at byte %d with a write that was never durable: nobody was told that"
                    " it is stored, and it is dropped",
                    found.path.name,
                    found.end,
                )
        seal_files(listing, complete)
    for kind, listing in contents.listings:
        recovery.remove_unborn(directory_of(s, kind), listing, complete)
    return contents


def _bindings(contents: Contents, *, salvage: bool) -> list[Binding]:
    """Return the bindings, decoded; raises CorruptRecord.

    With ``salvage`` those that cannot be read are dropped from the index.
    """
    bound: list[Binding] = []
    for position, added in sorted(contents.bindings.records.values()):
        if position.seq == ID_COUNTER_SEQ:
            continue
        try:
            payload = read_payload(contents.file_of(position), position)
            bound.append(decode_binding(added.user_record_type, payload, position.seq))
        except CorruptRecord as error:
            if not salvage:
                raise
            LOGGER.warning("%s", error)
            contents.bindings.delete(position.file_id, [position.seq])
    return bound


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


def _write_first_records(
    bindings: JournalFiles, contents: Contents, id_limit: int, token: int
) -> None:
    """Resolve what was in doubt, reserve ids, and so put the first records into our own file."""
    records = [
        end_record(
            RecordType.COMMIT_RECORD if committed else RecordType.ROLLBACK_RECORD,
            tx_id,
            None,
            token,
        )
        for tx_id, committed in sorted(contents.decided.items())
    ]
    counter = counter_record(id_limit, token)
    offsets = bindings.write([*records, counter], sync=True)
    with bindings.lock:
        bindings.index.add(bindings.file_id, added_at(counter, offsets[-1]))


def _opener(s: FileStoreSettings, kind: Kind) -> Callable[[Path], OpenFile]:
    """Return how the files of an instance are written; bindings are few, and always NIO."""
    wanted = s.journal_type if kind is Kind.MESSAGES else JournalType.NIO
    effective, open_file = opener(
        wanted,
        datasync=s.journal_datasync,
        buffer_size=s.journal_buffer_size,
        max_io=s.journal_max_io,
    )
    if effective is JournalType.ASYNCIO and not probe(open_file, s.journal_directory / PROBE_FILE):
        LOGGER.warning(
            "the file system of %s has no asynchronous IO; the journal uses NIO, which is as"
            " durable",
            s.journal_directory,
        )
        _, open_file = opener(
            JournalType.NIO,
            datasync=s.journal_datasync,
            buffer_size=s.journal_buffer_size,
            max_io=s.journal_max_io,
        )
    return open_file
