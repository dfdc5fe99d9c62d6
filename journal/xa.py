"""Transactions in two phases (X/Open XA), on any journal.

A prepared transaction is one record of BINDINGS with all its changes. A commit applies them and
deletes the record, in one unit of the journal; a rollback deletes the record. So it survives
restarts and failovers as any binding does, is fenced as any unit is, and its messages have no place
in a queue before the commit. Messages that it acknowledges are withheld from consumers while it is
in doubt.
"""

import time
from collections.abc import Callable, Collection

from orthia.journal.errors import RecordTooLarge, TransactionError
from orthia.journal.journal import MessageJournal
from orthia.journal.model.changes import Body, MessageLocation
from orthia.journal.model.codec import PreparedTransaction, encode_prepared_transaction
from orthia.journal.model.unit import Done, Unit
from orthia.journal.model.xid import Xid

MAX_ID_BYTES = 64
"""The longest global transaction id and branch qualifier of X/Open XA."""


class XaTransactions:
    """The transactions in doubt of an opened journal; used on the journal's thread."""

    def __init__(
        self,
        journal: MessageJournal,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """Load the transactions that earlier nodes prepared; ``wall_ms`` is only for display."""
        self._journal = journal
        self._wall_ms = wall_ms
        self._in_doubt = {
            binding.xid: binding
            for binding in journal.bindings
            if isinstance(binding, PreparedTransaction)
        }
        self.withheld = {seq for one in self._in_doubt.values() for seq, *_ in one.deletes}
        """The seqs of messages that those acknowledge: nobody gets them. Whoever resolves one and
        has queues open sees to them."""

    @property
    def in_doubt(self) -> Collection[PreparedTransaction]:
        """The prepared transactions, neither committed nor rolled back, oldest first."""
        return self._in_doubt.values()

    def prepare(self, xid: Xid, unit: Unit, done: Done | None = None) -> None:
        """Store ``unit`` without applying it; ``done`` follows the commit of the record.

        The unit has messages and deletes only. Raises TransactionError if ``xid`` is in doubt
        already or longer than XA allows, RecordTooLarge, JournalClosed.
        """
        if xid in self._in_doubt:
            raise TransactionError(f"transaction {xid} is prepared already")
        for part in (xid.global_transaction_id, xid.branch_qualifier):
            if len(part) > MAX_ID_BYTES:
                raise TransactionError(f"transaction {xid} has a name of over {MAX_ID_BYTES} bytes")
        if unit.touches_bindings:
            raise TransactionError("queues and addresses cannot be made in a transaction")
        prepared = PreparedTransaction(
            self._journal.next_id(),
            xid,
            self._wall_ms(),
            tuple((tuple(queues), payload) for queues, payload in unit.messages),
            tuple((seq, (*body,) if body else None, large) for seq, body, large, _ in unit.deleted),
        )
        size = len(encode_prepared_transaction(prepared))
        if size > self._journal.max_record_bytes:
            raise RecordTooLarge(size, self._journal.max_record_bytes)
        self._journal.add_binding(prepared, done)
        self._in_doubt[xid] = prepared

    def commit(self, xid: Xid, done: Done | None = None) -> list[MessageLocation]:
        """Apply the prepared unit; return the location of each message in each of its queues.

        Raises TransactionError if ``xid`` is not in doubt, JournalClosed.
        """
        prepared = self.find(xid)
        unit = Unit(done)
        for queue_ids, payload in prepared.messages:
            unit.add_message(queue_ids, payload)
        for seq, body, large_id in prepared.deletes:
            shared = Body(*body) if body else None
            # The record does not show whether a message has a row of times; deleting a missing row
            # has no effect.
            unit.delete(MessageLocation(seq, shared, large_id, is_timed=True))
        unit.delete_transaction(prepared)
        locations = self._journal.append_unit(unit)
        del self._in_doubt[xid]
        return locations

    def rollback(self, xid: Xid, done: Done | None = None) -> None:
        """Discard the prepared unit; raises TransactionError, JournalClosed."""
        unit = Unit(done)
        unit.delete_transaction(self.find(xid))
        self._journal.append_unit(unit)
        del self._in_doubt[xid]

    def resolved(self, xid: Xid) -> None:
        """Note that a transaction is stored as committed or rolled back, by another unit."""
        self._in_doubt.pop(xid, None)

    def find(self, xid: Xid) -> PreparedTransaction:
        """Return a transaction in doubt; raises TransactionError."""
        prepared = self._in_doubt.get(xid)
        if prepared is None:
            raise TransactionError(f"transaction {xid} is not in doubt")
        return prepared
