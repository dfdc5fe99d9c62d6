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
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import Any, Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

from orthia.journal.model.records import ID_COUNTER_SEQ
from orthia.pipeline.jobs import audit_bodies, audit_messages, backup
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
from orthia.pipeline.sources.inputs import ExportInputs, Inputs
from orthia.pipeline.sources.recheck import Recheck
from orthia.pipeline.times import instant_at

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
"""Faults that are checked again at the end."""
_KEPT: Final = StorageLevel.DISK_ONLY
"""On disk: the journal is read once, and memory does not grow with it."""


@dataclass(frozen=True)
class Audit:
    """The result of an audit; its DataFrames are valid within the block of ``examined``."""

    counts: dict[str, int]
    """The number of faults by name."""
    listed: list[Fault]
    """The first of them."""
    messages: DataFrame
    bindings: DataFrame
    unneeded: list[dict[str, Any]]
    """Large bodies that nothing needs now, left by running uploads or by a node that died."""


@contextmanager
def examined(
    inputs: Inputs,
    *,
    records: bool = True,
    bodies: bool = True,
    history: bool = False,
    listed: int = 1_000,
) -> Iterator[Audit]:
    """Audit a journal, and list the first ``listed`` faults.

    Without ``records`` only keys are checked, and no large body; without ``bodies`` only the keys
    of their pieces. ``history`` includes the history that journal-retention keeps.
    """
    with ExitStack() as stack:

        def kept(frame: DataFrame) -> DataFrame:
            stack.callback(frame.unpersist)
            persisted = frame.persist(_KEPT)
            persisted.count()
            return persisted

        left = kept(inputs.audited("history", content=records)) if history else None
        messages = kept(inputs.audited("messages", content=records))
        pieces = inputs.pieces(content=bodies) if records else None
        if pieces is not None:
            pieces = kept(pieces)
        bindings = kept(inputs.audited("bindings"))
        found = _Examination(inputs, messages, bindings, left, pieces)
        certain = kept(found.certain())
        counts = Counter[str]()
        for row in certain.groupBy("fault").count().collect():
            counts[row["fault"]] += row["count"]
        first = [Fault(*row) for row in certain.orderBy("fault", "seq").limit(listed).collect()]
        suspects = [*found.suspects(), *_changed(inputs, bodies=bodies and records)]
        counts.update(one.fault for one in suspects)
        ordered = sorted([*first, *suspects], key=lambda one: (one.fault, one.seq or 0))
        yield Audit(dict(counts), ordered[:listed], messages, bindings, found.unneeded)


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
        messages: DataFrame,
        bindings: DataFrame,
        history: DataFrame | None,
        pieces: DataFrame | None,
    ) -> None:
        self._messages = messages
        self._bindings = bindings
        self._history = history
        self._pieces = pieces
        self._recheck: Recheck = inputs.recheck()
        self._bound = [_bound(row) for row in _collectable(bindings).collect()]
        self._lock = _lock(inputs.node_manager())
        self._has_times = inputs.has_times
        self._has_links = inputs.has_links
        self._queues = bindings.where("type LIKE 'queue%'").select(
            F.col("seq").alias("queue_id"), "name", "address"
        )
        # A corrupt binding has its own fault; its messages do not count as without a queue.
        wrong = bindings.where("findings IS NOT NULL")
        named = wrong.select(F.col("id").alias("queue_id")).union(wrong.select("seq"))
        self._bound_ids = self._queues.select("queue_id").union(named).distinct()
        self.unneeded: list[dict[str, Any]] = []
        self._limits, self._known = self._find_limits()

    def _find_limits(self) -> tuple[Limits, list[Fault]]:
        messages, counter = self._messages, counter_of(self._bound)
        epochs = [row["epoch"] for row in messages.select("epoch").distinct().collect()]
        newest, faults = epoch_limit(self._lock, counter, [one for one in epochs if one])
        below = above = 0
        if counter is not None and counter.id is not None:
            is_above = F.count_if(F.col("seq") > counter.id)
            (found,) = messages.agg(is_above.alias("above"), F.count("*").alias("rows")).collect()
            above = found["above"] + sum(one.seq > counter.id for one in self._bound)
            below = found["rows"] + len(self._bound) - 1 - above
        is_used = bool(epochs or self._bound)
        reserved, more = id_limit(counter, above, below, is_used=is_used)
        now = self._lock.now
        latest = None if now is None else now + CLOCK_TOLERANCE
        limits = Limits(newest, reserved, latest)
        return limits, [*faults, *more, *binding_faults(self._bound, limits)]

    def certain(self) -> DataFrame:
        """Return the faults that no concurrent work can explain."""
        messages, history, limits = self._messages, self._history, self._limits
        found = [
            audit_messages.of_single_rows(messages, limits, "messages", has_times=self._has_times),
            audit_messages.bodies_in_queues(messages),
            audit_messages.uneven_references(messages),
            audit_messages.duplicates(messages),
            audit_messages.transactions(messages),
        ]
        own = self._bindings.where(F.col("seq") != ID_COUNTER_SEQ)
        written = [_written(messages, "messages"), _written(own, "bindings")]
        if history is not None:
            found.append(
                audit_messages.of_single_rows(history, limits, "history", has_times=self._has_times)
            )
            found += _history_faults(history, messages)
            written.append(_written(history, "history"))
        known = [*self._known]
        for rows, table in ((messages, "messages"), (history, "history")):
            if rows is not None:
                misaddressed = audit_messages.misaddressed(rows, self._queues)
                frame, misbound = audit_messages.wrong_addresses(misaddressed, rows, table)
                known += [one for one in misbound if one not in known]
                found += [] if frame is None else [frame]
        frame = audit_messages.out_of_order(reduce(DataFrame.unionByName, written), limits)
        found += [] if frame is None else [frame]
        found.append(audit_messages.told(known, messages))
        return reduce(DataFrame.unionByName, found)

    def suspects(self) -> list[Fault]:
        """Return the faults that concurrent work could explain and that a second check confirms."""
        messages, recheck = self._messages, self._recheck
        found = (
            audit_messages.unbound_queues(messages, self._bound_ids),
            audit_messages.orphaned_references(messages),
            audit_messages.orphaned_bodies(messages),
        )
        rows = reduce(DataFrame.unionByName, found).limit(_MOST_SUSPECTS).collect()
        suspected = [Fault(*row) for row in rows]
        there = recheck.messages(one.seq for one in suspected if one.seq is not None)
        still = [one for one in suspected if one.seq in there]
        still += self._of_attempts()
        still += self._of_transactions()
        if self._pieces is not None:
            still += self._of_bodies(self._pieces)
        return still

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
        wanted = [seq for one in in_doubt for seq in one.deletes]
        there = frozenset(self._recheck.messages(wanted))
        queues = frozenset(row["queue_id"] for row in self._bound_ids.collect())
        suspected = [f for one in in_doubt for f in transaction_faults(one, queues, there)]
        waiting = self._recheck.bindings(one.seq for one in suspected if one.seq is not None)
        return [one for one in suspected if one.seq in waiting]

    def _of_bodies(self, pieces: DataFrame) -> list[Fault]:
        needs = audit_bodies.needs_of_rows(self._messages, "messages")
        if self._history is not None:
            needs = needs.unionByName(audit_bodies.needs_of_rows(self._history, "history"))
        spark = self._messages.sparkSession
        needs = needs.unionByName(audit_bodies.needs_of_transactions(self._bound, spark))
        found = audit_bodies.damaged(needs, pieces)
        if self._has_links:  # in files the journal itself says what needs a body
            found = found.unionByName(audit_bodies.unlinked(needs, pieces))
        suspected = found.limit(_MOST_SUSPECTS).collect()
        still: list[Fault] = []
        for table in ("messages", "history", "bindings"):
            mine = [Fault(*row[:-1]) for row in suspected if row["needed_by"] == table]
            ask = getattr(self._recheck, table)
            there = ask(one.seq for one in mine if one.seq is not None)
            still += [one for one in mine if one.seq in there]
        return [*still, *self._of_unneeded(audit_bodies.unneeded(needs, pieces))]

    def _of_unneeded(self, bodies: DataFrame) -> list[Fault]:
        suspected = bodies.limit(_MOST_SUSPECTS).collect()
        there = self._recheck.unneeded(row["id"] for row in suspected)
        newest = self._limits.epoch or 0
        before = self._last_before(newest) if not self._has_times and suspected else None
        found = []
        for row in suspected:
            if row["id"] not in there:
                continue
            size = f"{row['bytes']:,} bytes in {row['pieces']:,} pieces"
            old = row["epoch"] < newest if row["epoch"] else before and row["id"] <= before
            if old:
                detail = f"nothing needs it, {size}, and the node that wrote it is live no more"
                found.append(
                    Fault(
                        "large-body-orphaned",
                        "large",
                        None,
                        row["id"],
                        None,
                        None,
                        row["epoch"],
                        detail,
                    )
                )
            else:
                self.unneeded.append(row.asDict())
        return found

    def _last_before(self, epoch: int) -> int | None:
        """Return the last message of an earlier epoch; no body of this epoch has a lower id."""
        earlier = self._messages.where(F.col("epoch") < epoch).agg(F.max("seq").alias("last"))
        (found,) = earlier.collect()
        last: int | None = found["last"]
        return last


def _written(rows: DataFrame, table: str) -> DataFrame:
    queue = F.col("queue_id") if "queue_id" in rows.columns else F.lit(None).cast("long")
    named = F.lit(table).alias("table")
    return rows.select(named, "seq", "id", queue.alias("queue_id"), "epoch", "written_at")


def _collectable(bindings: DataFrame) -> DataFrame:
    """Convert times to numbers: ``collect`` returns a time in the machine's time zone."""
    return bindings.withColumn("written_at", F.unix_micros("written_at"))


def _bound(row: Any) -> BindingRow:
    values = row.asDict()
    micros = values.pop("written_at")
    return BindingRow(**values, written_at=_time(micros))


def _time(micros: int | None) -> datetime | None:
    return None if micros is None else instant_at(micros)


def _lock(node_manager: DataFrame) -> Lock:
    rows = node_manager.select(
        "lock", "token", "fence_token", F.unix_micros("database_time").alias("now")
    ).collect()
    live = next((row for row in rows if row["lock"] == "live"), None)
    if live is None:
        return Lock(None, None, None)
    return Lock(live["fence_token"], live["token"], _time(live["now"]))


def _history_faults(history: DataFrame, messages: DataFrame) -> list[DataFrame]:
    waiting = messages.where("kind IN ('message', 'reference')").select("seq")
    left = F.format_string("it left at %s", F.col("removed_at").cast("string"))
    sound = history.where("NOT coalesce(exists(findings, x -> x.fault = 'wrong-id'), false)")
    both = history.join(waiting, "seq", "left_semi")
    return [
        audit_messages.fault(both, "kept-and-waiting", left, "history"),
        audit_messages.repeated(sound, "kept-twice", "history"),
    ]
