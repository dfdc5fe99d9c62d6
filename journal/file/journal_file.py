"""A journal file, and its states.

==========  ====================================================================================
state       what it is
==========  ====================================================================================
unfinished  being made, under a name that no reader takes for a journal file's
free        has its name and its header, and waits to be written
running     is written, by one writer; what is in it counts up to the last record that is durable
closed      sealed at its end: read, and copied from when it is compacted
unneeded    closed, and nothing in it is needed: removed, or reused as a free file with another id
==========  ====================================================================================

The next node that opens the journal seals a file that its writer left running, where it ends.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from orthia.journal.file.format import FileHeader
from orthia.journal.file.recovery import FoundFile


@dataclass(frozen=True)
class JournalFile:
    """A file that has its name."""

    path: Path
    header: FileHeader
    size: int
    is_own: bool
    """Whether this generation made it: only such a file is reused."""
    order: int = 0
    """Where it stands among the others, once it is sealed."""

    @classmethod
    def of(cls, found: FoundFile) -> "JournalFile":
        """Return a closed file of an earlier generation."""
        order = found.seal.order if found.seal else 0
        return cls(found.path, found.header, found.size, is_own=False, order=order)

    @property
    def file_id(self) -> int:
        """The number in its name."""
        return self.header.file_id

    def sealed(self, order: int) -> "JournalFile":
        """Return it as it is once it is closed."""
        return replace(self, order=order)
