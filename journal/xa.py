"""Transactions in two phases (X/Open XA), on any journal.

A prepared transaction is one record of BINDINGS that holds all it would do. Committing it does that
and deletes the record, in one unit of the journal; rolling it back deletes the record. So it
survives restarts and failovers as any binding does, is fenced as any unit is, and its messages have
no place in a queue before they are committed. What it acknowledges is withheld from consumers as
long as it is in doubt.
"""

import time
from collections.abc import Callable, Collection

from orthia.journal.abc import MessageJournal
from orthia.journal.errors import RecordTooLarge, TransactionError
from orthia.journal.model.changes import Body, MessageLocation
from orthia.journal.model.codec import PreparedTransaction, encode_prepared_transaction
from orthia.journal.model.unit import Done, Unit
from orthia.journal.model.xid import Xid

MAX_ID_BYTES = 64
"""Of a global transaction id and of a branch qualifier, by X/Open XA."""


class XaTransactions:
    """The transactions in doubt of an opened journal; used on the journal's thread."""

    def __init__(
        self,
        journal: MessageJournal,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """Take over what earlier nodes prepared; ``wall_ms`` is only told to people."""
        self._journal = journal
        self._wall_ms = wall_ms
        self._in_doubt = {
            binding.xid: binding
            for binding in journal.bindings
            if isinstance(binding, PreparedTransaction)
        }

    @property
    def in_doubt(self) -> Collection[PreparedTransaction]:
        """What is prepared and neither committed nor rolled back, the oldest first."""
        return self._in_doubt.values()

    def prepare(self, xid: Xid, unit: Unit, done: Done | None = None) -> None:
        """Store what ``unit`` would do, without doing it; ``done`` follows the commit of that.

        A unit of messages and deletes only. Raises TransactionError if ``xid`` is in doubt already
        or longer than XA allows, RecordTooLarge, JournalClosed.
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
        """Do what was prepared; return where each message will be, in each of its queues.

        Raises TransactionError if ``xid`` is not in doubt, JournalClosed.
        """
        prepared = self._find(xid)
        unit = Unit(done)
        for queue_ids, payload in prepared.messages:
            unit.add_message(queue_ids, payload)
        for seq, body, large_id in prepared.deletes:
            shared = Body(*body) if body else None
            # What was prepared does not say whether it has a time; deleting one that is not there
            # does nothing.
            unit.delete(MessageLocation(seq, shared, large_id, is_timed=True))
        unit.delete_transaction(prepared)
        locations = self._journal.append_unit(unit)
        del self._in_doubt[xid]
        return locations

    def rollback(self, xid: Xid, done: Done | None = None) -> None:
        """Forget what was prepared; raises TransactionError, JournalClosed."""
        unit = Unit(done)
        unit.delete_transaction(self._find(xid))
        self._journal.append_unit(unit)
        del self._in_doubt[xid]

    def _find(self, xid: Xid) -> PreparedTransaction:
        prepared = self._in_doubt.get(xid)
        if prepared is None:
            raise TransactionError(f"transaction {xid} is not in doubt")
        return prepared
