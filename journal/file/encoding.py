"""What is written for rows, deletes, counters and transactions. No IO."""

from collections.abc import Sequence
from typing import Final

from orthia.journal.file.format import Record, encode_count, encode_seqs
from orthia.journal.file.index import Added
from orthia.journal.model.changes import Row
from orthia.journal.model.codec import decode_attempts
from orthia.journal.model.message import large_body_id, moment
from orthia.journal.model.moments import Moment
from orthia.journal.model.records import ID_COUNTER_SEQ, RecordType, UserRecordType


def row_record(row: Row, token: int) -> Record:
    """Return the record that adds ``row``."""
    return Record(
        RecordType.ADD_RECORD,
        row.user_record_type,
        row.seq,
        row.id,
        0,
        row.queue_id,
        token,
        row.record,
    )


def counter_record(id_limit: int, token: int) -> Record:
    """Return the record that reserves all ids up to ``id_limit``."""
    kind = UserRecordType.ID_COUNTER
    return Record(RecordType.UPDATE_RECORD, kind, ID_COUNTER_SEQ, id_limit, 0, None, token, b"")


def end_record(record_type: RecordType, tx_id: int, count: int | None, token: int) -> Record:
    """Return the record that prepares, commits or rolls back a transaction of so many records."""
    return Record(record_type, 0, 0, 0, tx_id, None, token, encode_count(count))


def delete_record(seqs: Sequence[int], token: int) -> Record:
    """Return the record that deletes ``seqs``."""
    return Record(RecordType.DELETE_RECORD, 0, 0, 0, 0, None, token, encode_seqs(seqs))


def added_at(record: Record, offset: int) -> Added:
    """Return what the index keeps of a record written at ``offset``."""
    return Added(
        record.seq,
        record.id,
        record.user_record_type,
        record.queue_id,
        offset,
        len(record.payload),
        large_id(record.user_record_type, record.payload),
        moment_of(record.user_record_type, record.payload),
        attempts_of(record.user_record_type, record.payload),
    )


def large_id(user_record_type: int, payload: bytes) -> int | None:
    """Return the large body that a record refers to."""
    return large_body_id(payload) if user_record_type == UserRecordType.ADD_LARGE_MESSAGE else None


_MESSAGES: Final = (UserRecordType.ADD_MESSAGE, UserRecordType.ADD_LARGE_MESSAGE)


def moment_of(user_record_type: int, payload: bytes) -> Moment | None:
    """Return when a record's message leaves its queue by itself."""
    return moment(payload) if user_record_type in _MESSAGES else None


def attempts_of(user_record_type: int, payload: bytes) -> tuple[int, int] | None:
    """Return what a record says of a message's failed deliveries; raises ValueError."""
    if user_record_type != UserRecordType.DELIVERY_ATTEMPTS:
        return None
    return decode_attempts(payload)


_IN_TRANSACTION: Final = {
    RecordType.ADD_RECORD: RecordType.ADD_RECORD_TX,
    RecordType.UPDATE_RECORD: RecordType.UPDATE_RECORD_TX,
    RecordType.DELETE_RECORD: RecordType.DELETE_RECORD_TX,
}


def transaction(
    records: list[Record], tx_id: int, token: int, end: RecordType = RecordType.COMMIT_RECORD
) -> list[Record]:
    """Return ``records`` as a transaction that is committed, or prepared."""
    inside = [
        record._replace(record_type=_IN_TRANSACTION[RecordType(record.record_type)], tx_id=tx_id)
        for record in records
    ]
    return [*inside, end_record(end, tx_id, len(records), token)]
