# mypyc compiles this module.
"""The subscriptions of one connection: what was delivered, and what an ACK means."""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Final

from orthia.broker.core.api import MessageReference, SubscriptionHandle
from orthia.broker.core.identity import Principal
from orthia.broker.core.selectors.selector import CHARACTER_BYTES
from orthia.broker.protocols.stomp.client_frame import Frame
from orthia.broker.protocols.stomp.encoding import (
    TAG,
    default_lines,
    defaults_not_said,
    head_for,
    may_say_defaults,
)
from orthia.broker.protocols.stomp.frames import (
    ProtocolError,
    Version,
    block_for,
    escape,
    is_whole_number,
)
from orthia.broker.quoting import quoted
from orthia.journal.model.message import LargeBody

_EXPECTED_ID = "expected the value of the MESSAGE's ack header, not of its message-id (STOMP 1.2)"


HEAD: Final = b"MESSAGE\ndestination:"
"""What every MESSAGE begins with."""
_REST: Final = b"\nredelivered:%b\ntimestamp:%d\n%b%bcontent-length:%d\n\n%b%b"
_MESSAGE: Final = b"%b%d" + _REST
_TO_ACK: Final = b"%b%d%b%d" + _REST
"""A MESSAGE, and one that the client is to acknowledge by its ack id."""
_COST = 3_072
"""What a subscription counts for beside its id and destination, which are kept four times."""


_END = 0
"""What the end of a browser's messages is called: no message has this seq."""


class AckMode(Enum):
    """The ``ack`` header of SUBSCRIBE."""

    AUTO = "auto"
    CLIENT = "client"
    CLIENT_INDIVIDUAL = "client-individual"


class ClientSubscription:
    """One SUBSCRIBE; the core's consumer."""

    def __init__(
        self,
        subscription_id: str | None,
        number: int,
        destination: str,
        mode: AckMode,
        *,
        version: Version,
        write: Callable[[bytes], int],
        write_part: Callable[[bytes], int],
        is_writable: Callable[[], bool],
        holds: Callable[[int], None],
        fail: Callable[[str], None],
        stream: Callable[["ClientSubscription", MessageReference, LargeBody], None],
        connection: object,
        principal: Principal,
    ) -> None:
        self.id = subscription_id
        self.destination = destination
        self.mode = mode
        self.core: SubscriptionHandle | None = None
        self.durable: str | None = None
        """The name of the durable subscription it uses."""
        self.unacknowledged: dict[int, MessageReference] = {}
        """By seq; where an ACK is cumulative, in the order they were delivered."""
        self.cost = 0
        """Bytes it counts for while it is there."""
        self.number = number
        """Unique on its connection, also when the id is used again; part of its ack ids."""
        self._version = version
        self._write = write
        self._write_part = write_part
        self._is_writable = is_writable
        self.holds = holds
        """Called by the core with each change of what it keeps for this subscription."""
        self._fail = fail
        self._stream = stream
        self.connection = connection
        """Whose it is: the same for all its subscriptions."""
        self.principal = principal
        head = HEAD + escape(destination.encode(), version)
        if subscription_id is not None:
            head += b"\nsubscription:" + escape(subscription_id.encode(), version)
        self._head = head + b"\nmessage-id:"
        # Asked for every message: an enumeration looks its members up each time.
        self._is_auto = mode is AckMode.AUTO
        self._with_ack = version is Version.V1_2 and not self._is_auto
        self._ack = b"\nack:%d-" % number
        self._defaults = b""

    def attach(self, core: SubscriptionHandle) -> None:
        """Take its end in the core: called once, before its ``resume``."""
        self.core = core
        self._defaults = default_lines(core.routing_type)

    @property
    def is_writable(self) -> bool:
        """Whether the socket takes more."""
        return self._is_writable()

    def stop(self) -> None:
        """Take no more messages."""
        self._is_writable = lambda: False

    def fail(self, reason: str) -> None:
        """End the connection."""
        self._fail(reason)

    def deliver(self, reference: MessageReference) -> None:
        """Write the MESSAGE; in ``auto`` mode that acknowledges it.

        Of a large one this writes the head; whoever is to stream the body says when it is written.
        """
        large = reference.record.large
        if large is not None:
            head = self._frame(reference, large.size)
            reference.written_at = self._write_part(head) - len(head)
            if not self._is_auto:
                self.unacknowledged[reference.seq] = reference
            self._stream(self, reference, large)
            return
        frame = self._message(reference)
        reference.written_at = self._write(frame) - len(frame)
        if not self._is_auto:
            self.unacknowledged[reference.seq] = reference
        elif self.core is None:
            raise ProtocolError("the subscription is not attached")
        else:
            self.core.acknowledge((reference,), None)

    def refuse(self, reference: MessageReference) -> None:
        """Give back a large message whose body cannot be read: that was an attempt."""
        self.unacknowledged.pop(reference.seq, None)
        if self.core is not None:
            self.core.reject((reference,), None)

    def streamed(self, reference: MessageReference) -> None:
        """Take note that the body of a large MESSAGE is written."""
        if self._is_auto and self.core is not None:
            self.core.acknowledge((reference,), None)

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
            lines = head_for(record)
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
            raise ProtocolError(
                f"message {seq} is not waiting for an acknowledgement on subscription"
                f" {quoted(self.id or self.destination)}: it was acknowledged before, never"
                " delivered here, or the subscription's ack mode is auto"
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
        return min(self.unacknowledged.values(), key=lambda one: one.written_at, default=None)


class ManyAddresses(ClientSubscription):
    """A SUBSCRIBE to a name with wildcards: each MESSAGE says which address it was sent to."""

    def hear(self, pattern: str) -> None:
        """Called once, first: the destination ends with ``pattern``, which stands for many."""
        self._prefix = self.destination.removesuffix(pattern)
        given = len(escape(self.destination.encode(), self._version))
        self._after = self._head[len(HEAD) + given :]

    def deliver(self, reference: MessageReference) -> None:
        """Write the MESSAGE; see ``ClientSubscription.deliver``."""
        destination = (self._prefix + reference.record.address).encode()
        self._head = HEAD + escape(destination, self._version) + self._after
        super().deliver(reference)


def many_addresses(pattern: str, *asked: Any, **core: Any) -> ManyAddresses:
    """Return the subscription of a destination that ends with ``pattern``."""
    subscription = ManyAddresses(*asked, **core)
    subscription.hear(pattern)
    return subscription


class ClientBrowser(ClientSubscription):
    """A SUBSCRIBE that is shown messages: a MESSAGE with ``browser:end`` follows the last."""

    def browsed(self) -> None:
        """Write the MESSAGE that ends it, whose id is that of no message."""
        ack = b"%b%d" % (self._ack, _END) if self._with_ack else b""
        self._write(b"%b%d%b\nbrowser:end\ncontent-length:0\n\n\0" % (self._head, _END, ack))

    def take(self, seq: int) -> list[MessageReference]:
        """Take what an ACK means, as ``ClientSubscription`` does; of the end nothing."""
        return [] if seq == _END else super().take(seq)


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

    def add(
        self,
        key: str,
        subscription: ClientSubscription,
        *,
        selector: str | None = None,
        parts: int = 1,
    ) -> None:
        """Keep a subscription under its id, or in 1.0 its destination if it has none.

        It is of so many ``parts``: destinations with a consumer at each.
        """
        names = len(key) + len(subscription.destination)
        of_selector = CHARACTER_BYTES * len(selector or "")
        subscription.cost = _COST * parts + 4 * names + of_selector
        self.size += subscription.cost
        self._by_key[key] = subscription
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
        """Forget the subscription that a frame ends with a durable one; None if it names none.

        Raises ProtocolError if what it names is no use of that.
        """
        found = self._by_key.get(key)
        if found is None:
            if key:
                return None
            uses = [at for at, one in self._by_key.items() if one.durable == durable]
            return self.remove(uses[0]) if uses else None
        if found.durable != durable:
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
