"""A process that stores messages for ever and prints each seq once it is durable.

    python -m tests.file_journal.writer DIRECTORY TOKEN JOURNAL_TYPE COMPACTING

Run by tests that stop, continue and kill it.
"""

import sys
from pathlib import Path

from orthia.config.store_settings import JournalType
from tests.file_journal.support import DirectJournal, file_settings


def tell(word: str, seqs: list[int]) -> None:
    """Print a line that is there as soon as this returns."""
    sys.stdout.write(" ".join([word, *map(str, seqs)]) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Write until killed or refused."""
    directory, token, journal_type, compacting = sys.argv[1:]
    s = file_settings(Path(directory), journal_type=JournalType(journal_type))
    journal = DirectJournal(s, token=int(token))
    kept: list[int] = []
    while True:
        kept += journal.add(*["x" * 300] * 4)
        tell("stored", kept[-4:])
        if compacting == "yes" and len(kept) > 40:
            gone = [seq for seq in kept if seq % 4]
            tell("deleting", gone)
            journal.delete(*gone)
            tell("deleted", gone)
            kept = []
            journal.keeper.keep()


if __name__ == "__main__":
    main()
