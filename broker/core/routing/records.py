"""The journal as operators' decisions are stored in it."""

from orthia.broker.core.errors import NotLive
from orthia.journal.errors import JournalClosed
from orthia.journal.journal import MessageJournal
from orthia.journal.model.unit import Unit


class OperatorRecords:
    """Stores records of operators; raises NotLive once the journal is closed."""

    def __init__(self, journal: MessageJournal) -> None:
        self._journal = journal

    def next_id(self) -> int:
        """Return the id of a new record."""
        try:
            return self._journal.next_id()
        except JournalClosed as error:
            raise NotLive(str(error)) from None

    def append(self, unit: Unit) -> None:
        """Store a unit."""
        try:
            self._journal.append_unit(unit)
        except JournalClosed as error:
            raise NotLive(str(error)) from None
