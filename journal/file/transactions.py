"""Which of a journal's records count, by how its transactions ended. No IO."""

from collections.abc import Iterable

from orthia.journal.file.format import Scanned, decode_count
from orthia.journal.model.records import RecordType


class Transactions:
    """Gives records on once their transaction is committed: the fold over a journal's records.

    Records of no transaction go through at once. What is neither committed nor prepared when the
    journal ends was never durable as a whole, and is dropped.
    """

    def __init__(self, watched: Iterable[int] = ()) -> None:
        self._open: dict[int, list[tuple[int, Scanned, bytes]]] = {}
        self._prepared: set[int] = set()
        self._watched = frozenset(watched)
        self.committed: set[int] = set()
        """Those of the ``watched`` transactions whose commit was met."""
        self.highest_tx_id = 0

    @property
    def in_doubt(self) -> set[int]:
        """Transactions that were prepared and neither committed nor rolled back."""
        return set(self._prepared)

    def take(
        self, file_id: int, record: Scanned, payload: bytes
    ) -> list[tuple[int, Scanned, bytes]]:
        """Return what becomes effective: file id, record and payload, in the order written.

        Raises ValueError for a commit that lacks records, and for a record of no known type.
        """
        tx_id = record.tx_id
        self.highest_tx_id = max(self.highest_tx_id, tx_id)
        match record.record_type:
            case RecordType.ADD_RECORD | RecordType.UPDATE_RECORD | RecordType.DELETE_RECORD:
                return [(file_id, record, payload)]
            case (
                RecordType.ADD_RECORD_TX | RecordType.UPDATE_RECORD_TX | RecordType.DELETE_RECORD_TX
            ):
                self._open.setdefault(tx_id, []).append((file_id, record, payload))
                return []
            case RecordType.PREPARE_RECORD:
                self._prepared.add(tx_id)
                return []
            case RecordType.COMMIT_RECORD:
                return self.commit(tx_id, decode_count(payload))
            case RecordType.ROLLBACK_RECORD:
                self.roll_back(tx_id)
                return []
        raise ValueError(f"its type {record.record_type} is not one this node knows")

    def commit(self, tx_id: int, count: int | None = None) -> list[tuple[int, Scanned, bytes]]:
        """Commit a transaction of ``count`` records, or of any number.

        One whose records are gone was compacted since.
        """
        if tx_id in self._watched:
            self.committed.add(tx_id)
        self._prepared.discard(tx_id)
        records = self._open.pop(tx_id, [])
        if records and count not in (None, len(records)):
            raise ValueError(f"transaction {tx_id} has {len(records)} records instead of {count}")
        return records

    def roll_back(self, tx_id: int) -> None:
        """Forget a transaction."""
        self._prepared.discard(tx_id)
        self._open.pop(tx_id, None)
