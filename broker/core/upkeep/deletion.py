"""Deleting a queue of a running node, with what is in it.

| step     | what is done                                                                 |
|----------|------------------------------------------------------------------------------|
| asked    | permissions are checked; without force a queue that is in use is kept        |
| leaving  | no message and no consumer gets there any more; its consumers are ended      |
| settling | messages that were on their way are stored, and are in the queue             |
| emptying | its messages are deleted from the store, a window at a time                  |
| unbound  | its binding is deleted and its name is free; with the last queue of an       |
|          | address go the address' duplicate ids                                        |

The binding goes last: a node that dies in between leaves a queue with fewer messages, which can be
deleted again. Other queues keep the messages they share with it. With retention the history has its
messages, as ``deleted``.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

from orthia.broker.core.api import Done
from orthia.broker.core.errors import DestinationRefused, QueueInUse
from orthia.broker.core.identity import Principal
from orthia.broker.core.limits.memory import size_in_store
from orthia.broker.core.queue.queue import Queue
from orthia.broker.core.queue.reader import Span
from orthia.broker.core.queue.refill import WINDOW_MESSAGES
from orthia.broker.core.routing.addresses import AddressBook, refuse_if_leaving
from orthia.broker.core.sending.duplicates import DuplicateIds
from orthia.broker.quoting import quoted
from orthia.broker.security.permissions import Security
from orthia.journal.errors import JournalClosed
from orthia.journal.journal import MessageJournal
from orthia.journal.model.changes import MessageLocation
from orthia.journal.model.records import RemovalReason
from orthia.journal.model.unit import Unit
from orthia.journal.model.windows import Window
from orthia.journal.xa import XaTransactions

LOGGER = logging.getLogger("orthia.broker")
_WINDOW_BYTES = 4 * 1024 * 1024

_NOBODY: Final = Principal("the broker", frozenset(), unrestricted=True)

Deleted = Callable[[int], None]
"""Gets the number of messages that went with the queue."""


class Deletions:
    """Deletes queues; on the loop's thread."""

    def __init__(
        self,
        journal: MessageJournal,
        addresses: AddressBook,
        security: Security,
        duplicates: DuplicateIds,
        in_doubt: XaTransactions,
    ) -> None:
        self._in_doubt = in_doubt
        self._journal = journal
        self._addresses = addresses
        self._security = security
        self._duplicates = duplicates

    def delete(
        self,
        principal: Principal,
        name: str,
        *,
        force: bool,
        done: Deleted,
    ) -> None:
        """Begin to delete a queue, and call ``done`` at the end; raises BrokerError if it stays.

        Without ``force`` a queue stays if it has a consumer or a message, also one that is on its
        way or may come back.
        """
        queue = self._queue_to_delete(principal, name)
        self._refuse_if_in_doubt(queue)
        if not force:
            _refuse_if_used(queue)
        self._begin(queue, principal, logging.WARNING, done)

    def _queue_to_delete(self, principal: Principal, name: str) -> Queue:
        """Return the queue if a client may delete it; raises DestinationRefused, NotAuthorized."""
        queue = self._addresses.queues.get(name)
        if queue is None:
            raise DestinationRefused(f"there is no queue {quoted(name)}")
        self._check_delete(principal, queue)
        address = self._addresses.address(queue.address)
        same = (one for one in (*address.anycast_queues, *address.multicast_queues))
        is_last = sum(one.routing_type is queue.routing_type for one in same) == 1
        if queue in address.schedules:
            return queue
        if is_last and queue.routing_type not in address.configured:
            self._security.check(principal, "deleteAddress", queue.address)
        return queue

    def _check_delete(self, principal: Principal, queue: Queue) -> None:
        """Raise NotAuthorized or DestinationRefused if a client must not delete a queue."""
        if queue.durable:
            self._security.check(principal, "deleteDurableQueue", queue.address, queue.name)
        else:
            self._security.check(principal, "deleteNonDurableQueue", queue.address, queue.name)
        refuse_if_leaving(queue)
        if queue.name in self._addresses.rules.queues:
            raise DestinationRefused(
                f"queue {quoted(queue.name)} is configured, and would be created again at the next"
                " start: remove it first from broker.xml of every node, which they notice by"
                " themselves (configuration-file-refresh-period); a purge deletes only its messages"
            )

    def end_subscription(self, principal: Principal, queue: Queue, done: Deleted) -> None:
        """Begin to delete a durable subscription that nobody consumes; raises BrokerError."""
        self._check_delete(principal, queue)
        self._refuse_if_in_doubt(queue)
        if queue.consumers:
            raise QueueInUse(
                f"durable subscription {quoted(queue.name)} has {queue.consumers} consumers: it is"
                " ended once the others have unsubscribed without its name, or disconnected"
            )
        self._begin(queue, principal, logging.INFO, done)

    def end_temporary(self, queue: Queue) -> None:
        """Delete a temporary queue whose connection is over."""
        self._begin(queue, _NOBODY, logging.DEBUG, lambda _: None)

    def reap(self, queue: Queue, may_go: Callable[[Queue], bool]) -> None:
        """Delete a queue that nobody needs, once the store has confirmed that it is empty."""
        try:
            self._refuse_if_in_doubt(queue)
        except QueueInUse:
            return
        if queue.depth:
            self._begin(queue, _NOBODY, logging.INFO, lambda _: None)
            return
        self._look_at(queue, may_go, list(queue.log.ids))

    def _look_at(self, queue: Queue, may_go: Callable[[Queue], bool], unlooked: list[int]) -> None:
        queue.reader.read(
            Span(unlooked.pop(), 0, self._journal.last_committed_seq),
            1,
            _WINDOW_BYTES,
            partial(self._looked_at, queue, may_go, unlooked),
        )

    def _looked_at(
        self,
        queue: Queue,
        may_go: Callable[[Queue], bool],
        unlooked: list[int],
        window: Window | None,
    ) -> None:
        if window is None:
            return  # the next scan tries again
        is_empty = window.exhausted and not window.messages and not window.corrupt
        if not is_empty or queue.depth or not may_go(queue):
            return
        if unlooked:
            self._look_at(queue, may_go, unlooked)
            return
        # At once, not in the steps of a deletion: so no client finds it leaving.
        unit = Unit()
        self._addresses.withdraw(queue)
        _unbind(unit, queue, self._addresses, self._duplicates)
        try:
            self._journal.append_unit(unit)
        except JournalClosed:
            return  # this node is ending
        self._addresses.forget(queue)
        queue.is_leaving = True
        LOGGER.info("queue %s is deleted: nobody uses it (auto-delete-queues)", quoted(queue.name))

    def end_ids(self, addresses: Iterable[str], done: Done) -> None:
        """Forget duplicate ids of addresses that nobody needs, in one unit; ``done`` follows."""
        unit = Unit(done)
        for address in addresses:
            _end_ids(unit, address, self._duplicates)
        self._append(unit)

    def when_stored(self, done: Done) -> None:
        """Call ``done`` once everything that is on its way is stored."""
        self._append(Unit(done, behind_all=True))

    def _append(self, unit: Unit) -> None:
        try:
            self._journal.append_unit(unit)
        except JournalClosed:
            return  # this node is ending: the next one does the rest

    def delete_left_over(self, queue: Queue) -> None:
        """Delete a queue that is not durable, of an earlier node."""
        queue.is_leaving = True
        context = (self._journal, self._addresses, self._duplicates)
        _Deletion(queue, _NOBODY.name, logging.DEBUG, *context, lambda _: None).begin()

    def _begin(self, queue: Queue, principal: Principal, level: int, done: Deleted) -> None:
        self._addresses.withdraw(queue)
        queue.leave(f"queue {quoted(queue.name)} is deleted")
        context = (self._journal, self._addresses, self._duplicates)
        _Deletion(queue, principal.name, level, *context, done).begin()

    def _refuse_if_in_doubt(self, queue: Queue) -> None:
        """Raise QueueInUse if a transaction in doubt needs a queue: it may still be committed."""
        for prepared in self._in_doubt.in_doubt:
            if prepared.deletes or any(
                one in ids for ids, _ in prepared.messages for one in queue.log.ids
            ):
                raise QueueInUse(
                    f"transaction {prepared.xid} is in doubt, and may need queue"
                    f" {quoted(queue.name)}: commit it or roll it back first"
                )


def _refuse_if_used(queue: Queue) -> None:
    holds = []
    if queue.consumers:
        holds.append(f"{queue.consumers} consumers")
    if queue.depth:
        holds.append(f"{queue.depth} messages")
    elif any(cursor.staying for _, cursor in queue.log.cursors()):
        holds.append("messages that cannot be read")
    elif not queue.is_counted:
        holds.append("perhaps messages, which this node has not counted yet")
    elif queue.is_expecting:
        holds.append("a message on its way, or one that may come back")
    if holds:
        raise QueueInUse(
            f"queue {quoted(queue.name)} has {' and '.join(holds)}: it is deleted by force only,"
            " and then its messages are gone"
        )


class _Deletion:
    """The deletion of one queue that nobody uses any more."""

    def __init__(
        self,
        queue: Queue,
        user: str,
        level: int,
        journal: MessageJournal,
        addresses: AddressBook,
        duplicates: DuplicateIds,
        done: Deleted,
    ) -> None:
        self._queue = queue
        self._user = user
        self._level = level
        self._journal = journal
        self._addresses = addresses
        self._duplicates = duplicates
        self._done = done
        self._left = list(queue.log.ids)
        """The ids that its messages are stored under and that are not empty yet."""
        self._after_seq = 0
        self._count = 0

    def begin(self) -> None:
        """Wait for what is on its way: this unit is stored behind it."""
        self._append(Unit(self._settled, behind_all=True))

    def _settled(self) -> None:
        self._count = self._queue.forget_memory()
        self._read_on()

    def _read_on(self) -> None:
        self._queue.reader.read(
            Span(self._left[-1], self._after_seq, self._journal.last_committed_seq),
            WINDOW_MESSAGES,
            _WINDOW_BYTES,
            self._empty,
            self._read_on,
        )

    def _empty(self, window: Window | None) -> None:
        if window is None:
            return
        locations = list(_locations(window))
        if not locations and window.exhausted:
            self._after_seq = 0
            self._left.pop()
            if self._left:
                self._read_on()
            else:
                self._unbind()
            return
        queue_id = self._left[-1]
        unit = Unit(self._read_on)
        for location in locations:
            unit.delete(location, RemovalReason.DELETED)
        for message in window.messages:
            self._queue.log.release_deleted(queue_id, message.seq, size_in_store(message.record))
        for corrupt in window.corrupt:
            self._queue.log.release_deleted(queue_id, corrupt.seq, 0)  # its size is unknown
        self._count += len(locations)
        self._after_seq = window.next_after_seq
        self._append(unit)

    def _unbind(self) -> None:
        unit = Unit(self._unbound)
        _unbind(unit, self._queue, self._addresses, self._duplicates)
        self._append(unit)

    def _unbound(self) -> None:
        self._addresses.forget(self._queue)
        LOGGER.log(
            self._level,
            "queue %s was deleted by user %s, with %d messages",
            quoted(self._queue.name),
            quoted(self._user),
            self._count,
        )
        self._done(self._count)

    def _append(self, unit: Unit) -> None:
        try:
            self._journal.append_unit(unit)
        except JournalClosed:
            return  # this node is ending: the queue stays, with the rest of its messages


def _unbind(unit: Unit, queue: Queue, addresses: AddressBook, duplicates: DuplicateIds) -> None:
    """Delete the bindings of a withdrawn queue, and the ids of an address with its last queue.

    Ids stay if the address has scheduled messages, which may have some of them.
    """
    for queue_id in queue.log.ids:
        unit.delete_binding(queue_id)
    if not (addresses.has_queues(queue.address) or addresses.has_schedules(queue.address)):
        _end_ids(unit, queue.address, duplicates)


def _end_ids(unit: Unit, address: str, duplicates: DuplicateIds) -> None:
    ids = duplicates.forget(address)
    if ids is not None:
        unit.delete_id_cache(ids.cache_id)


def _locations(window: Window) -> Iterator[MessageLocation]:
    # Timed in any case: attempts may have been stored since the window was read.
    yield from (message.location._replace(is_timed=True) for message in window.messages)
    # What cannot be read goes too: without its queue nobody could ever find it.
    yield from (MessageLocation(corrupt.seq, is_timed=True) for corrupt in window.corrupt)
