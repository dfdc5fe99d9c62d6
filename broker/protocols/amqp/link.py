# mypyc compiles this module.
"""What all links have in common."""

from abc import ABC, abstractmethod

from orthia.broker.core.api import MessageReference, SubscriptionName
from orthia.broker.core.slices import Steps
from orthia.broker.protocols.amqp.client import Client
from orthia.broker.protocols.amqp.conditions import NOT_ALLOWED, LinkFault
from orthia.broker.protocols.amqp.performatives import (
    Attach,
    DeliveryState,
    Error,
    Flow,
    Transfer,
)

_COST = 3_072
"""Bytes a link counts for beside its name and addresses, which are kept several times."""


def cost_of(said: Attach) -> int:
    """Return how many bytes a link counts for while it is there."""
    addresses = sum(len(getattr(one, "address", None) or "") for one in (said.source, said.target))
    return _COST + 4 * (len(said.name) + addresses)


class LinkSession(ABC):
    """The session of a link, as its links see it; ``session`` implements it."""

    __slots__ = ()

    client: Client

    @abstractmethod
    def say(self, performative: object) -> None:
        """Write a performative."""

    @abstractmethod
    def windows(self) -> tuple[int, int, int, int]:
        """Return what each flow says of the session."""

    @abstractmethod
    def end_link(self, link: "Link", error: Error) -> None:
        """End a link for a reason that the client is told."""

    # --- what the client receives

    @abstractmethod
    def takes_messages(self) -> bool:
        """Return whether a message may be delivered now."""

    @abstractmethod
    def deliver(
        self,
        link: "Link",
        reference: MessageReference,
        head: bytes,
        body: bytes,
        *,
        is_settled: bool,
        more: bool = False,
    ) -> int:
        """Write a message in as many transfers as it needs; return its delivery id.

        ``head`` is what precedes its ``body``. If there is ``more`` of it, ``go_on`` follows.
        """

    @abstractmethod
    def go_on(self, link: "Link", payload: bytes, *, more: bool) -> None:
        """Write more of the message of a link that is not whole."""

    @abstractmethod
    def abort(self, link: "Link") -> None:
        """End the message of a link that will not be whole: the client has none."""

    @abstractmethod
    def is_amid(self, link: "Link") -> bool:
        """Return whether the newest message of a link waits for room in the client's window."""

    @abstractmethod
    def take(self, link: "Link", ids: list[int]) -> list[MessageReference]:
        """Take deliveries out of those that are not settled; return their messages."""

    @abstractmethod
    def put_back(self, link: "Link", delivered: dict[int, MessageReference]) -> None:
        """Undo ``take``, for a link that is still there."""

    @abstractmethod
    def say_settled(self, ids: list[int], state: DeliveryState) -> None:
        """Say that deliveries are settled with an outcome."""

    # --- what the client sends

    @abstractmethod
    def accept(self, delivery_id: int) -> None:
        """Say that a message which the client sent is accepted: with others that are, too."""

    @abstractmethod
    def flush_accepted(self) -> None:
        """Say what is accepted, each range that is without a gap in one frame."""

    @abstractmethod
    def say_transacted(self, delivery_id: int, txn_id: bytes) -> None:
        """Say that a message which the client sent is accepted in a transaction."""


class Link(ABC):
    """A link of a session, of either direction."""

    __slots__ = ("cost", "handle", "name", "node", "session", "subscription", "unsettled")

    def __init__(self, session: LinkSession, said: Attach, cost: int) -> None:
        self.session = session
        self.name = said.name
        self.handle = said.handle
        """By which both sides call it: the client has chosen it, and it is as good for this one."""
        self.cost = cost
        """Bytes it counts for while it is there."""
        self.node: str | None = None
        """The address of the node that was made for it, and goes when it is closed."""
        self.subscription: SubscriptionName | None = None
        """The durable subscription that it is to, and that is deleted when it is closed."""
        self.unsettled: dict[int, MessageReference] = {}
        """What the client has of it and did not settle, by delivery id."""

    @abstractmethod
    def flow(self, said: Flow) -> None:
        """Take note of how far the client is with the link, and of its credit."""

    def transfer_whole(
        self, delivery_id: int, data: bytes, begin: int, *, is_settled: bool
    ) -> Steps | None:
        """Take a message in one transfer that says nothing else, as ``transfer`` does.

        The message is all of ``data`` from ``begin`` on.
        """
        said = Transfer(self.handle, delivery_id, b"", 0, is_settled)
        return self.transfer(said, data[begin:])

    def transfer(self, said: Transfer, payload: bytes) -> Steps | None:
        """Take a message, or a part of one; raises LinkFault.

        Returns steps to be done before the next frame, if there are any.
        """
        del said, payload
        raise LinkFault(NOT_ALLOWED, f"link {self.name!r} is for messages to the client")

    @property
    def partial_state(self) -> DeliveryState | None:
        """What the client says of the message that is coming by it and is not whole."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Let go of what it has in the core: what is not settled goes back."""
