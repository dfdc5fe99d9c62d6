"""The limits that rows are compared with (newest epoch, reserved ids, time), and the bindings.

Pure. The limit itself may be wrong: if the fence was set back, every row is above it. So where more
rows contradict a limit than confirm it, the limit is the fault, and the only one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from orthia.journal.model.records import FENCE_ROW_ID, ID_COUNTER_SEQ
from orthia.pipeline.times import EPOCH

CLOCK_TOLERANCE: Final = timedelta(minutes=1)
"""How far in the future a row may be: the database's clock may have been set back."""


class Fault(NamedTuple):
    """A fault, and the row that has it."""

    fault: str
    table: str
    """``messages``, ``history``, ``bindings``, ``large``, ``times`` or
    ``node_manager``."""
    seq: int | None
    """The row's; for a large body, that of a message that needs it."""
    id: int | None
    """The row's ``id``: the message's, or the large body's."""
    position: int | None
    """The position of a large body's piece."""
    queue_id: int | None
    epoch: int | None
    detail: str


class Lock(NamedTuple):
    """The fence and the time, from NODE_MANAGER_STORE."""

    fence: int | None
    """None if it is not known."""
    live_token: int | None
    now: datetime | None
    """The database's time; None if it is not known."""


@dataclass(frozen=True)
class BindingRow:
    """A row of BINDINGS."""

    seq: int
    id: int | None
    type: str
    name: str | None
    address: str | None
    epoch: int | None
    written_at: datetime | None
    queues: Sequence[int]
    deletes: Sequence[int]
    large: Sequence[Any]
    findings: Sequence[Any]


@dataclass(frozen=True)
class Limits:
    """The upper bounds of every row; None where one is not known."""

    epoch: int | None
    reserved: int | None
    written_at: datetime | None


def counter_of(bindings: Iterable[BindingRow]) -> BindingRow | None:
    """Return the row of the id counter."""
    return next((one for one in bindings if one.seq == ID_COUNTER_SEQ), None)


def epoch_limit(
    lock: Lock, counter: BindingRow | None, epochs: Iterable[int]
) -> tuple[int | None, list[Fault]]:
    """Return the newest epoch there can be; ``epochs`` are those of messages.

    Every node that becomes live writes the counter after the fence: where both the counter and rows
    stored since are above the fence, the fence is wrong.
    """
    fence, written = lock.fence, None if counter is None else counter.epoch
    if fence is None or written is None or written <= fence:
        return fence, []
    if written in set(epochs) or (lock.live_token or 0) >= written:
        detail = f"the fence is at {fence}, and the journal was opened under {written} already"
        fault = _fault("fence-behind", "node_manager", FENCE_ROW_ID, None, written, detail)
        return written, [fault]
    return fence, []


def id_limit(
    counter: BindingRow | None, above: int, below: int, *, is_used: bool
) -> tuple[int | None, list[Fault]]:
    """Return the highest id that may have been given out.

    ``above`` and ``below`` are the numbers of rows above the counter's id and not above it;
    ``is_used`` is whether anything was ever stored.
    """
    if counter is None:
        if not is_used:
            return None, []
        detail = "the row that says which ids were given out is missing"
        return None, [_fault("missing-counter", "bindings", ID_COUNTER_SEQ, None, None, detail)]
    if counter.id is None:
        return None, []
    if above > below:
        detail = f"ids up to {counter.id} are reserved, and {above:,} rows are above"
        found = _fault("low-counter", "bindings", counter.seq, counter.id, counter.epoch, detail)
        return None, [found]
    return counter.id, []


def binding_faults(bindings: Sequence[BindingRow], limits: Limits) -> list[Fault]:
    """Return the faults of rows of BINDINGS."""
    found: list[Fault] = []
    first: dict[tuple[str, str | None], int] = {}
    for one in sorted(bindings, key=lambda row: row.seq):
        found += [_of(one, finding["fault"], finding["detail"]) for finding in one.findings or ()]
        if limits.epoch is not None and one.epoch is not None and one.epoch > limits.epoch:
            found.append(_of(one, "unfenced-epoch", f"the fence is at {limits.epoch}"))
        if limits.reserved is not None and one.seq > limits.reserved:
            found.append(_of(one, "unreserved-id", f"reserved up to {limits.reserved}"))
        late = limits.written_at is not None and one.written_at is not None
        if late and one.written_at > limits.written_at:  # type: ignore[operator]  # neither is None
            found.append(_of(one, "wrong-time", f"it was written at {one.written_at:%FT%TZ}"))
        if one.written_at is not None and one.written_at < EPOCH:
            found.append(_of(one, "wrong-time", "it was written before 1970"))
        is_named = one.type in ("address", "transaction", "id-cache")
        if is_named or one.type.startswith("queue"):
            earlier = first.setdefault((one.type, one.name), one.seq)
            if earlier != one.seq:
                detail = f"the {one.type} of seq {earlier} has the same name {one.name!r}"
                found.append(_of(one, "duplicate-binding", detail))
    return found


def transaction_faults(
    transaction: BindingRow, queues: frozenset[int], messages: frozenset[int]
) -> list[Fault]:
    """Return the queues and messages that a transaction in doubt needs and that are missing."""
    found = [
        _of(transaction, "broken-transaction", f"it is to put a message into queue {one}, unbound")
        for one in transaction.queues
        if one not in queues
    ]
    found += [
        _of(transaction, "broken-transaction", f"it acknowledges message {one}, which is not there")
        for one in transaction.deletes
        if one not in messages
    ]
    return found


def _of(row: BindingRow, fault: str, detail: str) -> Fault:
    return _fault(fault, "bindings", row.seq, row.id, row.epoch, detail)


def _fault(
    fault: str, table: str, seq: int, row_id: int | None, epoch: int | None, detail: str
) -> Fault:
    return Fault(fault, table, seq, row_id, None, None, epoch, detail)
