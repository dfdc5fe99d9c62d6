# mypyc compiles this module.
"""The settings of one acceptor for its STOMP clients."""

from dataclasses import dataclass, field, replace
from typing import Final

from orthia.broker.protocols.abc import UNAUTHENTICATED_BYTES
from orthia.broker.protocols.prefixes import Prefixes
from orthia.broker.protocols.stomp.frames import Version
from orthia.broker.protocols.stomp.unknown_headers import UnknownHeaders
from orthia.broker.protocols.stomp.virtual_topics import VirtualTopics
from orthia.config.settings import AcceptorSettings, ClientLimits

MAX_CONNECT_BYTES: Final = UNAUTHENTICATED_BYTES
"""Bytes of the headers of a CONNECT frame."""
SUBPROTOCOLS: Final = {f"v{one.value.replace('.', '')}.stomp": one for one in Version}
"""The newest version that a client may ask for, by the registered name of a WebSocket's
sub-protocol; the oldest version first."""


@dataclass(frozen=True, slots=True)
class StompOptions:
    """Shared by all connections of an acceptor."""

    limits: ClientLimits
    connection_ttl: int = -1
    """Milliseconds a client without heart-beats may be silent; -1 is for ever."""
    silence_factor: float = 2.0
    """How many of its heart-beat intervals a client may be silent for."""
    prefixes: Prefixes | None = None
    virtual_topics: VirtualTopics | None = None
    unknown_headers: UnknownHeaders = field(default_factory=UnknownHeaders, compare=False)
    """Those that were logged."""

    @classmethod
    def of(cls, acceptor: AcceptorSettings, limits: ClientLimits) -> "StompOptions":
        """Return those of an acceptor; ``limits`` hold where it sets none of its own."""
        if acceptor.handshake_timeout is not None:
            limits = replace(limits, connect_timeout=acceptor.handshake_timeout * 1000)
        if acceptor.min_large_message_size is not None:
            limits = replace(limits, min_large_message_size=acceptor.min_large_message_size)
        return cls(
            limits,
            acceptor.connection_ttl,
            acceptor.heart_beat_to_connection_ttl_modifier,
            Prefixes.of(acceptor),
            VirtualTopics.of(acceptor),
        )

    @property
    def limits_before_login(self) -> ClientLimits:
        """The limits of a client that has not logged in."""
        limits = self.limits
        return replace(
            limits,
            max_header_bytes=min(limits.max_header_bytes, MAX_CONNECT_BYTES),
            max_body_bytes=min(limits.max_body_bytes, MAX_CONNECT_BYTES),
        )
