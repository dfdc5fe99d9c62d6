# mypyc compiles this module.
"""The commit of a client's transaction: all of it in one unit of the journal, or nothing."""

from typing import Final

from orthia.broker.core.api import (
    AfterAll,
    Answer,
    Done,
    OnRefused,
    OutgoingMessage,
    Settlement,
    TransactionWork,
)
from orthia.broker.core.errors import BrokerError, LimitExceeded
from orthia.broker.core.identity import Principal
from orthia.broker.core.routing.router import routed_by
from orthia.broker.core.sending.plan import SendPlan
from orthia.broker.core.sending.post_office import PostOffice
from orthia.broker.core.slices import GO_ON, REST, Finding, Steps
from orthia.broker.quoting import quoted
from orthia.config.errors import OrthiaError
from orthia.journal.errors import HeldElsewhere, SentBehindRefused, StoreFull

_AT_ONCE: Final = 32
"""How many messages of a transaction are routed before others have a turn."""

MOST_COPIES = 20_000
"""How many messages a transaction may be in all queues together. Applying the plan gives each its
place, in one piece, which takes some 3 us for each."""


def commit(
    office: PostOffice,
    principal: Principal,
    work: TransactionWork,
    done: Done,
    on_refused: OnRefused,
) -> Steps:
    """Prepare ``work`` in steps, and apply it in the last one; see ``Broker.commit``."""
    office.gate.refuse_if_stopped()
    with SendPlan(office.context, principal.sender) as plan:
        for index, (destination, message) in enumerate(work.sends, 1):
            yield from _add(plan, office, principal, destination, message)
            if plan.copies > MOST_COPIES:
                raise LimitExceeded(
                    f"the messages of the transaction would be more than {MOST_COPIES} in"
                    " all queues that get them: send fewer in one transaction"
                )
            if not index % _AT_ONCE:
                yield GO_ON
        for use in plan.uses() if work.waits_for_room else ():
            while (full := use.behind()) is not None:
                yield full.rest
        for topic in plan.topics():
            behind = topic.behind()
            while behind is not None and behind.is_behind:
                yield REST
        for subscription, references in work.acknowledgements.items():
            plan.delete(subscription.deletes(references))
            yield GO_ON
        plan.take_over_bodies()
        for number in range(len(plan)):
            plan.admit(number, is_transaction=True)
            yield GO_ON
        # The loop may have done other work before each step so far; from here on it does none.
        office.gate.refuse_if_stopped()
        plan.refuse_if_gone()
        for subscription, references in work.acknowledgements.items():
            subscription.deletes(references)  # it may have been closed during those steps
        settled: list[Settlement] = []

        def refused(error: OrthiaError) -> None:
            # In order: what the client has of a queue comes back before what it acknowledged there.
            for settlement in settled:
                settlement.suspend()
            # Before anything goes back: its client must not get any of it again.
            on_refused(error, done)
            # Want of room, a lock, or an earlier refusal is no failed attempt of the client.
            failed_delivery = not isinstance(error, StoreFull | HeldElsewhere | SentBehindRefused)
            for settlement in settled:
                settlement.refused(failed_delivery=failed_delivery)

        def committed() -> None:
            all_done = AfterAll(len(settled) + 1, done)
            for settlement in settled:
                settlement.committed(all_done)
            all_done()

        plan.apply(committed, refused)
        # Their bodies are the plan's from here on, also if the connection ends within this step.
        work.sends.clear()
        for subscription, references in work.acknowledgements.items():
            settled.append(subscription.settle(references))
        for answer in (Answer.FAILED, Answer.RELEASED, Answer.DEAD):
            for subscription, references in work.answered(answer).items():
                # The subscription does not have them any more, and may be closed before the commit.
                settled.append(subscription.settle(references, answer))


def _add(
    plan: SendPlan,
    office: PostOffice,
    principal: Principal,
    destination: str,
    message: OutgoingMessage,
) -> Finding[None]:
    """Route a message of the transaction, and add it to the plan; raises BrokerError.

    A refusal names the message, for the client knows of its commit only.
    """
    try:
        message, (address, queues, topic, router) = office.route(principal, destination, message)
    except BrokerError as error:
        raise type(error)(f"message to {quoted(destination)} in the transaction: {error}") from None
    record = office.context.record(address, message)
    routed = yield from routed_by(router, record, principal, queues, topic)
    plan.send(principal, address, message, routed)
