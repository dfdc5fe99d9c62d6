# mypyc compiles this module.
"""What clients send: a message finds its queues and topics, and is sent by a plan.

Asking many queues takes long, so routing is done in steps. All that follows is one step, so that a
message is in the journal before anything that is sent to the same queues later.
"""

from collections.abc import Iterable, Sequence

from orthia.broker.core.api import Done, FanOut, OnRefused, OutgoingMessage, waiting
from orthia.broker.core.identity import Principal
from orthia.broker.core.queue.gate import DeliveryGate
from orthia.broker.core.queue.queue import Queue
from orthia.broker.core.routing.router import Routed, routed_by
from orthia.broker.core.routing.targets import Route, Targets
from orthia.broker.core.sending.context import SendContext
from orthia.broker.core.sending.plan import SendPlan, send_plain
from orthia.broker.core.sending.schedule_queues import ScheduleQueues
from orthia.broker.core.slices import Finding, Steps
from orthia.broker.core.topics.topic import first_behind
from orthia.config.errors import OrthiaError

_ASKED_AT_ONCE = 8
"""How many steps of routing are done at once, where few are needed."""


class PostOffice:
    """Sends the messages of clients; on the loop's thread."""

    def __init__(
        self,
        targets: Targets,
        schedules: ScheduleQueues,
        context: SendContext,
        gate: DeliveryGate,
    ) -> None:
        self._targets = targets
        self._schedules = schedules
        self.context = context
        self.gate = gate

    def send(
        self,
        principal: Principal,
        destination: str,
        message: OutgoingMessage,
        on_stored: Done | None,
        on_refused: OnRefused,
    ) -> FanOut | Steps | None:
        """Send a message; see ``Broker.send``."""
        self.gate.refuse_if_stopped()
        message, (address, queues, topic, router) = self.route(principal, destination, message)
        context = self.context
        record = context.record(address, message)
        if router is None and message.duplicate_id is None:
            if topic is None and len(queues) == 1 and record.large is None and not record.stated:
                if not context.persistent:
                    context.refuse_if_full(queues, record)
                send_plain(
                    context,
                    queues[0],
                    record,
                    on_stored,
                    on_refused,
                    principal.sender,
                    persistent=message.persistent,
                    outbox_row=message.outbox_row,
                )
                return None
            routed = [Routed(record, queues, () if topic is None else (topic,))]
            return self._send(principal, address, message, routed, on_stored, on_refused)[1]
        routing = routed_by(router, record, principal, queues, topic)
        for _ in range(_ASKED_AT_ONCE):
            try:
                next(routing)
            except StopIteration as end:
                routed = end.value
                _, behind = self._send(principal, address, message, routed, on_stored, on_refused)
                return behind or _first_routed_full(routed)
        return self._sending(routing, principal, address, message, on_stored, on_refused)

    def placing(
        self,
        principal: Principal,
        destination: str,
        message: OutgoingMessage,
        on_stored: Done,
        on_refused: OnRefused,
    ) -> Finding[int | None]:
        """Send a message in steps; see ``Broker.placing``."""
        self.gate.refuse_if_stopped()
        message, (address, queues, topic, router) = self.route(principal, destination, message)
        record = self.context.record(address, message)
        routed = yield from routed_by(router, record, principal, queues, topic)
        self.gate.refuse_if_stopped()
        return self._send(principal, address, message, routed, on_stored, on_refused)[0]

    def _sending(
        self,
        routing: Finding[list[Routed]],
        principal: Principal,
        address: str,
        message: OutgoingMessage,
        on_stored: Done | None,
        on_refused: OnRefused,
    ) -> Steps:
        routed = yield from routing
        self.gate.refuse_if_stopped()
        _, behind = self._send(principal, address, message, routed, on_stored, on_refused)
        behind = behind or _first_routed_full(routed)
        if behind is not None:
            yield from waiting(behind)

    def _send(
        self,
        principal: Principal,
        address: str,
        message: OutgoingMessage,
        routed: Sequence[Routed],
        on_stored: Done | None,
        on_refused: OnRefused,
    ) -> tuple[int | None, FanOut | None]:
        """Send a message to all that it is routed to.

        Returns its seq in the first of its queues, and what the sender waits for.
        """
        plan = SendPlan(self.context, principal.sender)
        seq: int | None = None

        # The callback that was given, and not what was made of it.
        def refused(error: OrthiaError, _: Done | None = None) -> None:
            on_refused(error, on_stored)

        with plan:
            plan.send(principal, address, message, routed)
            plan.take_over_bodies()
            queue = plan.plain()
            if not len(plan):
                plan.publish(on_stored, refused)
            elif queue is not None:
                seq = send_plain(
                    self.context,
                    queue,
                    plan.record_of(0),
                    plan.publishing(on_stored),
                    refused,
                    principal.sender,
                    persistent=message.persistent,
                    outbox_row=message.outbox_row,
                )
            else:
                for number in range(len(plan)):
                    plan.admit(number)
                plan.apply(on_stored, refused)
                seq = plan.first_seq()
            if message.duplicate_id is not None:
                plan.note_ids()
        return seq, first_behind(plan.topics())

    def route(
        self, principal: Principal, destination: str, message: OutgoingMessage
    ) -> tuple[OutgoingMessage, Route]:
        """Return where a message goes, and the message as it goes there; raises BrokerError."""
        route = self._targets.route(principal, destination)
        if message.stated:
            message, schedule = self._schedules.put_off(principal, destination, message)
            if schedule is not None:
                route = route[0], [schedule], None, None
        return message, route

    def check_send(self, principal: Principal, destination: str) -> FanOut | None:
        """Return the full address for which a sender to a destination should wait, if there is one.

        Raises BrokerError if a message would be refused at this moment.
        """
        self.gate.refuse_if_stopped()
        _, queues, _, _ = self._targets.route(principal, destination)
        for queue in queues:
            if not queue.use.drops(0):
                queue.use.refuse_if_full(0)
        return _first_full(queues)


def _first_full(queues: Iterable[Queue]) -> FanOut | None:
    """Return the first address without room that has BLOCK; None if there is none."""
    full = (queue.use.behind() for queue in queues)
    return next((one for one in full if one is not None), None)


def _first_routed_full(routed: Iterable[Routed]) -> FanOut | None:
    return _first_full(queue for one in routed for queue in one.queues)
