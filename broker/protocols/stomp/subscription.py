# mypyc compiles this module.
"""The subscriptions of one connection: what is delivered by each, and what an ACK names of it."""

import logging
from collections.abc import Sequence
from enum import Enum
from functools import partial
from typing import Final, NamedTuple

from orthia.broker.core.api import MessageReference, SubscriptionHandle
from orthia.broker.core.errors import Refusal
from orthia.broker.core.selectors.selector import CHARACTER_BYTES
from orthia.broker.protocols.stomp.client_frame import Frame
from orthia.broker.protocols.stomp.encoding import (
    TAG,
    default_lines,
    defaults_not_said,
    may_say_defaults,
    parts_for,
)
from orthia.broker.protocols.stomp.frames import (
    ProtocolError,
    Version,
    block_for,
    escape,
    is_whole_number,
)
from orthia.broker.protocols.stomp.session import Session
from orthia.broker.quoting import quoted
from orthia.config.address_settings import RoutingType
from orthia.config.errors import OrthiaError
from orthia.journal.model.message import LargeBody, Message

LOGGER = logging.getLogger("orthia.broker")
_EXPECTED_ID = "expected the value of the MESSAGE's ack header, not of its message-id (STOMP 1.2)"
_HEAD: Final = b"MESSAGE\ndestination:"
"""What every MESSAGE begins with."""
_REST: Final = b"\nredelivered:%b\ntimestamp:%d\n%b%bcontent-length:%d\n\n%b%b"
_MESSAGE: Final = b"%b%d" + _REST
_TO_ACK: Final = b"%b%d%b%d" + _REST
"""A MESSAGE, and one that the client is to acknowledge by its ack id."""
_COST: Final = 3_072
"""Bytes a subscription counts for beside its id and destination, which are kept four times."""
_MOST_SETTLED: Final = 4_096
"""Messages that an application acknowledged, and whose place a subscription keeps."""
_NOTHING: Final = Message("", b"", b"", 0, 0, 0)
_END: Final = 0
"""The seq by which the end of a browser's messages is named: no message has it."""


class AckMode(Enum):
    """The ``ack`` header of SUBSCRIBE."""

    AUTO = "auto"
    CLIENT = "client"
    CLIENT_INDIVIDUAL = "client-individual"


class Subscribe(NamedTuple):
    """What a SUBSCRIBE asks for."""

    key: str
    """What the client's frames call the subscription: its id, in 1.0 perhaps its destination."""
    id: str | None
    destination: str
    kind: str | None
    """``subscription-type``."""
    mode: AckMode
    prefetch: int
    """How many messages may be unacknowledged; 0 is any number."""
    window: int | None
    """How many bytes of them; None leaves it to the broker's own bound."""
    durable: str | None
    """The name of a durable subscription."""
    no_local: bool
    selector: str | None
    browses: bool
    """Whether it only looks through a queue."""


class ClientSubscription:
    """One SUBSCRIBE; the core's consumer, and its browser where it only looks through a queue."""

    __slots__ = (
        "_ack", "_after", "_defaults", "_head", "_is_auto", "_is_streaming", "_output", "_prefix",
        "_session", "_settled", "_takes_more", "_version", "_with_ack", "_write", "asked",
        "connection", "core", "cost", "holds", "is_leaving", "mode", "number", "principal",
        "settled_up_to", "unacknowledged",
    )  # fmt: skip

    def __init__(
        self, session: Session, asked: Subscribe, number: int, *, prefix: str | None = None
    ) -> None:
        """Begin without an end in the core, which ``attach`` gives.

        With a ``prefix`` the destination has wildcards, and each MESSAGE says which address it was
        sent to, behind that prefix. ``number`` is unique on its connection, also when the id is
        used again; it is part of the ack ids.
        """
        self._session = session
        self._output = session.output
        self._write = session.output.write_now
        self._version = session.version
        self._prefix = prefix
        self.asked = asked
        self.mode = asked.mode
        self.number = number
        self.core: SubscriptionHandle | None = None
        self.unacknowledged: dict[int, MessageReference] = {}
        """By seq; where an ACK is cumulative, in the order they were delivered."""
        self.settled_up_to = 0
        """The highest seq that an application acknowledged in the database; 0 without any."""
        self._settled: set[int] = set()
        """The seqs of these that are kept among the unacknowledged, for cumulative ACKs."""
        self.cost = 0
        """Bytes it counts for while it is there."""
        self.holds = session.hold
        """Called by the core with each change of what it keeps for this subscription."""
        self.connection: object = session
        """Whose it is: the same for all its subscriptions."""
        self.principal = session.principal
        after = b""
        if asked.id is not None:
            after = b"\nsubscription:" + escape(asked.id.encode(), self._version)
        self._after = after + b"\nmessage-id:"
        self._head = self._head_for(asked.destination)
        # Asked for every message: an enumeration looks its members up each time.
        self._is_auto = asked.mode is AckMode.AUTO
        self._with_ack = self._version is Version.V1_2 and not self._is_auto
        self._ack = b"\nack:%d-" % number
        self._defaults = b""
        self._takes_more = True
        self._is_streaming = False
        self.is_leaving = False
        """Whether it is closed once the body of its last message is written."""

    def attach(self, core: SubscriptionHandle) -> None:
        """Take its end in the core: called once, before that end's ``resume``."""
        self.core = core
        self._defaults = default_lines(core.routing_type)

    # --- what the core calls

    @property
    def is_writable(self) -> bool:
        """Whether the socket takes more."""
        return self._takes_more and self._output.takes_messages()

    def fail(self, reason: str, kind: Refusal) -> None:
        """End the connection with an ERROR."""
        self._session.refuse(reason, None, kind)

    def deliver(self, reference: MessageReference) -> None:
        """Write the MESSAGE; in ``auto`` mode that acknowledges it.

        Of a large one this writes the head, and begins to write the body.
        """
        if self._prefix is not None:
            self._head = self._head_for(self._prefix + reference.record.address)
        large = reference.record.large
        if large is not None:
            self._begin_large(reference, large)
            return
        frame = self._message(reference)
        reference.written_at = self._write(frame) - len(frame)
        if not self._is_auto:
            self.unacknowledged[reference.seq] = reference
        elif self.core is None:
            raise ProtocolError("the subscription is not attached")
        else:
            self.core.acknowledge((reference,), None)

    def settled(self, references: Sequence[MessageReference]) -> None:
        """Forget messages that an application acknowledged in the database.

        A cumulative ACK may name them all the same: it means what was delivered before, too. So
        each keeps its place until nothing older is unacknowledged.
        """
        unacknowledged = self.unacknowledged
        for reference in references:
            seq = reference.seq
            self.settled_up_to = max(self.settled_up_to, seq)
            if self.mode is not AckMode.CLIENT:
                unacknowledged.pop(seq, None)
            elif seq in unacknowledged:
                place = MessageReference(seq, _NOTHING, None, 0, redelivered=True)
                place.written_at = reference.written_at
                unacknowledged[seq] = place
                self._settled.add(seq)
        if self._settled:
            self._forget_settled()

    def _forget_settled(self) -> None:
        """Forget the first of these, and any beyond a bound.

        An ACK of one of them means nothing more: there the older messages are delivered again.
        """
        settled, gone = self._settled, list[int]()
        for seq in self.unacknowledged:
            if seq in settled:
                gone.append(seq)
            elif len(settled) - len(gone) <= _MOST_SETTLED:
                break
        for seq in gone:
            del self.unacknowledged[seq]
        settled.difference_update(gone)

    def deliver_from(
        self, destination: str, routing_type: RoutingType, reference: MessageReference
    ) -> None:
        """Write the MESSAGE as one of ``destination``, whatever the SUBSCRIBE named."""
        self._head = self._head_for(destination)
        self._defaults = default_lines(routing_type)
        self.deliver(reference)

    def browsed(self) -> None:
        """Write the MESSAGE that ends a browser's messages; its id is that of no message."""
        ack = b"%b%d" % (self._ack, _END) if self._with_ack else b""
        self._write(b"%b%d%b\nbrowser:end\ncontent-length:0\n\n\0" % (self._head, _END, ack))

    # --- the end

    def end(self) -> None:
        """Close it, once the message that its client is getting is acknowledged.

        Given back amid its body the message would come again.
        """
        if self._is_auto and self._is_streaming and self._output.is_streaming:
            self._takes_more = False
            self.is_leaving = True
        else:
            self.close()

    def close(self) -> None:
        """Close its end in the core: what was not acknowledged goes back."""
        self.is_leaving = False
        if self.core is not None:
            self.core.close()

    # --- large messages

    def _begin_large(self, reference: MessageReference, large: LargeBody) -> None:
        head = self._frame(reference, large.size)
        reference.written_at = self._output.write_part(head) - len(head)
        if not self._is_auto:
            self.unacknowledged[reference.seq] = reference
        self._is_streaming = True
        self._output.stream(large, partial(self._streamed, reference))

    def _streamed(self, reference: MessageReference, error: OrthiaError | None) -> None:
        self._is_streaming = False
        if error is not None:
            LOGGER.error(
                "reading the large body of message %d failed: %s; disconnecting its client and"
                " returning the message to its queue",
                reference.seq,
                error,
            )
            self.unacknowledged.pop(reference.seq, None)
            if self.core is not None:
                self.core.reject((reference,), None)  # which counts as an attempt
            self._session.go_away()
            return
        if self._is_auto and self.core is not None:
            self.core.acknowledge((reference,), None)
        if self.is_leaving:
            self.close()
        self._session.resume_deliveries()

    # --- frames

    def _head_for(self, destination: str) -> bytes:
        return _HEAD + escape(destination.encode(), self._version) + self._after

    def _message(self, reference: MessageReference) -> bytes:
        if reference.shared is not None:
            return self._shared_message(reference, reference.shared)
        return self._frame(reference)

    def _frame(self, reference: MessageReference, large_size: int | None = None) -> bytes:
        """Return a MESSAGE; of a large one of such a size without the body, and its end."""
        seq, record = reference.seq, reference.record
        # Unpacked: to look each field of a tuple up by its name takes several times as long.
        _, lines, body, sent_ms, _, _, _, encoding, stated = record
        if stated or encoding != TAG:
            lines, body = parts_for(record)
        defaults = self._defaults
        if lines:
            if may_say_defaults(lines):
                defaults = defaults_not_said(lines, defaults)
            lines = block_for(self._version, lines)
        size, end = len(body), b"\0"
        if large_size is not None:
            size, end = large_size, b""
        again = b"true" if reference.redelivered else b"false"
        if self._with_ack:
            ack = self._ack
            given = (self._head, seq, ack, seq, again, sent_ms, lines, defaults, size, body, end)
            return _TO_ACK % given
        return _MESSAGE % (self._head, seq, again, sent_ms, lines, defaults, size, body, end)

    def _shared_message(self, reference: MessageReference, shared: dict[object, bytes]) -> bytes:
        """Return a frame that differs from those of others at its beginning only."""
        seq = reference.seq
        reference.shared = None  # which outlives this frame where the client is to acknowledge it
        beginning = b"%b%d" % (self._head, seq)
        if self._with_ack:
            beginning += b"%b%d" % (self._ack, seq)
        rest = shared.get(self._version)
        if rest is None:
            rest = shared[self._version] = self._message(reference)[len(beginning) :]
        return beginning + rest

    def take(self, seq: int) -> list[MessageReference]:
        """Take the messages an ACK or NACK of ``seq`` means out of the unacknowledged.

        In ``client`` mode it means all that were delivered up to it. Raises ProtocolError.
        """
        if seq not in self.unacknowledged:
            if seq == _END and self.asked.browses:
                return []
            if _END < seq <= self.settled_up_to:
                return []
            shown = quoted(self.asked.id or self.asked.destination)
            raise ProtocolError(
                f"message {seq} is not waiting for an acknowledgement on subscription {shown}: it"
                " was acknowledged before, never delivered here, or the subscription's ack mode is"
                " auto"
            )
        if self.mode is AckMode.CLIENT_INDIVIDUAL:
            return [self.unacknowledged.pop(seq)]
        taken = []
        for delivered, reference in self.unacknowledged.items():
            taken.append(reference)
            if delivered == seq:
                break
        for reference in taken:
            del self.unacknowledged[reference.seq]
        if self._settled:
            taken = [one for one in taken if one.seq not in self._settled]
            self._settled.intersection_update(self.unacknowledged)
        return taken

    def put_back(self, references: Sequence[MessageReference]) -> None:
        """Undo ``take``: the transaction that took them was aborted.

        Each is where it was among the deliveries, since a cumulative ACK must not reach a message
        that came after the one it names; by seq it may be before, if it was redelivered.
        """
        unacknowledged = self.unacknowledged
        unacknowledged.update((one.seq, one) for one in references)
        if self.mode is AckMode.CLIENT:
            in_order = sorted(unacknowledged.values(), key=lambda one: one.written_at)
            self.unacknowledged = {one.seq: one for one in in_order}

    @property
    def oldest(self) -> MessageReference | None:
        """The first that was delivered of those not acknowledged."""
        settled = self._settled
        waiting = (one for one in self.unacknowledged.values() if one.seq not in settled)
        return min(waiting, key=lambda one: one.written_at, default=None)


class ClientSubscriptions:
    """The subscriptions of one connection, by what its frames call them."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._by_key: dict[str, ClientSubscription] = {}
        self._by_number: dict[int, ClientSubscription] = {}
        self._by_core: dict[SubscriptionHandle, ClientSubscription] = {}
        self._numbers = 0
        self.size = 0
        """Bytes they count for."""

    def all(self) -> list[ClientSubscription]:
        """Return them, oldest first."""
        return list(self._by_number.values())

    def new_number(self, key: str) -> int:
        """Return the number of a new subscription; raises ProtocolError if it may not be."""
        if key in self._by_key:
            raise ProtocolError(f"this connection has a subscription {quoted(key)} already")
        if len(self._by_key) >= self._limit:
            raise ProtocolError(f"this connection has max-subscriptions {self._limit} already")
        self._numbers += 1
        return self._numbers

    def add(self, subscription: ClientSubscription, *, consumers: int = 1) -> None:
        """Keep a subscription, which has so many ``consumers`` in the core, by its key."""
        asked = subscription.asked
        names = len(asked.key) + len(asked.destination)
        of_selector = CHARACTER_BYTES * len(asked.selector or "")
        subscription.cost = _COST * consumers + 4 * names + of_selector
        self.size += subscription.cost
        self._by_key[asked.key] = subscription
        self._by_number[subscription.number] = subscription
        if subscription.core is not None:
            self._by_core[subscription.core] = subscription

    def of(self, core: SubscriptionHandle) -> ClientSubscription | None:
        """Return the subscription with that end in the core; None if it was closed."""
        return self._by_core.get(core)

    def remove(self, key: str) -> ClientSubscription:
        """Forget a subscription and return it; raises ProtocolError."""
        if key not in self._by_key:
            raise ProtocolError(f"this connection has no subscription {quoted(key)}")
        subscription = self._by_key.pop(key)
        self.size -= subscription.cost
        del self._by_number[subscription.number]
        if subscription.core is not None:
            del self._by_core[subscription.core]
        return subscription

    def using(self, key: str, durable: str) -> ClientSubscription | None:
        """Forget and return the use of a durable subscription that an UNSUBSCRIBE ends.

        None if it names none; raises ProtocolError if ``key`` is a use of something else.
        """
        found = self._by_key.get(key)
        if found is None:
            if key:
                return None
            uses = [at for at, one in self._by_key.items() if one.asked.durable == durable]
            return self.remove(uses[0]) if uses else None
        if found.asked.durable != durable:
            raise ProtocolError(
                f"subscription {quoted(key)} is not of the durable subscription {quoted(durable)}"
            )
        return self.remove(key)

    def clear(self) -> list[ClientSubscription]:
        """Forget all and return them."""
        subscriptions = self.all()
        self.size = 0
        self._by_key.clear()
        self._by_number.clear()
        self._by_core.clear()
        return subscriptions

    def named(self, frame: Frame) -> tuple[ClientSubscription, int]:
        """Return the subscription and the seq that an ACK or NACK names; raises ProtocolError.

        In 1.2 by the ``ack`` header of the MESSAGE, in 1.1 by subscription and message-id, in 1.0
        by message-id alone.
        """
        if frame.version is Version.V1_2:
            if not frame.raw.get(b"id"):
                raise ProtocolError(f"{frame.command} has no id header; {_EXPECTED_ID}")
            return self._by_ack_id(frame.required(b"id"))
        seq = frame.required(b"message-id")
        if not is_whole_number(seq):
            raise ProtocolError(f"message-id {quoted(seq)} is not one this broker gave")
        if frame.version is Version.V1_1:
            key = frame.required(b"subscription")
            if key not in self._by_key:
                raise ProtocolError(f"this connection has no subscription {quoted(key)}")
            return self._by_key[key], int(seq)
        for candidate in self._by_key.values():
            if int(seq) in candidate.unacknowledged:
                return candidate, int(seq)
        for candidate in self._by_key.values():
            if _END < int(seq) <= candidate.settled_up_to:
                return candidate, int(seq)
        raise ProtocolError(f"message {seq} is not waiting for an acknowledgement")

    def _by_ack_id(self, text: str) -> tuple[ClientSubscription, int]:
        number, dash, seq = text.partition("-")
        if not (dash and is_whole_number(number) and is_whole_number(seq)):
            raise ProtocolError(
                f"ack id {quoted(text)} is not one this broker gave; {_EXPECTED_ID}"
            )
        subscription = self._by_number.get(int(number))
        if subscription is None:
            raise ProtocolError(f"the subscription of ack id {quoted(text)} is closed")
        return subscription, int(seq)
