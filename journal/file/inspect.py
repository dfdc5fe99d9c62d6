"""What the files hold, for people and tools: read only, whoever has the journal open.

Exact if no node writes; beside one that does, each file is as it was when it was read.
"""

import contextlib

from config.settings import FileStoreSettings
from journal.errors import JournalDamaged
from journal.file.fence import Fence, FenceState
from journal.file.opening import Contents, read_contents


def read_fence(s: FileStoreSettings) -> FenceState:
    """Return what the fence says; raises JournalDamaged, JournalIOError."""
    try:
        with contextlib.closing(Fence(s.journal_directory, create=False)) as fence:
            return fence.read()
    except FileNotFoundError:
        raise JournalDamaged(f"there is no journal in {s.journal_directory}") from None


def inspect(s: FileStoreSettings) -> Contents:
    """Return what a node that opened the journal now would find; raises JournalError."""
    return read_contents(s, read_fence(s).complete)
