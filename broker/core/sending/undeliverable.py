# mypyc compiles this module.
"""What becomes of messages that cannot be delivered: expired, or delivered too often in vain.

In the transaction that takes such a message out of its queue it goes to the expiry address or the
dead-letter address. Where ``broker.xml`` names none that is the default one: nothing is dropped but
where an empty address says so. A dead letter that has nowhere else to go stays in its queue.

Where ``auto-create-dead-letter-resources`` or ``auto-create-expiry-resources`` is set it goes to
the queue of its own address there, and to what else of that address takes it.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from orthia.broker.core.api import MessageReference
from orthia.broker.core.errors import BrokerError
from orthia.broker.core.queue.queue import Queue
from orthia.broker.core.queue.taken import ExpiryLook
from orthia.broker.core.sending.placing import Placed
from orthia.config.addresses import DEFAULT_DEAD_LETTER_ADDRESS, DEFAULT_EXPIRY_ADDRESS, DROP
from orthia.journal.model.message import Message
from orthia.journal.model.records import RemovalReason

LOGGER = logging.getLogger("orthia.broker")


PlacesFor = Callable[[Queue, str, RemovalReason, Message], Sequence[Placed]]
"""Returns what queues get at an address of a message that a queue cannot deliver: never none."""


class _Relocate(Protocol):
    """Takes a message out of its queue for good, in one unit of the journal."""

    def __call__(
        self,
        queue: Queue,
        reference: MessageReference,
        reason: RemovalReason,
        placed: Sequence[Placed],
        refused: Callable[[], None],
    ) -> None:
        """Put it where it is ``placed``, if anywhere; or raise BrokerError and do nothing.

        ``reference`` is what ``queue`` has of it until then.
        ``refused`` is called if the store does not take it: then nothing was done either.
        """


class Undeliverable:
    """Moves what cannot be delivered, or drops it; on the loop's thread."""

    def __init__(
        self,
        *,
        is_running: Callable[[], bool],
        places_for: PlacesFor,
        relocate: _Relocate,
    ) -> None:
        self._is_running = is_running
        self._places_for = places_for
        self._relocate = relocate
        self.look = ExpiryLook()
        """How far what has expired is looked for."""

    def expire(self, queue: Queue, reference: MessageReference) -> None:
        """Move an expired message to the expiry address, or drop it."""
        target = queue.settings.expiry_address
        if queue.counters.expired == 1:
            LOGGER.warning(
                "messages of queue %s expire and are %s (said once for each queue)",
                queue.name,
                _what_becomes("expiry-address", target, DEFAULT_EXPIRY_ADDRESS),
            )
        if self._is_running():  # else its row stays, and the next live node decides anew
            refused = partial(self._not_expired, queue, reference)
            if not self._move(queue, reference, target, RemovalReason.EXPIRED, refused):
                refused()

    def dead_letter(self, queue: Queue, reference: MessageReference) -> bool:
        """Move a message that was delivered too often, or drop it; False if it has to stay."""
        if not self._is_running():
            return False
        target = queue.settings.dead_letter_address
        is_first = not queue.counters.dead_lettered
        if target in (queue.name, queue.address):
            if is_first:
                LOGGER.warning(
                    "message %d of queue %s was delivered %d times in vain, and stays: the queue is"
                    " its own dead-letter-address (said once for each queue)",
                    reference.seq,
                    queue.name,
                    reference.attempts,
                )
            queue.counters.dead_lettered += 1
            return False
        if is_first:
            LOGGER.warning(
                "message %d of queue %s was delivered %d times in vain (max-delivery-attempts) and"
                " is %s (said once for each queue)",
                reference.seq,
                queue.name,
                reference.attempts,
                _what_becomes("dead-letter-address", target, DEFAULT_DEAD_LETTER_ADDRESS),
            )
        refused = partial(self._not_dead_lettered, queue, reference)
        return self._move(queue, reference, target, RemovalReason.DEAD_LETTERED, refused)

    def _not_expired(self, queue: Queue, reference: MessageReference) -> None:
        queue.counters.expired -= 1
        queue.take_back(reference)

    def _not_dead_lettered(self, queue: Queue, reference: MessageReference) -> None:
        queue.counters.dead_lettered -= 1
        queue.take_back(reference)

    def _move(
        self,
        queue: Queue,
        reference: MessageReference,
        target: str,
        reason: RemovalReason,
        refused: Callable[[], None],
    ) -> bool:
        try:
            origin = {
                "_AMQ_ORIG_ADDRESS": reference.record.address,
                "_AMQ_ORIG_QUEUE": queue.name,
                "_AMQ_ORIG_MESSAGE_ID": str(reference.seq),
            }
            if reason is RemovalReason.EXPIRED:
                origin["_AMQ_ACTUAL_EXPIRY"] = str(reference.record.expires_ms)
            record = reference.record.relocated(target, origin)
            places = () if target == DROP else self._places_for(queue, target, reason, record)
            self._relocate(queue, reference, reason, places, refused)
        except BrokerError as error:
            LOGGER.error(  # noqa: TRY400 - the reason is all there is to say
                "message %d of queue %s is %s, and cannot be moved to %s: %s; it stays stored",
                reference.seq,
                queue.name,
                reason.value,
                target,
                error,
            )
            return False
        return True


def _what_becomes(element: str, target: str, default: str) -> str:
    if target == DROP:
        return f"dropped, as the empty {element} says"
    return f"moved to {element} {target}{' (the default)' if target == default else ''}"
