"""Checks that a journal is consistent. Each fault names a row; a sound journal has none.

The rules, each of which a correct node keeps:

1. Every row can be read, and is of a kind that its table has, with keys that were given out:
   ``orthia.journal.model.integrity``.
2. A reference has its body, and a body has a reference left; no two rows are the same message.
3. ``seq`` is given out by one fenced writer at a time: where a newer epoch (fencing token) has
   begun, no row of an older one follows, neither by ``seq`` nor by the database's clock; no epoch
   is newer than the fence, no ``seq`` above the ids that were reserved, no time in the future.
4. A transaction that has rows has a row that ends it.
5. Every queue that has messages is bound, once, to the address its messages were sent to.
6. A message in the history left its queue: it no longer waits there, and the history has it once
   and unchanged.
7. Every row of failed delivery attempts belongs to a stored message.
8. A large body is stored whole, as it was sent, with a reference from each message that needs it.
9. An export has the contents that its manifest lists.

A fault names the row that is wrong, not the rows that only look wrong beside it: there is one fault
for an unbound queue, for a fence or a counter that was set back, for a row whose epoch is out of
order.

An audit may run while a pair serves. One statement reads a body with its references, another one
all of BINDINGS; the history is read before the messages, the large bodies, the bindings and the
locks after them. Faults that concurrent work can explain are checked again by key at the end:
``orthia.pipeline.sources.recheck``.

A transaction in doubt, prepared and neither committed nor rolled back, is no fault: it is a row of
BINDINGS that holds its changes, and has no rows of MESSAGES. ``in_doubt`` lists them. Gaps are no
faults: an acknowledged message's row is deleted, queues and non-persistent messages take ids, and a
takeover skips the rest of a reserved block. ``epochs`` shows the gaps. Both are in
``audit_summary``.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import Any, Final, NamedTuple

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

from orthia.journal.model.records import ID_COUNTER_SEQ
from orthia.pipeline.jobs import audit_bodies, audit_messages, audit_summary, backup
from orthia.pipeline.jobs.audit_limits import (
    CLOCK_TOLERANCE,
    BindingRow,
    Fault,
    Limits,
    Lock,
    binding_faults,
    counter_of,
    epoch_limit,
    id_limit,
    transaction_faults,
)
from orthia.pipeline.jobs.audit_tally import TALLY, Tally, marked, tallied
from orthia.pipeline.jobs.epoch_order import EpochBounds, is_out_of_order
from orthia.pipeline.jobs.together import Rows, collected, collected_together, packed
from orthia.pipeline.sources.inputs import ExportInputs, Inputs
from orthia.pipeline.sources.recheck import Recheck
from orthia.pipeline.times import instant_at, microseconds

FAULTS: Final = {
    "corrupt-record": "a message that cannot be read",
    "corrupt-binding": "a queue, address or transaction that cannot be read",
    "impossible-key": "a key that was never given out: NULL, 0 or negative",
    "impossible-value": "a priority or a time that no message can have, whatever its checksum",
    "wrong-id": "a message whose id is not its seq, or a reference that is not where it says",
    "wrong-record-type": "a row of a kind that its table does not have, or that its record is not",
    "wrong-time": "a time in the future, before 1970, or none",
    "orphaned-reference": "a reference whose body is missing",
    "orphaned-body": "a body without a reference",
    "orphaned-attempts": "failed deliveries counted for a message that is gone",
    "body-in-queue": "a body that is in a queue itself",
    "uneven-references": "references that do not agree how many their body had",
    "duplicate-id": "an id that several messages, or several rows of one queue, have",
    "stale-epoch": "a row of an older epoch after a newer one had begun: two writers",
    "early-epoch": "a row of a newer epoch before an older one had ended",
    "unfenced-epoch": "a row of an epoch newer than the fence",
    "fence-behind": "a fence older than what was written under it",
    "unreserved-id": "a seq above the ids that were reserved",
    "missing-counter": "the row that says which ids were given out is missing",
    "low-counter": "the row that says which ids were given out is below them",
    "unfinished-transaction": "a transaction without commit or rollback",
    "end-without-transaction": "a commit or rollback of a transaction that has no rows",
    "broken-transaction": "a transaction in doubt whose queues or messages are missing",
    "unknown-queue": "messages of a queue that is not bound",
    "duplicate-binding": "two queues, or two addresses, of one name",
    "wrong-address": "a message, or a queue, of another address than the other",
    "large-body-missing": "a large message without its body",
    "large-piece-missing": "a large body with pieces missing",
    "large-piece-size": "a piece of a large body that is too long or too short",
    "large-piece-surplus": "a piece behind the end of a large body",
    "large-body-corrupt": "a large body that is not what was sent",
    "large-body-unlinked": "a large body that is not noted with its message, and would be removed",
    "large-body-orphaned": "a large body of an earlier epoch that nothing needs",
    "changed-export": "a table of an export whose files are not what was exported",
}
"""The faults of a journal by name, and their meaning."""

HISTORY_FAULTS: Final = {
    "wrong-reason": "a message of the history that left its queue for no reason there is",
    "wrong-size": "a message of the history whose size is not that of its record",
    "kept-and-waiting": "a message of the history that is still in its queue",
    "kept-twice": "a message that left one queue twice, as the history has it",
    "kept-before-written": "a message that left its queue before it was written",
}
"""Faults of a history alone; it has those of messages, too."""

_MOST_SUSPECTS: Final = 100_000
"""Faults of one name that are checked again at the end."""
_KEPT: Final = StorageLevel.DISK_ONLY
"""On disk: the journal is read once, and memory does not grow with it."""


@dataclass(frozen=True)
class Audit:
    """The result of an audit."""

    counts: dict[str, int]
    """The number of faults by name."""
    listed: list[Fault]
    """The first of them."""
    queues: Rows
    """What is in each queue, see ``audit_summary.live_set``."""
    epochs: Rows
    """The rows of each epoch, see ``audit_summary.epochs``."""
    in_doubt: Rows
    """Transactions in doubt, see ``audit_summary.in_doubt``."""
    unneeded: Rows
    """Large bodies that nothing needs now, left by running uploads or by a node that died."""


def examined(
    inputs: Inputs,
    *,
    records: bool = True,
    bodies: bool = True,
    history: bool = False,
    listed: int = 1_000,
) -> Audit:
    """Audit a journal, and list the first ``listed`` faults.

    Without ``records`` only keys are checked, and no large body; without ``bodies`` only the keys
    of their pieces. ``history`` includes the history that journal-retention keeps.

    One job reads each table, and one compares them; only what is wrong makes more.
    """
    with ExitStack() as stack:

        def kept(frame: DataFrame) -> DataFrame:
            stack.callback(frame.unpersist)
            return frame.persist(_KEPT)

        tables: dict[str, _Table] = {}
        if history:
            tables["history"] = _read(kept(inputs.audited("history", content=records)))
        tables["messages"] = _read(kept(inputs.audited("messages", content=records)))
        pieces = inputs.pieces(content=bodies) if records else None
        has_bodies = any(one.has_large for one in tables.values())
        if pieces is not None:
            pieces = kept(pieces)
            has_bodies = pieces.count() > 0 or has_bodies
        bindings = kept(inputs.audited("bindings"))
        examination = _Examination(inputs, tables, bindings, pieces if has_bodies else None)
        changed = _changed(inputs, bodies=bodies and records)
        return examination.result(changed, listed)


class _Table(NamedTuple):
    """A table of messages that was read, and what was counted meanwhile."""

    rows: DataFrame
    bounds: Sequence[EpochBounds]
    has_large: bool
    """Whether a message has a large body."""


def _read(rows: DataFrame) -> _Table:
    """Read a table to its end; its rows are kept."""
    found = rows.groupBy("epoch").agg(
        F.count("*").alias("rows"),
        F.min("seq"),
        F.max("seq"),
        F.unix_micros(F.min("written_at")),
        F.unix_micros(F.max("written_at")),
        F.count("large").alias("large"),
    )
    bounds = found.collect()
    has_large = any(row["large"] for row in bounds)
    return _Table(rows, [EpochBounds(*row[:-1]) for row in bounds], has_large)


def _changed(inputs: Inputs, *, bodies: bool) -> list[Fault]:
    """Return a fault for each table of an export that differs from its manifest, if it has one."""
    if not isinstance(inputs, ExportInputs) or not inputs.is_whole:
        return []
    return [
        Fault("changed-export", table, None, None, None, None, None, detail)
        for table, detail in backup.changed_tables(inputs, inputs.contents(), bodies=bodies)
    ]


class _Examination:
    """The audit of one journal."""

    def __init__(
        self,
        inputs: Inputs,
        tables: Mapping[str, _Table],
        bindings: DataFrame,
        pieces: DataFrame | None,
    ) -> None:
        self._tables = tables
        self._messages = tables["messages"].rows
        self._bindings = bindings
        self._pieces = pieces
        self._in_one_task = inputs.is_small
        self._recheck: Recheck = inputs.recheck()
        self._bound, self._lock = _bound_and_lock(bindings, inputs.node_manager())
        bounds = [one for table in tables.values() for one in table.bounds]
        self._has_times = inputs.has_times
        if self._has_times is None:
            self._has_times = any(one.first_at is not None for one in bounds)
        self._has_links = inputs.has_links
        self._queues = bindings.where("type LIKE 'queue%'").select(
            F.col("seq").alias("queue_id"), "name", "address"
        )
        # A corrupt binding has its own fault; its messages do not count as without a queue.
        wrong = bindings.where("findings IS NOT NULL")
        named = wrong.select(F.col("id").alias("queue_id")).union(wrong.select("seq"))
        self._bound_ids = self._queues.select("queue_id").union(named).distinct()
        self._limits, self._known = self._find_limits()

    def _find_limits(self) -> tuple[Limits, list[Fault]]:
        bounds, counter = self._tables["messages"].bounds, counter_of(self._bound)
        epochs = [one.epoch for one in bounds]
        newest, faults = epoch_limit(self._lock, counter, [one for one in epochs if one])
        below = above = 0
        if counter is not None and counter.id is not None:
            above = self._above(counter.id) + sum(one.seq > counter.id for one in self._bound)
            below = sum(one.rows for one in bounds) + len(self._bound) - 1 - above
        is_used = bool(epochs or self._bound)
        reserved, more = id_limit(counter, above, below, is_used=is_used)
        now = self._lock.now
        latest = None if now is None else now + CLOCK_TOLERANCE
        limits = Limits(newest, reserved, latest)
        return limits, [*faults, *more, *binding_faults(self._bound, limits)]

    def _above(self, seq: int) -> int:
        """Return how many messages are above ``seq``."""
        if all((one.last or 0) <= seq for one in self._tables["messages"].bounds):
            return 0
        return self._messages.where(F.col("seq") > seq).count()

    def result(self, changed: Sequence[Fault], listed: int) -> Audit:
        """Compare all tables in one job, and check again what concurrent work could explain."""
        misaddressed = {
            name: audit_messages.misaddressed(table.rows, self._queues)
            for name, table in self._tables.items()
        }
        certain = reduce(DataFrame.unionByName, self._certain())
        suspects = reduce(DataFrame.unionByName, self._suspects())
        faults = marked(certain, is_suspect=False).unionByName(marked(suspects, is_suspect=True))
        parts = [packed("queues", audit_summary.live_set(self._messages, self._bindings))]
        parts += [
            packed(f"misaddressed {name}", frame.groupBy().agg(F.count("*").alias("rows")))
            for name, frame in misaddressed.items()
        ]
        if self._pieces is not None:
            needs = self._needs()
            found = audit_bodies.damaged(needs, self._pieces)
            if self._has_links:  # in files the journal itself says what needs a body
                found = found.unionByName(audit_bodies.unlinked(needs, self._pieces))
            faults = faults.unionByName(marked(found, is_suspect=True))
            unneeded = audit_bodies.unneeded(needs, self._pieces).limit(_MOST_SUSPECTS)
            parts.append(packed("unneeded", unneeded))
        parts.append(tallied(faults, listed, _MOST_SUSPECTS))
        answers = collected(parts, in_one_task=self._in_one_task)
        tally = Tally(answers.get(TALLY, ()))
        moved = {
            name: frame
            for name, frame in misaddressed.items()
            if any(row["rows"] for row in answers[f"misaddressed {name}"])
        }
        more, known = self._further(moved, listed)
        counts = Counter(tally.counts)
        counts.update(more.counts)
        orphaned, left = self._unneeded(answers.get("unneeded", ()))
        others = [*self._known, *known, *self._confirmed(tally), *orphaned, *changed]
        counts.update(one.fault for one in others)
        first = sorted(
            [*tally.listed, *more.listed, *others], key=lambda one: (one.fault, one.seq or 0)
        )
        bounds = self._tables["messages"].bounds
        return Audit(
            dict(counts),
            first[:listed],
            answers.get("queues", []),
            audit_summary.epochs(bounds),
            audit_summary.in_doubt(self._bound),
            left,
        )

    def _certain(self) -> Iterator[DataFrame]:
        """Yield the faults that no concurrent work can explain."""
        messages, limits, has_times = self._messages, self._limits, bool(self._has_times)
        for name, table in self._tables.items():
            yield audit_messages.of_single_rows(table.rows, limits, name, has_times=has_times)
        yield audit_messages.bodies_in_queues(messages)
        yield audit_messages.uneven_references(messages)
        yield audit_messages.duplicates(messages)
        yield audit_messages.transactions(messages)
        if "history" in self._tables:
            yield from _history_faults(self._tables["history"].rows, messages)

    def _suspects(self) -> Iterator[DataFrame]:
        """Yield the faults that concurrent work could explain."""
        messages = self._messages
        yield audit_messages.unbound_queues(messages, self._bound_ids)
        yield audit_messages.orphaned_references(messages)
        yield audit_messages.orphaned_bodies(messages)

    def _further(
        self, moved: Mapping[str, DataFrame], listed: int
    ) -> tuple[Tally, Sequence[Fault]]:
        """Return what takes jobs of its own: wrong addresses, and rows out of order, if any."""
        found: list[DataFrame] = []
        known: list[Fault] = []
        for name, frame in moved.items():
            wrong, misbound = audit_messages.wrong_addresses(frame, self._tables[name].rows, name)
            known += [one for one in misbound if one not in known]
            found += [] if wrong is None else [wrong]
        if is_out_of_order([*self._bounds()]):
            own = self._bindings.where(F.col("seq") != ID_COUNTER_SEQ)
            written = [_written(table.rows, name) for name, table in self._tables.items()]
            rows = reduce(DataFrame.unionByName, [*written, _written(own, "bindings")])
            misplaced = audit_messages.out_of_order(rows, self._limits)
            found += [] if misplaced is None else [misplaced]
        if not found:
            return Tally(()), known
        faults = marked(reduce(DataFrame.unionByName, found), is_suspect=False)
        parts = [tallied(faults, listed, _MOST_SUSPECTS)]
        answers = collected(parts, in_one_task=self._in_one_task)
        return Tally(answers.get(TALLY, ())), known

    def _bounds(self) -> Iterator[EpochBounds]:
        for table in self._tables.values():
            yield from table.bounds
        for one in self._bound:
            if one.seq != ID_COUNTER_SEQ:
                at = None if one.written_at is None else microseconds(one.written_at)
                yield EpochBounds(one.epoch, 1, one.seq, one.seq, at, at)

    def _confirmed(self, tally: Tally) -> list[Fault]:
        """Return the suspects that a second check confirms."""
        still: list[Fault] = []
        for table in (None, "messages", "history", "bindings"):
            mine = [one for one, needed_by in tally.suspected if needed_by == table]
            # A suspect without a table that needs a body is a row of MESSAGES itself.
            ask = getattr(self._recheck, table or "messages")
            there = ask(one.seq for one in mine if one.seq is not None) if mine else ()
            still += [one for one in mine if one.seq in there]
        return [*still, *self._of_attempts(), *self._of_transactions()]

    def _of_attempts(self) -> list[Fault]:
        return [
            Fault(
                *("orphaned-attempts", "times", one.seq, None, None, one.queue_id, None),
                f"{one.attempts} failed deliveries of a message that is gone; the next node that"
                " becomes live deletes the row",
            )
            for one in self._recheck.orphaned_attempts(_MOST_SUSPECTS)
        ]

    def _of_transactions(self) -> list[Fault]:
        in_doubt = [one for one in self._bound if one.type == "transaction"]
        if not in_doubt:
            return []
        wanted = [seq for one in in_doubt for seq in one.deletes or ()]
        there = frozenset(self._recheck.messages(wanted))
        queues = {one.seq for one in self._bound if one.type.startswith("queue")}
        for one in self._bound:
            if one.findings is not None:
                queues |= {one.seq, *(() if one.id is None else (one.id,))}
        found = frozenset(queues)
        suspected = [f for one in in_doubt for f in transaction_faults(one, found, there)]
        waiting = self._recheck.bindings(one.seq for one in suspected if one.seq is not None)
        return [one for one in suspected if one.seq in waiting]

    def _needs(self) -> DataFrame:
        """Return the large bodies that messages, the history and transactions in doubt need."""
        needs = [audit_bodies.needs_of_rows(one.rows, name) for name, one in self._tables.items()]
        in_doubt = [one for one in self._bound if one.large]
        if in_doubt:
            spark = self._messages.sparkSession
            needs.append(audit_bodies.needs_of_transactions(in_doubt, spark))
        return reduce(DataFrame.unionByName, needs)

    def _unneeded(self, suspected: Sequence[dict[str, Any]]) -> tuple[list[Fault], Rows]:
        """Return the large bodies that nothing needs: those of earlier epochs, and the others."""
        there = self._recheck.unneeded(row["id"] for row in suspected)
        newest = self._limits.epoch or 0
        before = self._last_before(newest) if not self._has_times and suspected else None
        orphaned: list[Fault] = []
        left: Rows = []
        for row in suspected:
            if row["id"] not in there:
                continue
            size = f"{row['bytes']:,} bytes in {row['pieces']:,} pieces"
            old = row["epoch"] < newest if row["epoch"] else before and row["id"] <= before
            if old:
                detail = f"nothing needs it, {size}, and the node that wrote it is live no more"
                keys = ("large-body-orphaned", "large", None, row["id"], None, None, row["epoch"])
                orphaned.append(Fault(*keys, detail))
            else:
                left.append(row)
        return orphaned, left

    def _last_before(self, epoch: int) -> int | None:
        """Return the last message of an earlier epoch; no body of this epoch has a lower id."""
        bounds = self._tables["messages"].bounds
        return max((one.last or 0 for one in bounds if (one.epoch or 0) < epoch), default=None)


def _written(rows: DataFrame, table: str) -> DataFrame:
    queue = F.col("queue_id") if "queue_id" in rows.columns else F.lit(None).cast("long")
    named = F.lit(table).alias("table")
    return rows.select(named, "seq", "id", queue.alias("queue_id"), "epoch", "written_at")


def _bound_and_lock(bindings: DataFrame, node_manager: DataFrame) -> tuple[list[BindingRow], Lock]:
    """Read all of BINDINGS and then the locks, in one task: the locks are not the older ones."""
    # Times as numbers: what is not of the calendar is compared, too.
    whole = bindings.withColumn("written_at", F.unix_micros("written_at"))
    locks = node_manager.select(
        "lock", "token", "fence_token", F.unix_micros("database_time").alias("now")
    )
    frames = {"bindings": whole, "locks": locks}
    found = collected_together(frames, in_one_task=True)
    bound = [_bound(row) for row in found["bindings"]]
    live = next((row for row in found["locks"] if row["lock"] == "live"), None)
    if live is None:
        return bound, Lock(None, None, None)
    return bound, Lock(live["fence_token"], live["token"], _time(live["now"]))


def _bound(values: dict[str, Any]) -> BindingRow:
    return BindingRow(**{**values, "written_at": _time(values["written_at"])})


def _time(micros: int | None) -> datetime | None:
    return None if micros is None else instant_at(micros)


def _history_faults(history: DataFrame, messages: DataFrame) -> list[DataFrame]:
    waiting = messages.where("kind IN ('message', 'reference')").select("seq")
    left = F.format_string("it left at %s", F.col("removed_at").cast("string"))
    sound = history.where("NOT coalesce(exists(findings, x -> x.fault = 'wrong-id'), false)")
    both = history.join(waiting, "seq", "left_semi")
    return [
        audit_messages.fault(both, "kept-and-waiting", left, "history"),
        audit_messages.repeated(sound, "kept-twice", "history"),
    ]
