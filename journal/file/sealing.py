"""What whoever opens the journal does before it relies on what it has read: make that durable.

A writer that died or met an error may have left bytes that the system has in memory and the disk
has not: those of its last write, or a seal. They are read as if they were durable, and are gone
after a power failure. To sync them is not enough, as a sync that failed may have left them marked
as written: they are written once more, the same, and synced then.
"""

import os
from typing import Final

from orthia.journal.file import disk
from orthia.journal.file.disk import io_errors
from orthia.journal.file.format import Seal, encode_seal
from orthia.journal.file.recovery import Listing

_COPY_BYTES: Final = 1024 * 1024


def seal_files(listing: Listing, complete: int) -> None:
    """Make what was read durable, and seal what is not sealed where it ends.

    Whoever opened the journal as the ``complete`` generation did so with all files of those before
    it, before it said that it is complete; so their seals are durable. Raises JournalIOError.
    """
    order = listing.highest_order
    for found in listing.counting:
        if found.seal is not None and found.header.generation < complete:
            continue
        with io_errors(f"seal {found.path}"), found.path.open("r+b", buffering=0) as file:
            if found.seal is None:
                order += 1
                _write_again(file.fileno(), found.end)
                # Before the seal, which says that all before it was durable.
                os.fsync(file.fileno())
                found.seal = Seal(found.end, order)
            disk.seal(file.fileno(), encode_seal(found.seal))


def _write_again(descriptor: int, end: int) -> None:
    """Write the bytes before ``end`` as they are, so that the next sync is about them."""
    for at in range(0, end, _COPY_BYTES):
        disk.write_all(descriptor, os.pread(descriptor, min(_COPY_BYTES, end - at), at), at)
