# mypyc compiles this module.
"""The settings of one acceptor for its AMQP clients."""

from dataclasses import dataclass, field, replace
from typing import Final

from orthia.broker.protocols.abc import UNAUTHENTICATED_BYTES
from orthia.broker.protocols.prefixes import Prefixes
from orthia.config.acceptor_amqp import AcceptorAmqp
from orthia.config.settings import AcceptorSettings, ClientLimits

SUBPROTOCOLS: Final = ("amqp",)
"""The registered name of a WebSocket's sub-protocol."""
MAX_SESSIONS: Final = 1_024
"""Sessions of one connection."""
MAX_LINKS: Final = 1_024
"""Links of one session."""
INCOMING_WINDOW: Final = 2_048
"""Transfers that a client may send on a session before it gets a new window."""


@dataclass(frozen=True, slots=True)
class AmqpOptions:
    """Shared by all connections of an acceptor."""

    limits: ClientLimits
    amqp: AcceptorAmqp = field(default_factory=AcceptorAmqp)
    prefixes: Prefixes | None = None
    has_tls: bool = False
    """Whether clients connect by TLS."""

    @classmethod
    def of(cls, acceptor: AcceptorSettings, limits: ClientLimits) -> "AmqpOptions":
        """Return those of an acceptor; ``limits`` hold where it sets none of its own."""
        amqp = acceptor.amqp
        if acceptor.handshake_timeout is not None:
            limits = replace(limits, connect_timeout=acceptor.handshake_timeout * 1000)
        return cls(limits, amqp, Prefixes.of(acceptor), acceptor.tls is not None)

    @property
    def least_large(self) -> int | None:
        """Of how many bytes a message is large, encoded; None if none is."""
        least = self.amqp.min_large_message_size
        most_of_others = self.limits.max_body_bytes + self.limits.max_header_bytes
        return min(least, most_of_others) if least > 0 else None

    @property
    def frame_before_login(self) -> int:
        """Bytes of a frame that a client may send before it has logged in."""
        return min(UNAUTHENTICATED_BYTES, self.amqp.max_frame_size)
