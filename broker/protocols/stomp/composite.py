# mypyc compiles this module.
"""Destinations that name several: ``/queue/a,/topic/b``, as in Classic.

Each of them has its prefix; a name with a comma that has none is one name, as in Artemis. A SEND
goes to all of them in one unit of the journal. A SUBSCRIBE has a consumer at each, with the credit
that was asked for, and each MESSAGE says which of them it is of.
"""

from collections.abc import Sequence
from typing import Final

from typing_extensions import override

from orthia.broker.core.api import (
    AfterAll,
    Answer,
    Done,
    MessageReference,
    Settlement,
    SubscriptionHandle,
)
from orthia.broker.core.errors import Refusal
from orthia.broker.core.identity import Principal
from orthia.broker.protocols.stomp.frames import ProtocolError
from orthia.broker.protocols.stomp.subscription import ClientSubscription
from orthia.config.address_settings import RoutingType
from orthia.journal.model.changes import MessageLocation

_PREFIXES: Final = (
    *("/queue/", "/topic/", "/temp-queue/", "/temp-topic/"),
    *("/remote-temp-queue/", "/remote-temp-topic/"),
)
MOST: Final = 64
"""How many destinations one frame may name: all that it does for them is done in one piece."""


def destinations_of(destination: str) -> list[str] | None:
    """Return the destinations that one names, if they are several; raises ProtocolError."""
    if ",/" not in destination:
        return None
    named = destination.split(",")
    if not all(one.startswith(_PREFIXES) for one in named):
        return None
    if len(named) > MOST:
        raise ProtocolError(f"a frame names {MOST} destinations at most, and this {len(named)}")
    return named


class Member:
    """The core's consumer at one of the destinations of a subscription."""

    __slots__ = ("_handle", "_owners", "_subscription", "destination")

    def __init__(
        self,
        subscription: ClientSubscription,
        destination: str,
        owners: dict[int, SubscriptionHandle],
    ) -> None:
        """``owners`` says which member's messages the client has, by seq; all members share it."""
        self._subscription = subscription
        self._owners = owners
        self._handle: SubscriptionHandle | None = None
        self.destination = destination

    def attach(self, handle: SubscriptionHandle) -> None:
        """Take its end in the core: called once, before that end's ``resume``."""
        self._handle = handle

    @property
    def handle(self) -> SubscriptionHandle:
        """Its end in the core."""
        if self._handle is None:
            raise RuntimeError("a member of a subscription has no end in the core")
        return self._handle

    @property
    def connection(self) -> object:
        """Whose it is."""
        return self._subscription.connection

    @property
    def principal(self) -> Principal:
        """Whom its client acts for."""
        return self._subscription.principal

    @property
    def is_writable(self) -> bool:
        """Whether the socket takes more."""
        return self._subscription.is_writable

    def deliver(self, reference: MessageReference) -> None:
        """Write a MESSAGE of this destination.

        Not one that the client has from another member, where both are names of a non-destructive
        queue: the client could not say which of the two it acknowledges.
        """
        handle = self.handle
        if self._owners.get(reference.seq, handle) is not handle:
            handle.reject((reference,), None)
            return
        self._owners[reference.seq] = handle
        self._subscription.deliver_from(self.destination, handle.routing_type, reference)

    def settled(self, references: Sequence[MessageReference]) -> None:
        """Forget messages that an application acknowledged in the database."""
        for one in references:
            self._owners.pop(one.seq, None)
        self._subscription.settled(references)

    def holds(self, change: int) -> None:
        """Count what the core keeps for the client."""
        self._subscription.holds(change)

    def fail(self, reason: str, kind: Refusal) -> None:
        """End the connection."""
        self._subscription.fail(reason, kind)


class CompositeHandle:
    """The core's end of a SUBSCRIBE to several destinations: that of each member."""

    __slots__ = ("_members", "_owners")

    def __init__(self, members: Sequence[Member], owners: dict[int, SubscriptionHandle]) -> None:
        self._members = members
        self._owners = owners

    def acknowledge(self, references: Sequence[MessageReference], done: Done | None) -> None:
        """Delete delivered messages; ``done`` follows the last commit."""
        owned, then = self._answered(references, done)
        for handle, its in owned.items():
            handle.acknowledge(its, then)

    def reject(self, references: Sequence[MessageReference], done: Done | None) -> None:
        """Return delivered messages after a failed attempt; ``done`` once that is stored."""
        owned, then = self._answered(references, done)
        for handle, its in owned.items():
            handle.reject(its, then)

    def set_aside(self, references: Sequence[MessageReference]) -> None:
        """Free the credit of delivered messages: a transaction holds them, until its end."""
        for handle, its in self._by_owner(references).items():
            handle.set_aside(its)

    def put_back(self, references: Sequence[MessageReference]) -> None:
        """Undo ``set_aside``: the transaction was aborted."""
        for handle, its in self._by_owner(references).items():
            handle.put_back(its)

    def deletes(self, references: Sequence[MessageReference]) -> list[MessageLocation]:
        """Return what the journal is to delete of messages that a transaction acknowledges."""
        return [
            location
            for handle, its in self._by_owner(references).items()
            for location in handle.deletes(its)
        ]

    def settle(
        self, references: Sequence[MessageReference], answer: Answer = Answer.ACKNOWLEDGED
    ) -> Settlement:
        """Settle what is set aside with its transaction."""
        owned = self._by_owner(references, forget=True)
        return _CompositeSettlement([handle.settle(its, answer) for handle, its in owned.items()])

    @property
    def routing_type(self) -> RoutingType:
        """That of the first destination: each message is written as of its own."""
        return self._members[0].handle.routing_type

    def resume(self) -> None:
        """Resume the deliveries of each."""
        for member in self._members:
            member.handle.resume()

    def close(self, *, attempted: Sequence[MessageReference] = ()) -> None:
        """Close each; of the ``attempted`` each counts its own."""
        for member in self._members:
            member.handle.close(attempted=attempted)

    def _answered(
        self, references: Sequence[MessageReference], done: Done | None
    ) -> tuple[dict[SubscriptionHandle, list[MessageReference]], Done | None]:
        """Forget who has messages; return that, and what each calls so that ``done`` follows."""
        owned = self._by_owner(references, forget=True)
        if done is None or owned:
            return owned, None if done is None else AfterAll(len(owned), done)
        done()
        return owned, None

    def _by_owner(
        self, references: Sequence[MessageReference], *, forget: bool = False
    ) -> dict[SubscriptionHandle, list[MessageReference]]:
        owners = self._owners
        found: dict[SubscriptionHandle, list[MessageReference]] = {}
        for one in references:
            owner = owners.pop(one.seq, None) if forget else owners.get(one.seq)
            if owner is not None:
                found.setdefault(owner, []).append(one)
        return found


class _CompositeSettlement(Settlement):
    __slots__ = ("_settlements",)

    def __init__(self, settlements: Sequence[Settlement]) -> None:
        self._settlements = settlements

    @override
    def committed(self, done: Done) -> None:
        all_done = AfterAll(len(self._settlements) + 1, done)
        for one in self._settlements:
            one.committed(all_done)
        all_done()

    @override
    def suspend(self) -> None:
        for one in self._settlements:
            one.suspend()

    @override
    def refused(self, *, failed_delivery: bool) -> None:
        for one in self._settlements:
            one.refused(failed_delivery=failed_delivery)
