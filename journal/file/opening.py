"""Opening the journal: fence, recover, begin files of our own. ``fence`` tells the steps."""

import contextlib
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from orthia.config.errors import OrthiaError
from orthia.config.store_settings import FileStoreSettings, JournalType
from orthia.journal.errors import CorruptRecord, Fenced, JournalInUse
from orthia.journal.file import disk
from orthia.journal.file.artemis import refuse_files_of_artemis
from orthia.journal.file.bodies import LargeReferences
from orthia.journal.file.encoding import added_at, counter_record, end_record
from orthia.journal.file.fence import DirectoryLock, Fence
from orthia.journal.file.format import Kind
from orthia.journal.file.instance import JournalFiles
from orthia.journal.file.recovery import (
    Contents,
    directory_of,
    list_files,
    read_payload,
    refuse_files_without_fence,
    remove_unborn,
    take_over,
)
from orthia.journal.file.writing import OpenFile, opener, probe
from orthia.journal.model.changes import LargeReference
from orthia.journal.model.codec import PreparedTransaction, decode_binding
from orthia.journal.model.records import ID_COUNTER_SEQ, RecordType
from orthia.journal.model.unit import Binding, large_references

LOGGER = logging.getLogger("orthia.journal")
PROBE_FILE = "journal.probe"


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
            # Sealing only saves the next node work: without it that reads the file to its end
            # and makes it durable.
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
                "another process still has the journal in %s open; it is fenced and can store"
                " nothing",
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
    contents = take_over(s, state.complete, salvage=salvage)
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
        is_complete = True  # or possibly, if the next line fails
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
                    listing = list_files(directory_of(s, kind), kind, state.complete)
                    remove_unborn(directory_of(s, kind), listing, state.complete)
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
    """Yield what refers to large bodies: messages in queues, and transactions in doubt."""
    yield from contents.messages.large_references()
    for binding in bound:
        if isinstance(binding, PreparedTransaction):
            yield from large_references(binding)


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


def _write_first_records(
    bindings: JournalFiles, contents: Contents, id_limit: int, token: int
) -> None:
    """Write the first records of our own file: resolve transactions in doubt, reserve ids."""
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
            "the file system of %s has no asynchronous IO: using NIO, which is as durable",
            s.journal_directory,
        )
        _, open_file = opener(
            JournalType.NIO,
            datasync=s.journal_datasync,
            buffer_size=s.journal_buffer_size,
            max_io=s.journal_max_io,
        )
    return open_file
