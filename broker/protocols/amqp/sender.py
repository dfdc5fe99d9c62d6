# mypyc compiles this module.
"""A link by which a client receives: the core's consumer, and its browser where it only looks.

A message is delivered while the client has given credit. It asks for a *drain* to learn that there
is nothing more for it: the answer comes once the core has looked through all there is.
"""

import logging
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Final

from orthia.broker.core.api import Answer, Done, MessageReference, SingleSubscription
from orthia.broker.core.errors import Refusal
from orthia.broker.core.queue.pace import AT_ONCE
from orthia.broker.core.slices import GO_ON, Steps
from orthia.broker.protocols.amqp.conditions import (
    INTERNAL_ERROR,
    NOT_ALLOWED,
    RESOURCE_DELETED,
    UNAUTHORIZED,
    LinkFault,
)
from orthia.broker.protocols.amqp.large import LargeDelivery
from orthia.broker.protocols.amqp.link import Link, LinkSession
from orthia.broker.protocols.amqp.messages import head_of
from orthia.broker.protocols.amqp.performatives import (
    ACCEPTED,
    RELEASED,
    SETTLED,
    Accepted,
    Attach,
    DeliveryState,
    Error,
    Flow,
    Modified,
    Outcome,
    Rejected,
    Released,
    Source,
    bare,
)
from orthia.broker.protocols.large_bodies import BodyReader
from orthia.config.errors import OrthiaError
from orthia.journal.model.message import LargeBody

LOGGER = logging.getLogger("orthia.broker")
_MASK: Final = 0xFFFFFFFF
_EMPTY_HEADER: Final = b"\x00\x53\x70\x45"
"""A header that says nothing: rhea cannot read a message whose first transfer is empty."""
_DETACHING: Final = {Refusal.DESTINATION: RESOURCE_DELETED, Refusal.AUTHORIZATION: UNAUTHORIZED}
"""Why a link is ended and its connection goes on, with the condition that says so."""


class Sender(Link):
    """A link by which a client receives."""

    __slots__ = (
        "_again", "_asked_for_drain", "_asked_for_echo", "_browses", "_credit", "_delivery_count",
        "_goes_on_later", "_is_settled", "_large", "_newest", "answer", "connection", "core",
        "default_outcome", "holds", "principal",
    )  # fmt: skip

    def __init__(
        self, session: LinkSession, said: Attach, cost: int, source: Source, *, browses: bool
    ) -> None:
        super().__init__(session, said, cost)
        client = session.client
        self.core: SingleSubscription | None = None
        self.connection: object = client
        self.principal = client.principal
        self.holds = client.hold
        """Called by the core with each change of what it keeps for this link."""
        self.answer: Attach | None = None
        """What tells the client that the link is there, until it is told."""
        self.default_outcome: Outcome = bare(source.default_outcome or RELEASED)
        """That of a delivery which the client settles without one."""
        self._browses = browses
        self._is_settled = said.snd_settle_mode == SETTLED
        self._credit = 0
        self._delivery_count = 0
        self._asked_for_drain = self._asked_for_echo = False
        self._large: BodyReader | None = None
        """The large message that is being written."""
        self._newest: int | None = None
        """The delivery that the client got last, by its id."""
        self._again: deque[MessageReference] = deque()
        """What the client gave back of a topic, which keeps nothing: it is delivered again."""
        self._goes_on_later = False
        """Whether there was more of that than at once, and there is a task for the rest."""

    def attach(self, core: SingleSubscription) -> None:
        """Take its end in the core: called once, before that end's ``resume``."""
        self.core = core

    @property
    def oldest(self) -> MessageReference | None:
        """The first that was delivered of those not settled, some of which a roll back put back."""
        return min(self.unsettled.values(), key=lambda one: one.written_at, default=None)

    # --- what the core calls

    @property
    def is_writable(self) -> bool:
        """Whether the client takes a message now."""
        return not self._again and self._takes_more()

    def _takes_more(self) -> bool:
        return (
            self._credit > 0
            and self._large is None
            and self.answer is None
            and self.session.takes_messages()
        )

    def deliver(self, reference: MessageReference) -> None:
        """Write the message; if the client wants it settled, that acknowledges it."""
        self._credit -= 1
        self._delivery_count = (self._delivery_count + 1) & _MASK
        large = reference.record.large
        if large is not None:
            self._begin_large(reference, large)
            return
        delivery_id = self.session.deliver(
            self, reference, head_of(reference), reference.record.body, is_settled=self._is_settled
        )
        if not self._is_settled:
            self.unsettled[delivery_id] = reference
            self._newest = delivery_id
        elif self.core is not None:
            self.core.acknowledge((reference,), None)

    def _begin_large(self, reference: MessageReference, body: LargeBody) -> None:
        """Write what precedes the body of a large message, and begin to write that."""
        session, large = self.session, self.session.client.core.large
        if large is None:
            raise RuntimeError("a large message in a broker that stores none")
        head = head_of(reference) or _EMPTY_HEADER
        delivery_id = session.deliver(
            self, reference, head, b"", is_settled=self._is_settled, more=True
        )
        if not self._is_settled:
            self.unsettled[delivery_id] = reference
            self._newest = delivery_id
        ended = partial(self._large_ended, reference, delivery_id)
        self._large = BodyReader(LargeDelivery(session, self, ended), large, body)
        self._large.resume()

    def _large_ended(
        self, reference: MessageReference, delivery_id: int, error: OrthiaError | None
    ) -> None:
        """Deliver on; a message whose body cannot be read goes back, as a failed attempt."""
        self._large = None
        core = self.core
        if error is not None:
            LOGGER.error(
                "reading the large body of message %d failed: %s; aborting its delivery and"
                " returning the message to its queue",
                reference.seq,
                error,
            )
            if delivery_id in self.unsettled:
                self.session.take(self, [delivery_id])
            if core is not None:
                core.reject((reference,), None)
        elif self._is_settled and core is not None:
            core.acknowledge((reference,), None)
        self.resume()

    def settled(self, references: Sequence[MessageReference]) -> None:
        """Settle messages that an application acknowledged in the database.

        What the client says of them afterwards means nothing. One that is not written whole waits
        for the client's outcome: no client expects to hear of it before.
        """
        gone = set(references)
        ids = [one for one, reference in self.unsettled.items() if reference in gone]
        if self._newest in ids and (self._large is not None or self.session.is_amid(self)):
            ids.remove(self._newest)
        if ids:
            self.session.take(self, ids)
            self.session.say_settled(ids, ACCEPTED)

    def browsed(self) -> None:
        """Answer a drain: there is nothing more to see."""
        if self._asked_for_drain:
            self._drained()

    def fail(self, reason: str, kind: Refusal) -> None:
        """End the link, or the connection."""
        condition = _DETACHING.get(kind)
        if condition is not None:
            self.session.client.socket.refused(kind, reason)
            self.session.end_link(self, Error(condition, reason))
        else:
            self.session.client.refuse(Error(INTERNAL_ERROR, reason), kind)

    def resume(self) -> None:
        """Deliver again: there is credit, or room for more."""
        if self._large is not None:
            self._large.resume()
        if self._goes_on_later:
            return
        again, left = self._again, AT_ONCE
        while again and self._takes_more():
            if not left:
                self._goes_on_later = True
                client = self.session.client
                client.core.slices.later(self._going_on(), client.socket.usage)
                return
            left -= 1
            self.deliver(again.popleft())
        if not again and self.core is not None:
            self.core.resume()

    def _going_on(self) -> Steps:
        self._goes_on_later = False
        self.resume()
        yield GO_ON

    # --- credit

    def flow(self, said: Flow) -> None:
        """Take the client's credit, and look for messages; answer a drain once there are none."""
        if said.link_credit is not None:
            begin = 0 if said.delivery_count is None else said.delivery_count
            on_their_way = (self._delivery_count - begin) & _MASK
            self._credit = max(0, said.link_credit - on_their_way)
        self._asked_for_drain, self._asked_for_echo = said.drain, said.echo
        if self.answer is None:
            self.follow()

    def follow(self) -> None:
        """Do what the client's last flow asks for, now that it knows that the link is there."""
        if self._credit:
            self.resume()
        if self._asked_for_drain:
            self.session.client.drains.ask(self)
        elif self._asked_for_echo:
            self.say_flow()
        self._asked_for_echo = False

    def say_flow(self, *, is_drained: bool = False) -> None:
        """Say how far the link is."""
        session = self.session
        session.say(
            Flow(
                *session.windows(),
                handle=self.handle,
                delivery_count=self._delivery_count,
                link_credit=self._credit,
                available=0 if is_drained else None,
                drain=is_drained,
            )
        )

    def answer_drain(self, *, in_any_case: bool) -> bool:
        """Answer a drain if there is nothing more, or no credit; return whether none waits."""
        core = self.core
        if not self._asked_for_drain or core is None:
            return True
        is_busy = self._large is not None or bool(self._again) or not self.session.takes_messages()
        if self._credit and (is_busy or core.is_looking) and not in_any_case:
            return False
        self._drained()
        return True

    def _drained(self) -> None:
        """Take the credit away, and say so."""
        self._asked_for_drain = False
        self._delivery_count = (self._delivery_count + self._credit) & _MASK
        self._credit = 0
        self.say_flow(is_drained=True)

    # --- outcomes

    def settle(
        self,
        references: Sequence[MessageReference],
        state: DeliveryState,
        done: Done | None,
    ) -> None:
        """Do what an outcome says with messages that were delivered; ``done`` once it is stored.

        Raises LinkFault and BrokerError.
        """
        core = self.core
        if core is None:
            raise LinkFault(NOT_ALLOWED, "the link is closed")
        answer = self.answer_of(state)
        if answer is Answer.ACKNOWLEDGED:
            core.acknowledge(references, done)
        elif answer is Answer.DEAD:
            core.dead_letter(references, done)
        else:
            self.give_back(core, references, done, is_failed=answer is Answer.FAILED)

    def answer_of(self, state: DeliveryState) -> Answer:
        """Return what an outcome means to the core; raises LinkFault if it is none of a message.

        Annotations of *modified* are left out, as in Artemis: a message stays as it was sent.
        """
        if self._browses or isinstance(state, Accepted):
            return Answer.ACKNOWLEDGED
        if isinstance(state, Released):
            return Answer.RELEASED
        if isinstance(state, Rejected):
            return Answer.DEAD
        if isinstance(state, Modified):
            if state.undeliverable_here:
                return Answer.DEAD
            return Answer.FAILED if state.delivery_failed else Answer.RELEASED
        raise LinkFault(NOT_ALLOWED, f"{type(state).__name__} is no outcome of a message")

    def give_back(
        self,
        core: SingleSubscription,
        references: Sequence[MessageReference],
        done: Done | None,
        *,
        is_failed: bool,
    ) -> None:
        """Return messages, to be delivered again; if delivery ``is_failed``, that counts."""
        if core.keeps_nothing:
            for reference in references:
                reference.redelivered = True
                reference.attempts += is_failed
            self._again.extend(references)
            if done is not None:
                done()
            self.resume()
        elif is_failed:
            core.reject(references, done)
        else:
            core.release(references, done)

    # --- the end

    def stop(self) -> None:
        """Write nothing more of a large message."""
        if self._large is not None:
            self._large.cancel()
            self._large = None

    def close(self) -> None:
        """Close its end in the core: what is not settled goes back, as not attempted."""
        self.stop()
        core, self.core = self.core, None
        self._asked_for_drain = False
        self._credit = 0
        self._again.clear()
        if core is not None:
            core.close()
