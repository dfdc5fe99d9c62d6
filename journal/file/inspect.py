"""What the files hold, for people and tools: read only, even while a node has the journal open.

Exact if no node writes; otherwise each file is as it was when it was read.
"""

import contextlib
from collections.abc import Iterator

from orthia.config.store_settings import FileStoreSettings
from orthia.journal.errors import JournalDamaged, JournalError, JournalIOError
from orthia.journal.file.fence import Fence, FenceState
from orthia.journal.file.recovery import (
    Contents,
    published,
    read_contents,
    read_payload,
    refuse_damage,
    refuse_files_without_fence,
)
from orthia.journal.model.changes import LargeReference
from orthia.journal.model.codec import PreparedTransaction, decode_prepared_transaction
from orthia.journal.model.records import UserRecordType
from orthia.journal.model.unit import large_references

_ATTEMPTS = 10


def read_fence(s: FileStoreSettings) -> FenceState:
    """Return what the fence says; raises JournalDamaged, JournalIOError."""
    try:
        with contextlib.closing(Fence(s.journal_directory, create=False)) as fence:
            state = fence.read()
    except FileNotFoundError:
        refuse_files_without_fence(s)
        raise JournalDamaged(f"there is no journal in {s.journal_directory}") from None
    if state.version == 0:
        refuse_files_without_fence(s)
    return state


def list_transactions(s: FileStoreSettings) -> list[PreparedTransaction]:
    """Return the transactions in doubt, the oldest first; raises JournalError.

    Damage of the bindings, where they are, is refused: it may be one of them.
    """
    contents = inspect(s)
    refuse_damage(s.bindings_directory, contents.binding_files)
    return [
        decode_prepared_transaction(
            read_payload(contents.file_of(position), position), position.seq
        )
        for position, added in sorted(contents.bindings.records.values())
        if added.user_record_type == UserRecordType.PREPARED_TRANSACTION
    ]


def list_large_references(contents: Contents) -> Iterator[LargeReference]:
    """Yield what needs a large body, as far as it can be read."""
    yield from contents.messages.large_references()
    for position, added in contents.bindings.records.values():
        if added.user_record_type == UserRecordType.PREPARED_TRANSACTION:
            with contextlib.suppress(JournalError):
                payload = read_payload(contents.file_of(position), position)
                yield from large_references(decode_prepared_transaction(payload, position.seq))


def inspect(s: FileStoreSettings) -> Contents:
    """Return what a node that opened the journal now would find; raises JournalError."""
    for _ in range(_ATTEMPTS):
        try:
            complete = read_fence(s).complete
            return read_contents(s, complete, published(s, complete))
        except JournalIOError as error:
            # A running node has removed a file that was no longer needed since it was listed.
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            vanished = error
    raise vanished
