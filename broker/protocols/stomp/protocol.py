"""STOMP as one acceptor serves it."""

from collections.abc import Sequence

from typing_extensions import override

from orthia.broker.core.broker import Broker
from orthia.broker.protocols.abc import ProtocolConnection, ServedProtocol, Socket
from orthia.broker.protocols.stomp.connection import StompConnection
from orthia.broker.protocols.stomp.options import SUBPROTOCOLS, StompOptions
from orthia.config.clock import monotonic_seconds
from orthia.config.settings import AcceptorSettings, ClientLimits


class Stomp(ServedProtocol):
    """STOMP with the options of an acceptor."""

    __slots__ = ("_options",)

    def __init__(self, acceptor: AcceptorSettings, limits: ClientLimits) -> None:
        """``limits`` hold where the acceptor sets none of its own."""
        self._options = StompOptions.of(acceptor, limits)

    @property
    @override
    def versions(self) -> str:
        return "STOMP 1.0, 1.1 or 1.2"

    @property
    @override
    def greeting(self) -> bytes:
        """None: a client may begin with line ends, and with CONNECT or STOMP."""
        return b""

    @property
    @override
    def subprotocols(self) -> Sequence[str]:
        return tuple(SUBPROTOCOLS)

    @override
    def connect(self, core: Broker, socket: Socket) -> ProtocolConnection:
        return StompConnection(core, self._options, socket, monotonic_seconds)
