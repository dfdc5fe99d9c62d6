# mypyc compiles this module.
"""Messages that cannot be delivered: they expired, or their delivery failed too often.

The transaction that takes such a message out of its queue moves it to the expiry address or the
dead-letter address. If ``broker.xml`` names none that is the default one; only an empty address
drops the message. A dead letter that has nowhere else to go stays in its queue.

With ``auto-create-dead-letter-resources`` or ``auto-create-expiry-resources`` it goes to the queue
for its address there, and to the other queues of that address that take it.
"""

import logging
from collections.abc import Sequence
from functools import partial

from orthia.broker.core.api import MessageReference
from orthia.broker.core.errors import BrokerError
from orthia.broker.core.queue.gate import DeliveryGate
from orthia.broker.core.queue.queue import Queue
from orthia.broker.core.queue.taken import ExpiryLook
from orthia.broker.core.routing.resources import UndeliverableQueues
from orthia.broker.core.routing.router import Routed
from orthia.broker.core.sending.context import SendContext
from orthia.broker.core.sending.plan import SendPlan
from orthia.config.addresses import DEFAULT_DEAD_LETTER_ADDRESS, DEFAULT_EXPIRY_ADDRESS, DROP
from orthia.config.errors import OrthiaError
from orthia.journal.errors import AcknowledgedBefore, HeldElsewhere, StoreFull
from orthia.journal.model.records import RemovalReason

LOGGER = logging.getLogger("orthia.broker")


class Undeliverable:
    """Moves messages that cannot be delivered, or drops them; on the loop's thread."""

    def __init__(
        self, queues: UndeliverableQueues, context: SendContext, gate: DeliveryGate
    ) -> None:
        self._queues = queues
        self._context = context
        self._gate = gate
        self.look = ExpiryLook()
        """The look for expired messages that is under way."""

    def expire(self, queue: Queue, reference: MessageReference) -> None:
        """Move an expired message to the expiry address, or drop it."""
        target = queue.settings.expiry_address
        if queue.counters.expired == 1:
            LOGGER.warning(
                "messages of queue %s expire and are %s (logged once for each queue)",
                queue.name,
                _what_becomes("expiry-address", target, DEFAULT_EXPIRY_ADDRESS),
            )
        if not self._gate.is_running:
            return  # its row stays, and the next live node decides anew
        if not self._move(queue, reference, target, RemovalReason.EXPIRED):
            self._give_back(queue, reference, RemovalReason.EXPIRED)

    def dead_letter(self, queue: Queue, reference: MessageReference) -> bool:
        """Move a message that was delivered too often, or drop it; False if it has to stay."""
        if not self._gate.is_running:
            return False
        target = queue.settings.dead_letter_address
        is_first = not queue.counters.dead_lettered
        if target in (queue.name, queue.address):
            if is_first:
                LOGGER.warning(
                    "delivery of message %d of queue %s failed %d times; it stays: the queue is"
                    " its own dead-letter-address (logged once for each queue)",
                    reference.seq,
                    queue.name,
                    reference.attempts,
                )
            queue.counters.dead_lettered += 1
            return False
        if is_first:
            LOGGER.warning(
                "delivery of message %d of queue %s failed %d times (max-delivery-attempts), or its"
                " consumer rejected it; it is %s (logged once for each queue)",
                reference.seq,
                queue.name,
                reference.attempts,
                _what_becomes("dead-letter-address", target, DEFAULT_DEAD_LETTER_ADDRESS),
            )
        return self._move(queue, reference, target, RemovalReason.DEAD_LETTERED)

    def _move(
        self, queue: Queue, reference: MessageReference, target: str, reason: RemovalReason
    ) -> bool:
        """Move a message to an address, or drop it; False if it stays."""
        try:
            origin = {
                "_AMQ_ORIG_ADDRESS": reference.record.address,
                "_AMQ_ORIG_QUEUE": queue.name,
                "_AMQ_ORIG_MESSAGE_ID": str(reference.seq),
            }
            if reason is RemovalReason.EXPIRED:
                origin["_AMQ_ACTUAL_EXPIRY"] = str(reference.record.expires_ms)
            record = reference.record.relocated(target, origin)
            routed: Sequence[Routed] = ()
            if target != DROP:
                routed = self._queues.route(queue, target, reason, record)
            with SendPlan(self._context) as plan:
                plan.take_out(queue, reference.location, reason, reference.record.large)
                for one in routed:
                    plan.move(one.queues, one.record)
                to = [target.name for one in routed for target in one.queues]
                plan.apply(None, partial(self._refused, queue, reference, reason, to))
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

    def _refused(
        self,
        queue: Queue,
        reference: MessageReference,
        reason: RemovalReason,
        to: Sequence[str],
        error: OrthiaError,
    ) -> None:
        """Log that the store refused to move a message, and give it back to its queue."""
        # The first two are logged once; what an application acknowledged is deleted soon.
        if not isinstance(error, StoreFull | HeldElsewhere | AcknowledgedBefore):
            LOGGER.error(
                "message %d is %s, and cannot be moved to %s; it stays in its queue: %s",
                reference.seq,
                reason.value,
                ", ".join(f"queue {name}" for name in to) or "nowhere",
                error,
            )
        self._give_back(queue, reference, reason)

    def _give_back(self, queue: Queue, reference: MessageReference, reason: RemovalReason) -> None:
        if reason is RemovalReason.EXPIRED:
            queue.counters.expired -= 1
        else:
            queue.counters.dead_lettered -= 1
        queue.take_back(reference)


def _what_becomes(element: str, target: str, default: str) -> str:
    if target == DROP:
        return f"dropped, as the empty {element} says"
    return f"moved to {element} {target}{' (the default)' if target == default else ''}"
