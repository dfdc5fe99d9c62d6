"""Prepared transactions of a live node, as operators resolve them.

No client of STOMP prepares one: those there are come from an imported journal, or from whoever uses
the journal itself. Each is committed or rolled back in one unit of the journal, with all that the
queues have to note: what it sends enters them, and what it acknowledged, and was held back from
consumers, goes, or is delivered again. A node that dies in between leaves it in doubt, or resolved.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from orthia.broker.core.assembly import CoreParts
from orthia.broker.core.errors import NotLive
from orthia.broker.core.queue.queue import Queue
from orthia.broker.core.queue.taking import acknowledged_in_doubt, free, hold_back, is_known
from orthia.broker.core.routing.addresses import refuse_if_leaving
from orthia.broker.core.sending.plan import SendPlan
from orthia.broker.core.slices import GO_ON, Finding
from orthia.broker.management.errors import NotFound, NotPossible, WrongArgument
from orthia.broker.management.views import TransactionState, TransactionView
from orthia.broker.management.waiting import Waiting
from orthia.broker.quoting import quoted
from orthia.config.errors import OrthiaError
from orthia.journal.errors import CorruptRecord, JournalClosed, TransactionError
from orthia.journal.model.codec import PreparedTransaction
from orthia.journal.model.message import Message, decode_message
from orthia.journal.model.records import RemovalReason
from orthia.journal.model.unit import Unit
from orthia.journal.model.windows import StoredMessage, Window
from orthia.journal.model.xid import Xid

_AGAIN_MS = 10
_WINDOW_BYTES = 1024 * 1024


class _Acknowledged(NamedTuple):
    """A message that a transaction acknowledges."""

    queue: Queue
    queue_id: int
    message: StoredMessage


class InDoubt:
    """Shows and resolves prepared transactions; on the loop's thread."""

    def __init__(self, parts: CoreParts, waiting: Waiting) -> None:
        self._parts = parts
        self._journal = parts.journal
        self._transactions = parts.in_doubt
        self._waiting = waiting
        self._under_way: set[Xid] = set()

    def views(self) -> list[TransactionView]:
        """Return them, the oldest first."""
        return [_view(one) for one in self._transactions.in_doubt]

    async def commit(self, text: str) -> TransactionView:
        """Commit the transaction of an XID, and return what it was; raises BrokerError."""
        prepared = self._begin(text)
        try:
            acknowledged, queues = await self._found(prepared)
            with SendPlan(self._parts.context) as plan:
                for queue_ids, payload in prepared.messages:
                    record = _message(prepared, payload)
                    plan.move([queues[one] for one in queue_ids], record)
                for queue, _, message in acknowledged:
                    reason = RemovalReason.ACKNOWLEDGED
                    plan.take_out(queue, message.location, reason, message.record.large)
                plan.resolve(prepared)
                stored = self._waiting.future(bool)
                plan.apply(partial(stored.set, True), partial(_refuse, stored.fail, prepared))  # noqa: FBT003
            for one in acknowledged:
                hold_back(*one)
            await stored
            self._transactions.resolved(prepared.xid)
            for one in acknowledged:
                acknowledged_in_doubt(*one)
        finally:
            self._under_way.discard(prepared.xid)
        return _view(prepared)

    async def rollback(self, text: str) -> TransactionView:
        """Roll the transaction of an XID back, and return what it was; raises BrokerError."""
        prepared = self._begin(text)
        try:
            acknowledged, _ = await self._found(prepared)
            stored = self._waiting.future(bool)
            unit = Unit(partial(stored.set, True))  # noqa: FBT003
            unit.delete_transaction(prepared)
            try:
                self._journal.append_unit(unit)
            except JournalClosed as error:
                raise NotLive(str(error)) from None
            await stored
            self._transactions.resolved(prepared.xid)
            for queue, queue_id, message in acknowledged:
                if queue.is_leaving or queue.last_values is not None:
                    continue  # which value is the newest is known without it: the next node sees
                hold_back(queue, queue_id, message)
                self._transactions.withheld.discard(message.seq)
                free(queue, queue_id, message)
        finally:
            self._under_way.discard(prepared.xid)
        return _view(prepared)

    def _begin(self, text: str) -> PreparedTransaction:
        try:
            xid = Xid.parse(text)
        except ValueError as error:
            raise WrongArgument("transaction", f"transaction {error}") from None
        try:
            prepared = self._transactions.find(xid)
        except TransactionError:
            raise NotFound(
                "prepared transaction", text, ": it was resolved, or is open: its client has it"
            ) from None
        if xid in self._under_way:
            raise NotPossible(f"transaction {quoted(text)} is being resolved by somebody else")
        self._under_way.add(xid)
        return prepared

    async def _found(
        self, prepared: PreparedTransaction
    ) -> tuple[list[_Acknowledged], dict[int, Queue]]:
        """Return what it acknowledges, and the queues it needs by what is stored under."""
        try:
            queues = await self._waiting.steps(self._by_id())
            wanted = {one for ids, _ in prepared.messages for one in ids}
            acknowledged: list[_Acknowledged] = []
            for seq, *_ in prepared.deletes:
                answer = self._waiting.answer(int)
                self._journal.find_queue(seq, partial(_take_number, answer.set))
                queue_id = await answer
                if queue_id is None:
                    continue  # its row is gone, by an operator's hand: there is nothing to do
                wanted.add(queue_id)
                queue = self._queue(queues, prepared, queue_id)
                while not is_known(queue):
                    await self._pause()
                read = self._waiting.answer(Window)
                self._journal.read_window(
                    queue_id, seq - 1, seq, 1, _WINDOW_BYTES, partial(_take_window, read.set)
                )
                window = await read
                messages = [] if window is None else window.messages
                acknowledged += [_Acknowledged(queue, queue_id, one) for one in messages]
            self._parts.gate.refuse_if_stopped()
            for queue_id in wanted:
                self._queue(queues, prepared, queue_id)
        except BaseException:
            self._under_way.discard(prepared.xid)
            raise
        return acknowledged, queues

    @staticmethod
    def _queue(queues: dict[int, Queue], prepared: PreparedTransaction, queue_id: int) -> Queue:
        queue = queues.get(queue_id)
        if queue is None:
            raise NotPossible(
                f"transaction {prepared.xid} needs queue {queue_id}, which is not there any more"
            )
        refuse_if_leaving(queue)
        return queue

    def _by_id(self) -> Finding[dict[int, Queue]]:
        found: dict[int, Queue] = {}
        for queue in list(self._parts.book.queues.values()):
            found.update(dict.fromkeys(queue.log.ids, queue))
            yield GO_ON
        return found

    async def _pause(self) -> None:
        answer = self._waiting.answer(bool)
        self._parts.timers.call_later(_AGAIN_MS, partial(answer.set, True))  # noqa: FBT003
        await answer


def _message(prepared: PreparedTransaction, payload: bytes) -> Message:
    try:
        return decode_message(payload, prepared.transaction_id)
    except CorruptRecord as error:
        raise NotPossible(
            f"transaction {prepared.xid} has a message that cannot be read: {error}"
        ) from None


def _take_number(take: Callable[[int | None], None], found: int | OrthiaError | None) -> None:
    take(found if isinstance(found, int) else None)


def _take_window(take: Callable[[Window | None], None], found: Window | OrthiaError) -> None:
    take(found if isinstance(found, Window) else None)


def _refuse(
    fail: Callable[[Exception], None], prepared: PreparedTransaction, error: OrthiaError
) -> None:
    fail(NotPossible(f"transaction {prepared.xid} stays in doubt, the store refuses it: {error}"))


def _view(prepared: PreparedTransaction) -> TransactionView:
    return TransactionView(
        id=str(prepared.xid),
        state=TransactionState.PREPARED,
        connection=None,
        user=None,
        client_id=None,
        since_ms=prepared.prepared_ms,
        sends=len(prepared.messages),
        acknowledges=len(prepared.deletes),
        bytes=sum(len(payload) for _, payload in prepared.messages),
    )
