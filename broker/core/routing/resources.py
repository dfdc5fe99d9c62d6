"""Where undeliverable messages go, and queues for those of one address: Artemis' ``resources``.

With ``auto-create-dead-letter-resources`` a dead letter of address ``A`` goes to a queue ``DLQ.A``
of the dead-letter address, which the first one creates; with ``auto-create-expiry-resources`` an
expired message goes to ``EXP.A`` of the expiry address. A filter of such a queue takes the messages
of its address only. No client may create a queue of such a name: it would get these messages.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product

from orthia.broker.core.destinations import is_name
from orthia.broker.core.errors import BrokerError, DestinationRefused
from orthia.broker.core.limits.creations import QueueCreations
from orthia.broker.core.queue.queue import Queue
from orthia.broker.core.routing.address import BROKER
from orthia.broker.core.routing.address_expiry import as_undeliverable
from orthia.broker.core.routing.addresses import AddressBook, refuse_if_leaving
from orthia.broker.core.routing.router import Routed, filter_of
from orthia.broker.core.slices import found
from orthia.broker.quoting import quoted
from orthia.config.address_settings import AddressSettings, RoutingType
from orthia.config.addresses import ResolvedAddressSettings
from orthia.config.settings import Settings
from orthia.journal.model.message import Message
from orthia.journal.model.records import RemovalReason

LOGGER = logging.getLogger("orthia.broker")


class UndeliverableQueues:
    """Finds the queues for undeliverable messages; on the loop's thread."""

    def __init__(
        self, book: AddressBook, creations: QueueCreations, time_ms: Callable[[], int]
    ) -> None:
        self._book = book
        self._time_ms = time_ms
        self._creations = creations

    def route(
        self, queue: Queue, target: str, reason: RemovalReason, record: Message
    ) -> Sequence[Routed]:
        """Return which queues get a message that ``queue`` cannot deliver: never none.

        ``record`` is what address ``target`` gets; the diverts of the address apply to it.
        Raises BrokerError.
        """
        if self._book.rules.changes_messages:
            record = as_undeliverable(record, self._book.settings_of(target), self._time_ms())
        queues = self._queues_for(queue, target, reason, record)
        router = self._book.address(target).router
        if router is None:
            return [Routed(record, queues, ())]
        diverted, is_taken = found(router.diverted(record, BROKER, queues[0].routing_type))
        routed = [Routed(one.record, one.queues, ()) for one in diverted if one.queues]
        return routed if is_taken and routed else [Routed(record, queues, ()), *routed]

    def _queues_for(
        self, queue: Queue, target: str, reason: RemovalReason, record: Message
    ) -> Sequence[Queue]:
        own = None
        if queue.address != target and queue.address not in self._book.temporary:
            own = own_queue_name(queue.settings, queue.address, reason)
        if own is None:
            return self._book.ensure_queues(target, record)
        try:
            first = self._own_queue(own, target, queue)
        except BrokerError as error:
            counters, is_expired = queue.counters, reason is RemovalReason.EXPIRED
            if counters.expired == 1 if is_expired else not counters.dead_lettered:
                LOGGER.warning(
                    "messages of queue %s that are %s go to address %s without a queue of their own"
                    " there: %s (logged once for each queue)",
                    queue.name,
                    reason.value,
                    target,
                    error,
                )
            return self._book.ensure_queues(target, record)
        others = self._book.address(target).takers(record)
        return [first, *(one for one in others if one is not first)]

    def _own_queue(self, name: str, target: str, of: Queue) -> Queue:
        """Return the queue for undeliverable messages of queue ``of``, created if there is none.

        It counts as created by the user who created ``of``; raises BrokerError.
        """
        book = self._book
        queue, text = book.queues.get(name), filter_of(of.address)
        if queue is None:
            self._creations.refuse_for_broker(of.user, quoted(name))
            options = replace(book.address(target).options_of_new(name), filter=text)
            return book.create_queue(
                name,
                target,
                RoutingType.MULTICAST,
                auto_created=True,
                user=of.user,
                options=options,
            )
        binding = book.bindings[name]
        is_ours = not binding.auto_created or binding.options.filter == text
        if queue.address != target or not is_ours:
            raise DestinationRefused(
                f"there is a queue {quoted(name)} of address {quoted(queue.address)} that was not"
                " created for that"
            )
        refuse_if_leaving(queue)
        return queue


def own_queue_name(
    settings: ResolvedAddressSettings, address: str, reason: RemovalReason
) -> str | None:
    """Return the name of the queue for undeliverable messages of an address; None without one.

    An address whose queue's name would be too long has none.
    """
    if reason is RemovalReason.EXPIRED:
        if not settings.auto_create_expiry_resources:
            return None
        name = f"{settings.expiry_queue_prefix}{address}{settings.expiry_queue_suffix}"
    else:
        if not settings.auto_create_dead_letter_resources:
            return None
        name = f"{settings.dead_letter_queue_prefix}{address}{settings.dead_letter_queue_suffix}"
    return name if is_name(name) else None


class ReservedNames:
    """The names that such queues may have."""

    def __init__(self, settings: Settings) -> None:
        self._ends = list(_ends(settings.address_settings))

    def has(self, name: str) -> bool:
        """Return whether the broker may create a queue of that name for undeliverable messages."""
        return any(
            len(name) > len(prefix) + len(suffix)
            and name.startswith(prefix)
            and name.endswith(suffix)
            for prefix, suffix in self._ends
        )


def _ends(settings: tuple[AddressSettings, ...]) -> Iterator[tuple[str, str]]:
    """Yield each prefix with each suffix: settings inherit them one by one."""
    default = ResolvedAddressSettings()
    for is_on, prefix, suffix in (
        (
            "auto_create_dead_letter_resources",
            "dead_letter_queue_prefix",
            "dead_letter_queue_suffix",
        ),
        ("auto_create_expiry_resources", "expiry_queue_prefix", "expiry_queue_suffix"),
    ):
        if any(getattr(one, is_on) for one in settings):
            every = [
                {getattr(default, name), *(getattr(one, name) for one in settings)} - {None}
                for name in (prefix, suffix)
            ]
            yield from (ends for ends in product(*every) if any(ends))
