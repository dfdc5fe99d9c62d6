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
    Done,
    MessageReference,
    Settlement,
    SubscriptionHandle,
)
from orthia.broker.core.identity import Principal
from orthia.broker.protocols.stomp.encoding import default_lines
from orthia.broker.protocols.stomp.frames import ProtocolError, escape
from orthia.broker.protocols.stomp.subscriptions import HEAD, ClientSubscription
from orthia.config.address_settings import RoutingType
from orthia.journal.model.changes import MessageLocation

_PREFIXES: Final = (
    *("/queue/", "/topic/", "/temp-queue/", "/temp-topic/"),
    *("/remote-temp-queue/", "/remote-temp-topic/"),
)
MOST: Final = 64
"""How many one frame may name: all that it does for them is done in one piece."""


def several(destination: str) -> list[str] | None:
    """Return what a destination names, if that is more than one; raises ProtocolError."""
    if ",/" not in destination:
        return None
    named = destination.split(",")
    if not all(one.startswith(_PREFIXES) for one in named):
        return None
    if len(named) > MOST:
        raise ProtocolError(f"a frame names {MOST} destinations at most, and this {len(named)}")
    return named


class SeveralDestinations(ClientSubscription):
    """A SUBSCRIBE to several destinations."""

    def begin(self) -> None:
        """Called once, first: it has no message yet."""
        given = len(escape(self.destination.encode(), self._version))
        self._after = self._head[len(HEAD) + given :]
        self.owners: dict[int, SubscriptionHandle] = {}
        """Which consumer has a message, by seq."""

    def deliver_of(self, part: "Part", reference: MessageReference) -> None:
        """Write a MESSAGE of one of the destinations.

        Not one that the client has of another of them, where both are names of a queue of which
        nobody takes anything out: the client could not say which of the two it acknowledges.
        """
        if self.owners.get(reference.seq, part.core) is not part.core:
            part.core.reject((reference,), None)
            return
        self._head = HEAD + escape(part.destination.encode(), self._version) + self._after
        self._defaults = default_lines(part.core.routing_type)
        self.owners[reference.seq] = part.core
        self.deliver(reference)


class Part:
    """The consumer at one of them."""

    __slots__ = ("core", "destination", "whole")

    core: SubscriptionHandle

    def __init__(self, whole: SeveralDestinations, destination: str) -> None:
        self.whole = whole
        self.destination = destination

    @property
    def connection(self) -> object:
        """Whose it is."""
        return self.whole.connection

    @property
    def principal(self) -> Principal:
        """Whom its client acts for."""
        return self.whole.principal

    @property
    def is_writable(self) -> bool:
        """Whether the socket takes more."""
        return self.whole.is_writable

    def deliver(self, reference: MessageReference) -> None:
        """Write a MESSAGE."""
        self.whole.deliver_of(self, reference)

    def holds(self, change: int) -> None:
        """Count what the core keeps for the client."""
        self.whole.holds(change)

    def fail(self, reason: str) -> None:
        """End the connection."""
        self.whole.fail(reason)


class ConsumerOfSeveral:
    """The core's end of a SUBSCRIBE to several destinations: a subscription to each."""

    def __init__(self, whole: SeveralDestinations, parts: Sequence[Part]) -> None:
        self._whole = whole
        self._parts = parts

    def _by_owner(
        self, references: Sequence[MessageReference], *, forget: bool = False
    ) -> dict[SubscriptionHandle, list[MessageReference]]:
        owners = self._whole.owners
        found: dict[SubscriptionHandle, list[MessageReference]] = {}
        for one in references:
            owner = owners.pop(one.seq, None) if forget else owners.get(one.seq)
            if owner is not None:
                found.setdefault(owner, []).append(one)
        return found

    def acknowledge(self, references: Sequence[MessageReference], done: Done | None) -> None:
        """Delete delivered messages; ``done`` follows the last commit."""
        owners, then = self._answered(references, done)
        for owner, owned in owners.items():
            owner.acknowledge(owned, then)

    def reject(self, references: Sequence[MessageReference], done: Done | None) -> None:
        """Give delivered messages back after a failed attempt; ``done`` once that is stored."""
        owners, then = self._answered(references, done)
        for owner, owned in owners.items():
            owner.reject(owned, then)

    def _answered(
        self, references: Sequence[MessageReference], done: Done | None
    ) -> tuple[dict[SubscriptionHandle, list[MessageReference]], Done | None]:
        """Forget who has messages; return that, and what each calls so that ``done`` follows."""
        owners = self._by_owner(references, forget=True)
        if done is None or owners:
            return owners, None if done is None else AfterAll(len(owners), done)
        done()
        return owners, None

    def set_aside(self, references: Sequence[MessageReference]) -> None:
        """Free the credit of delivered messages: a transaction holds them, until its end."""
        for owner, owned in self._by_owner(references).items():
            owner.set_aside(owned)

    def put_back(self, references: Sequence[MessageReference]) -> None:
        """Undo ``set_aside``: the transaction was aborted."""
        for owner, owned in self._by_owner(references).items():
            owner.put_back(owned)

    def deletes(self, references: Sequence[MessageReference]) -> list[MessageLocation]:
        """Return what the journal is to delete of messages that a transaction acknowledges."""
        return [
            location
            for owner, owned in self._by_owner(references).items()
            for location in owner.deletes(owned)
        ]

    def settle(
        self, references: Sequence[MessageReference], *, rejected: bool = False
    ) -> Settlement:
        """Have what is set aside leave with its transaction."""
        owners = self._by_owner(references, forget=True)
        return _Settled([one.settle(owned, rejected=rejected) for one, owned in owners.items()])

    @property
    def routing_type(self) -> RoutingType:
        """That of the first destination: each message is written as of its own."""
        return self._parts[0].core.routing_type

    def resume(self) -> None:
        """Go on delivering."""
        for part in self._parts:
            part.core.resume()

    def close(self, *, attempted: Sequence[MessageReference] = ()) -> None:
        """End all of them."""
        for part in self._parts:
            part.core.close(attempted=attempted)


class _Settled(Settlement):
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
    def refused(self, *, in_vain: bool) -> None:
        for one in self._settlements:
            one.refused(in_vain=in_vain)
