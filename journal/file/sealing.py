"""What whoever opens the journal does before it relies on what it has read: make that durable.

A writer that died or met an error may have left bytes that the system has in memory and the disk
has not: those of its last write, or a seal. They are read as if they were durable, and are gone
after a power failure. To sync them is not enough, as a sync that failed may have left them marked
as written: they are written once more, the same, and synced then.

The writer before us may still run, and find out only at its next look at the fence that it has lost
its place. A sealed file that it had closed it may be making another one of, under another name. So
of those we write nothing but a byte that is the same in every file.
"""

import contextlib
import os
from pathlib import Path
from typing import Final

from orthia.journal.file import disk
from orthia.journal.file.disk import io_errors
from orthia.journal.file.format import HEADER_BYTES, Seal, encode_seal
from orthia.journal.file.recovery import Listing

ALWAYS_ZERO_AT: Final = HEADER_BYTES - 1
"""In the sector of the seal, which it has written once more, and no part of what that says."""
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
        # Before the seal, which says that all before it was durable.
        os.fsync(file.fileno())
        disk.seal(file.fileno(), encode_seal(seal))


def _sync_seal(path: Path) -> None:
    # One that is gone its writer had sealed durably, and nothing in it is needed any more.
    with contextlib.suppress(FileNotFoundError), path.open("r+b", buffering=0) as file:
        disk.write_all(file.fileno(), b"\0", ALWAYS_ZERO_AT)
        os.fsync(file.fileno())


def _write_again(descriptor: int, end: int) -> None:
    """Write the bytes before ``end`` as they are, so that the next sync is about them."""
    for at in range(0, end, _COPY_BYTES):
        disk.write_all(descriptor, os.pread(descriptor, min(_COPY_BYTES, end - at), at), at)
