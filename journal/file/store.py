"""How a batch becomes records: the writer's side of the file journal.

A change that stands alone is one record, whole or torn. A unit of several is a transaction: its
records and a commit, in one file. A unit that changes bindings and messages, which are in two
instances, is prepared in the bindings, committed in the messages, and then committed in the
bindings; a node that opens the journal in between learns from the messages how it ended.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, takewhile
from typing import Final, NamedTuple

from typing_extensions import override

from orthia.database import NoRoom
from orthia.journal.engine.abc import BatchStore
from orthia.journal.engine.batch import Batch, JournalTable, Marker
from orthia.journal.file.disk import NoRoomOnDisk
from orthia.journal.file.encoding import (
    added_at,
    counter_record,
    delete_record,
    end_record,
    row_record,
    transaction,
)
from orthia.journal.file.format import RECORD_BYTES, Record, decode_seqs
from orthia.journal.file.instance import JournalFiles
from orthia.journal.file.opening import OpenedFiles
from orthia.journal.file.windows import FileWindows
from orthia.journal.model.records import RecordType, UserRecordType
from orthia.journal.model.unit import Appended, AppendedMessage, Unit

MAX_RECORD_BYTES: Final = 512 * 1024 * 1024
"""The largest message; one that does not fit into ``journal-file-size`` has a file of its own."""


class _Change(NamedTuple):
    """Records that go into one instance together."""

    records: list[Record]
    effective: bool
    """Whether they count once they are durable; otherwise when their transaction is committed."""


class FileStore(BatchStore):
    """Writes batches to the files of one opened journal."""

    max_record_bytes = MAX_RECORD_BYTES

    def __init__(
        self,
        opened: OpenedFiles,
        *,
        sync_transactional: bool,
        sync_non_transactional: bool,
        rolled: Callable[[], None],
        closed: Callable[[], None],
    ) -> None:
        """Write through ``opened``.

        ``rolled`` is called when files may be wanted or free, ``closed`` before they are closed.
        """
        self._opened = opened
        self._token = opened.token
        self._tx_id = opened.highest_tx_id
        self._sync_transactional = sync_transactional
        self._sync_non_transactional = sync_non_transactional
        self._rolled = rolled
        self._closed = closed
        self._failed = False

    @override
    def connect(self) -> None:
        """Do nothing: the files are open already."""

    @override
    def store(self, batch: Batch) -> None:
        """Raises JournalIOError too, after which nothing is written again.

        Unless there was no room: then nothing of the batch was written.
        """
        self._reserve(batch)
        try:
            self._store(batch)
        except BaseException:
            self._failed = True
            raise
        if batch.touches_large_bodies:
            self._opened.large_references.change(batch.linked, batch.unlinked)

    @override
    def has_room(self) -> bool:
        """Return the last state: a thread of its own keeps the files."""
        return not self._is_out_of_room

    @property
    def _is_out_of_room(self) -> bool:
        return any(files.is_out_of_room for files in self._opened.instances)

    def _reserve(self, batch: Batch) -> None:
        """Raise NoRoom if the files have no room for a batch, and none can be made."""
        grows = bool(batch.messages or batch.rows or batch.binding_rows or batch.counted)
        if grows and self._is_out_of_room:
            raise NoRoom(f"no file can be added in {self._opened.messages.directory}")
        try:
            for files, size in self._needed(batch):
                if size > files.room:
                    files.reserve(self._sizes(batch))
        except NoRoomOnDisk as error:
            self._rolled()  # perhaps a file is no longer needed
            raise NoRoom(str(error)) from error

    def _needed(self, batch: Batch) -> Iterator[tuple[JournalFiles, int]]:
        """Yield each instance with more bytes than a batch takes of it."""
        records = len(batch.messages) + len(batch.rows) + len(batch.binding_rows)
        records += 2 * len(batch.counted)
        records += 4 * len(batch.items) + 1
        size = (
            batch.payload_bytes + records * RECORD_BYTES + 8 * (batch.size + len(batch.forgotten))
        )
        yield self._opened.messages, size
        if batch.touches_bindings:
            yield self._opened.bindings, size

    def _sizes(self, batch: Batch) -> list[int]:
        """Return more bytes than each change of a batch takes, which is whole in one file."""
        sizes = [_size_of(item) for item in batch.items]
        gone = (len(batch.deletes), len(batch.forgotten))
        return [*sizes, *(RECORD_BYTES + 8 * count for count in gone)]

    @override
    def is_stored(self, marker: Marker) -> bool:
        is_message = marker.table is JournalTable.MESSAGES
        files = self._opened.messages if is_message else self._opened.bindings
        with files.lock:
            return files.index.find(marker.seq) is not None

    @override
    def duplicate_ids(self, cache_id: int) -> Iterable[tuple[int, bytes]]:
        opened = self._opened
        return FileWindows(opened.messages, opened.contents.messages).duplicate_ids(cache_id)

    @override
    def confirm(self) -> None:
        """Do nothing else: what is in the files was synced, or the journal has failed."""
        self._opened.fence.check()

    @override
    def close(self) -> None:
        """Seal the files if all that they hold is known."""
        self._closed()
        self._opened.close(seal=not self._failed)

    def _store(self, batch: Batch) -> None:
        messages, bindings = self._opened.messages, self._opened.bindings
        self._opened.fence.check()  # an empty batch is refused like any other
        if not batch.touches_bindings:
            sync = self._sync(batch.items)
            if batch.rows or batch.guarded or batch.counted:
                self._write(messages, map(self._message_change, batch.items), sync=sync)
                self._forget(batch.forgotten, sync=sync)
            else:
                self._write_simple(batch, sync=sync)
            return
        # The few batches that bind: bindings first, so that no message is of an unknown queue; and
        # before them the ids of a cache that ends, which nothing finds without its binding.
        own = {row.seq for row in batch.rows} if batch.forgotten else set()
        self._forget([seq for seq in batch.forgotten if seq not in own], sync=True)
        split = [item for item in batch.items if _is_split(item)]
        prepared: dict[int, int] = {id(item): self._next_tx() for item in split}
        self._count_unresolved(len(split))
        try:
            changes = [
                self._binding_change(item, prepared.get(id(item)))
                for item in batch.items
                if isinstance(item, Unit) and _binds(item)
            ]
            written = self._write(bindings, changes, sync=True)
            self._write(
                messages,
                (
                    self._message_change(item, prepared.get(id(item)))
                    for item in batch.items
                    if isinstance(item, AppendedMessage)
                    or item.rows
                    or item.deletes
                    or item.counted
                ),
                sync=self._sync(batch.items) or bool(split),
            )
            if split:
                self._write(bindings, map(self._commit, prepared.values()), sync=True)
                self._take_effect(bindings, written)
            self._forget([seq for seq in batch.forgotten if seq in own], sync=True)
        finally:
            self._count_unresolved(-len(split))

    def _forget(self, ids: Sequence[int], *, sync: bool) -> None:
        """Delete duplicate ids, whose rows are there."""
        if ids:
            forget = delete_record(ids, self._token)
            self._write(self._opened.messages, [_Change([forget], effective=True)], sync=sync)

    def _write_simple(self, batch: Batch, *, sync: bool) -> None:
        """Write messages of one queue each, then all deletes as one: what most batches are.

        That one record is whole or torn, so that the deletes of a unit stay together.
        """
        files = self._opened.messages
        left = batch.messages
        left_sizes = [len(message[2]) for message in left]
        while left:
            count = self._fitting(left_sizes)
            if count:
                now, left = left[:count], left[count:]
                sizes, left_sizes = left_sizes[:count], left_sizes[count:]
                offsets = files.write_messages(now, sizes, self._token, sync=sync)
                with files.lock:
                    self._opened.contents.messages.add_messages(files.file_id, now, sizes, offsets)
            if left:
                files.roll(RECORD_BYTES + left_sizes[0])
                self._rolled()
        if batch.deletes:
            change = _Change([delete_record(batch.deletes, self._token)], effective=True)
            self._write(files, [change], sync=sync)
        elif not batch.messages:
            self._opened.fence.check()  # an empty batch is refused like any other

    def _fitting(self, sizes: Sequence[int]) -> int:
        """Return how many messages, of payloads of ``sizes``, fit into the file that is written."""
        room = self._opened.messages.room
        if len(sizes) * RECORD_BYTES + sum(sizes) <= room:
            return len(sizes)
        ends = accumulate(RECORD_BYTES + size for size in sizes)
        return sum(1 for _ in takewhile(lambda end: end <= room, ends))

    def _count_unresolved(self, count: int) -> None:
        for files in (self._opened.messages, self._opened.bindings):
            with files.lock:
                files.unresolved += count

    def _sync(self, items: Sequence[Appended]) -> bool:
        if self._sync_transactional and self._sync_non_transactional:
            return True
        transactional = any(isinstance(i, Unit) and i.cost_rows > 1 for i in items)
        return self._sync_transactional if transactional else self._sync_non_transactional

    def _next_tx(self) -> int:
        self._tx_id += 1
        return self._tx_id

    # --- units as records

    def _message_change(self, item: Appended, tx_id: int | None = None) -> _Change:
        token = self._token
        if isinstance(item, AppendedMessage):
            seq, queue_id, payload, *_ = item
            kind = UserRecordType.ADD_MESSAGE
            record = Record(RecordType.ADD_RECORD, kind, seq, seq, 0, queue_id, token, payload)
            return _Change([record], effective=True)
        changes = item.stored
        records = [row_record(row, token) for row in (*changes.rows, *changes.counted)]
        if changes.deletes:
            records.append(delete_record(changes.deletes, token))
        if tx_id is not None or len(records) > 1:
            records = transaction(records, tx_id or self._next_tx(), token)
        return _Change(records, effective=True)

    def _binding_change(self, item: Unit, tx_id: int | None) -> _Change:
        token = self._token
        records = [row_record(row, token) for row in item.binding_rows]
        if item.unbound:
            records.append(delete_record(item.unbound, token))
        if item.id_limit:
            records.append(counter_record(item.id_limit, token))
        if tx_id is not None:
            prepared = transaction(records, tx_id, token, RecordType.PREPARE_RECORD)
            return _Change(prepared, effective=False)
        if len(records) > 1:
            records = transaction(records, self._next_tx(), token)
        return _Change(records, effective=True)

    def _commit(self, tx_id: int) -> _Change:
        # Without a count of its records: they may be in a file that was compacted since.
        commit = end_record(RecordType.COMMIT_RECORD, tx_id, None, self._token)
        return _Change([commit], effective=False)

    # --- records into files

    def _write(
        self, files: JournalFiles, changes: Iterable[_Change], *, sync: bool
    ) -> list[tuple[int, Record, int]]:
        """Write changes, each whole in one file, and add them to the index.

        Returns what does not count yet: file, record and offset.
        """
        pending: list[Record] = []
        counting: list[bool] = []
        size = 0
        later: list[tuple[int, Record, int]] = []

        def flush() -> None:
            nonlocal size
            if pending:
                offsets = files.write(pending, sync=sync)
                placed = list(zip([files.file_id] * len(pending), pending, offsets, strict=True))
                now = [one for one, counts in zip(placed, counting, strict=True) if counts]
                later.extend(
                    one for one, counts in zip(placed, counting, strict=True) if not counts
                )
                self._take_effect(files, now)
                pending.clear()
                counting.clear()
                size = 0

        for change in changes:
            needed = sum(RECORD_BYTES + len(record.payload) for record in change.records)
            if size + needed > files.room:
                flush()
                if needed > files.room:
                    files.roll(needed)
                    self._rolled()
            pending += change.records
            counting += [change.effective] * len(change.records)
            size += needed
        flush()
        return later

    def _take_effect(self, files: JournalFiles, placed: list[tuple[int, Record, int]]) -> None:
        with files.lock:
            index = files.index
            for file_id, record, offset in placed:
                match record.record_type:
                    case RecordType.DELETE_RECORD | RecordType.DELETE_RECORD_TX:
                        pass
                    case RecordType.COMMIT_RECORD | RecordType.PREPARE_RECORD:
                        pass
                    case _:
                        index.add(file_id, added_at(record, offset))
            # Deletes last: a unit may delete what an earlier unit of its batch added.
            for file_id, record, _ in placed:
                if record.record_type in (RecordType.DELETE_RECORD, RecordType.DELETE_RECORD_TX):
                    index.delete(file_id, decode_seqs(record.payload))


def _size_of(item: Appended) -> int:
    if isinstance(item, AppendedMessage):
        return RECORD_BYTES + len(item.payload)
    records = len(item.rows) + len(item.binding_rows) + len(item.counted) + 4
    return item.payload_bytes + records * (RECORD_BYTES + 64) + 8 * len(item.deletes)


def _binds(item: Unit) -> bool:
    return bool(item.binding_rows or item.unbound or item.id_limit)


def _is_split(item: Appended) -> bool:
    return (
        isinstance(item, Unit) and _binds(item) and bool(item.rows or item.deletes or item.counted)
    )
