"""What a stored row shows by itself: whether it is one that a sound journal has.

Rows are read by the codec the broker reads them with, and no row is refused: a column that must
have a value and has none is None here, and one more thing to be told. What only other rows can
show, an audit finds out from what is returned here.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final, NamedTuple

from orthia.journal.errors import CorruptRecord
from orthia.journal.model.codec import (
    IdCacheBinding,
    OperatorRecord,
    PreparedTransaction,
    QueueBinding,
    RecordVersion,
    decode_binding,
    decode_duplicate_id,
    decode_reference,
)
from orthia.journal.model.encodings import NO_HEAD, encoding_of
from orthia.journal.model.fields import decode_fields
from orthia.journal.model.message import LargeBody, Message, decode_message
from orthia.journal.model.records import ID_COUNTER_SEQ, RecordType, RemovalReason, UserRecordType

MAX_KEY: Final = 2**63 - 1
IN_TRANSACTION: Final = frozenset(
    map(
        int,
        (
            RecordType.ADD_RECORD_TX,
            RecordType.UPDATE_RECORD_TX,
            RecordType.DELETE_RECORD_TX,
            RecordType.PREPARE_RECORD,
        ),
    )
)
END_OF_TRANSACTION: Final = frozenset(
    map(int, (RecordType.COMMIT_RECORD, RecordType.ROLLBACK_RECORD))
)
_PRIORITIES: Final = range(10)
_TIMES_MS: Final = range(253_402_300_800_000)
"""The times of what a broker did or is to do: from 1970 to the end of the year 9999."""
_EXPIRIES_MS: Final = range(10**18)
"""What a client may say of an expiry: a number of 18 digits."""
_WITHOUT_MESSAGE: Final = END_OF_TRANSACTION | set(
    map(int, (RecordType.DELETE_RECORD_TX, RecordType.PREPARE_RECORD))
)
_ADD_RECORD: Final = int(RecordType.ADD_RECORD)
_MESSAGE_TYPES: Final = (int(UserRecordType.ADD_MESSAGE), int(UserRecordType.ADD_LARGE_MESSAGE))
_LARGE: Final = int(UserRecordType.ADD_LARGE_MESSAGE)
_BINDING_TYPES: Final = (
    UserRecordType.QUEUE_BINDING,
    UserRecordType.ADDRESS_BINDING,
    UserRecordType.PREPARED_TRANSACTION,
    UserRecordType.RECORD_VERSION,
    UserRecordType.ID_CACHE,
    UserRecordType.OPERATOR_RECORD,
)


@lru_cache(maxsize=512)
def _read_head(encoding: int, head: bytes) -> None:
    """Raise ValueError for a head that cannot be read; they are often the same."""
    encoding_of(encoding).fields(head)


class Finding(NamedTuple):
    """A defect of a row."""

    fault: str
    detail: str


class RowKeys(NamedTuple):
    """The columns of MESSAGES and BINDINGS beside the record; None for what cannot be read."""

    seq: int | None
    id: int | None
    record_type: int | None
    user_record_type: int | None
    tx_id: int | None
    queue_id: int | None
    epoch: int | None


class CheckedMessage(NamedTuple):
    """A row as an audit goes on with it."""

    kind: str
    """``message``, ``body``, ``reference``, ``duplicate-id`` or ``other``, as a reader of the
    journal is told."""
    findings: list[Finding]
    address: str | None = None
    large: LargeBody | None = None
    body_seq: int | None = None
    """Where the body of a reference is: what its record says, else its id."""
    total: int | None = None
    """How many references the body of a reference has had."""


class CheckedBinding(NamedTuple):
    """A row of BINDINGS as an audit goes on with it."""

    type: str
    """``queue``, ``queue's priority N``, ``address``, ``transaction``, ``record-version``,
    ``id-cache``, ``counter`` or ``other``."""
    findings: list[Finding]
    name: str | None = None
    address: str | None = None
    queues: tuple[int, ...] = ()
    """Where a transaction in doubt is to put messages."""
    deletes: tuple[int, ...] = ()
    """The messages it acknowledges, by seq."""
    large: tuple[LargeBody, ...] = ()
    """The bodies of the messages it is to send."""


def check_message(row: RowKeys, record: bytes | None, *, has_record: bool = True) -> CheckedMessage:
    """Return what a row of MESSAGES is; without ``has_record`` from its keys alone."""
    findings = _wrong(row)
    if row.record_type in _WITHOUT_MESSAGE:
        return CheckedMessage("other", findings)
    if row.user_record_type in _MESSAGE_TYPES:
        kind = "body" if row.queue_id is None else "message"
        if row.id != row.seq and row.id is not None and row.seq is not None:
            findings.append(Finding("wrong-id", f"a {kind}'s id is its seq"))
        if not has_record:
            return CheckedMessage(kind, findings)
        return _check_payload(kind, findings, row, record)
    if row.user_record_type == UserRecordType.DELIVERY_ATTEMPTS:
        return CheckedMessage("other", findings)  # of files, whose checksums vouch for it
    if row.user_record_type == UserRecordType.DUPLICATE_ID:
        return _check_duplicate_id(findings, row, record, has_record=has_record)
    if row.user_record_type != UserRecordType.ADD_REF:
        said = f"user_record_type {row.user_record_type} is not one of a message"
        return CheckedMessage("other", [*findings, Finding("wrong-record-type", said)])
    checked = CheckedMessage("reference", findings, body_seq=row.id)
    if row.queue_id is None:
        findings.append(Finding("impossible-key", "queue_id is NULL, and a reference has a queue"))
    if not has_record:
        if row.id is not None and row.seq is not None and not row.id < row.seq:
            findings.append(Finding("wrong-id", "a reference has a seq above its body's"))
        return checked
    return _check_reference(checked, row, record)


def check_history(
    row: RowKeys, reason: str | None, size: int | None, record: bytes | None, *, has_record: bool
) -> CheckedMessage:
    """Return what a row of the history is, which has no types of its own."""
    findings = list(_wrong_keys(row))
    if row.queue_id is None:
        findings.append(Finding("impossible-key", "queue_id is NULL, and each message had a queue"))
    if row.id is not None and row.seq is not None and row.id > row.seq:
        findings.append(Finding("wrong-id", "its id is above its seq"))
    if reason not in set(RemovalReason):
        findings.append(Finding("wrong-reason", f"its reason is {reason!r}"))
    if not has_record:
        return CheckedMessage("message", findings)
    if size is None or (record is not None and size != len(record)):
        length = None if record is None else len(record)
        findings.append(Finding("wrong-size", f"its size is {size}, and its record has {length}"))
    return _check_payload("message", findings, row, record)


def check_binding(row: RowKeys, record: bytes | None) -> CheckedBinding:
    """Return what a row of BINDINGS is."""
    findings = list(_wrong_record_type(row))
    if row.record_type is not None and row.record_type in IN_TRANSACTION | END_OF_TRANSACTION:
        said = f"record_type {row.record_type} is none of a binding"
        findings.append(Finding("wrong-record-type", said))
    if row.seq == ID_COUNTER_SEQ:
        if row.user_record_type != UserRecordType.ID_COUNTER:
            said = f"user_record_type {row.user_record_type} is not the counter's"
            findings.append(Finding("wrong-record-type", said))
        findings += _wrong_keys(row._replace(seq=1, queue_id=None))
        return CheckedBinding("counter", findings)
    findings += _wrong_keys(row)
    if row.user_record_type not in _BINDING_TYPES:
        said = f"user_record_type {row.user_record_type} is not one of a binding"
        return CheckedBinding("other", [*findings, Finding("wrong-record-type", said)])
    if row.id != row.seq and None not in (row.id, row.seq):
        findings.append(Finding("wrong-id", "a binding's id is its seq"))
    of_queue = row.user_record_type == UserRecordType.QUEUE_BINDING
    if row.queue_id != (row.seq if of_queue else None):
        findings.append(Finding("wrong-id", f"its queue_id is {row.queue_id}"))
    return _check_binding_record(CheckedBinding("other", findings), row, record)


def _wrong(row: RowKeys) -> list[Finding]:
    """Return what is wrong with the keys and the kind of a row of MESSAGES; a row is seldom."""
    seq, row_id, record_type, _, tx_id, queue_id, epoch = row
    if (
        seq is not None
        and row_id is not None
        and epoch is not None
        and seq > 0
        and row_id > 0
        and epoch > 0
        and (queue_id is None or queue_id > 0)
        and record_type == _ADD_RECORD
        and tx_id is None
    ):
        return []
    return [*_wrong_keys(row), *_wrong_record_type(row)]


def _wrong_keys(row: RowKeys) -> Iterator[Finding]:
    for name in ("seq", "id", "epoch", "queue_id"):
        value = getattr(row, name)
        if value is None:
            if name != "queue_id":
                yield Finding("impossible-key", f"{name} cannot be read as a number")
        elif value < 1:
            yield Finding("impossible-key", f"{name} is {value}")


def _wrong_record_type(row: RowKeys) -> Iterator[Finding]:
    kind = row.record_type
    if kind == RecordType.ADD_RECORD:
        if row.tx_id is not None:
            said = f"record_type {kind} is of no transaction, and tx_id is {row.tx_id}"
            yield Finding("wrong-record-type", said)
    elif kind in IN_TRANSACTION or kind in END_OF_TRANSACTION:
        if row.tx_id is None:
            said = f"record_type {kind} is of a transaction, and tx_id is NULL"
            yield Finding("wrong-record-type", said)
    else:
        yield Finding("wrong-record-type", f"record_type {kind} is none that a table holds")


def _check_payload(
    kind: str, findings: list[Finding], row: RowKeys, record: bytes | None
) -> CheckedMessage:
    """Return what a row is whose record is a message."""
    try:
        message = decode_message(_there(record), row.seq or 0)
        if message.encoding != NO_HEAD:
            _read_head(message.encoding, message.head)
    except CorruptRecord as error:
        return CheckedMessage(kind, [*findings, Finding("corrupt-record", error.reason)])
    except ValueError as error:
        said = f"its headers cannot be read: {error}"
        return CheckedMessage(kind, [*findings, Finding("corrupt-record", said)])
    findings = [*findings, *_impossible_values(message)]
    large = message.large
    if large is not None and max(large.id, large.size) > MAX_KEY:
        said = f"it says that its body is {large.id}, of {large.size} bytes"
        return CheckedMessage(kind, [*findings, Finding("corrupt-record", said)])
    # A row of the history has no kind.
    if row.user_record_type is not None and (row.user_record_type == _LARGE) != (large is not None):
        has = "in its record" if large is None else "outside of its record"
        said = f"user_record_type is {row.user_record_type}, and its body is {has}"
        findings = [*findings, Finding("wrong-record-type", said)]
    return CheckedMessage(kind, findings, message.address, large)


def _impossible_values(message: Message) -> Iterator[Finding]:
    """Yield values that no broker stores, though the record and its checksum agree."""
    delivery_ms = None
    if message.stated:
        delivery_ms = decode_fields(message.stated).delivery_ms
    for name, value, possible in (
        ("priority", message.priority, _PRIORITIES),
        ("timestamp", message.timestamp_ms, _TIMES_MS),
        ("expiry", message.expires_ms, _EXPIRIES_MS),
        ("time of delivery", delivery_ms, _TIMES_MS),
    ):
        if value is not None and value not in possible:
            said = f"its {name} is {value}; expected 0 to {possible[-1]}"
            yield Finding("impossible-value", said)


def _check_duplicate_id(
    findings: list[Finding], row: RowKeys, record: bytes | None, *, has_record: bool
) -> CheckedMessage:
    if row.id != row.seq and row.id is not None and row.seq is not None:
        findings.append(Finding("wrong-id", "a duplicate id's id is its seq"))
    if row.queue_id is None:
        findings.append(
            Finding("impossible-key", "queue_id is NULL, and a duplicate id has a cache")
        )
    if has_record:
        try:
            decode_duplicate_id(_there(record), row.seq or 0)
        except CorruptRecord as error:
            findings.append(Finding("corrupt-record", error.reason))
    return CheckedMessage("duplicate-id", findings)


def _check_reference(checked: CheckedMessage, row: RowKeys, record: bytes | None) -> CheckedMessage:
    try:
        reference = decode_reference(_there(record), row.seq or 0)
    except CorruptRecord as error:
        return _with(checked, Finding("corrupt-record", error.reason))
    if not 0 < reference.position <= reference.total <= MAX_KEY:
        said = f"it says it is reference {reference.position} of {reference.total}"
        return _with(checked, Finding("corrupt-record", said))
    if row.seq is None:
        return checked
    found = checked._replace(body_seq=row.seq - reference.position, total=reference.total)
    if row.id is not None and found.body_seq != row.id:
        said = f"it says its body is at seq {found.body_seq}"
        return _with(found, Finding("wrong-id", said))
    return found


def _check_binding_record(
    checked: CheckedBinding, row: RowKeys, record: bytes | None
) -> CheckedBinding:
    try:
        binding = decode_binding(row.user_record_type or 0, _there(record), row.seq or 0)
        large = tuple(_large_bodies(binding)) if isinstance(binding, PreparedTransaction) else ()
    except CorruptRecord as error:
        found = Finding("corrupt-binding", error.reason)
        return checked._replace(findings=[*checked.findings, found])
    if isinstance(binding, QueueBinding):
        kind = "queue" if binding.priority is None else f"queue's priority {binding.priority}"
        return checked._replace(type=kind, name=binding.name, address=binding.address)
    if isinstance(binding, PreparedTransaction):
        return checked._replace(
            type="transaction",
            name=str(binding.xid),
            queues=tuple(dict.fromkeys(one for ids, _ in binding.messages for one in ids)),
            deletes=tuple(seq for seq, *_ in binding.deletes),
            large=large,
        )
    if isinstance(binding, RecordVersion):
        return checked._replace(type="record-version", name=str(binding.version))
    if isinstance(binding, IdCacheBinding):
        return checked._replace(type="id-cache", name=binding.address, address=binding.address)
    if isinstance(binding, OperatorRecord):
        return checked._replace(type="operator-record", name=binding.kind)
    return checked._replace(type="address", name=binding.name, address=binding.name)


def _there(record: bytes | None) -> bytes:
    """Return a record, which is none if its column holds no bytes; every decoder refuses that."""
    return b"" if record is None else record


def _large_bodies(prepared: PreparedTransaction) -> Iterable[LargeBody]:
    for _, payload in prepared.messages:
        large = decode_message(payload, prepared.transaction_id).large
        if large is not None:
            yield large


def _with(checked: CheckedMessage, finding: Finding) -> CheckedMessage:
    return checked._replace(findings=[*checked.findings, finding])
