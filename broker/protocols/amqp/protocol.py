"""AMQP 1.0 as one acceptor serves it."""

from collections.abc import Sequence

from typing_extensions import override

from orthia.broker.core.broker import Broker
from orthia.broker.protocols.abc import ProtocolConnection, ServedProtocol, Socket
from orthia.broker.protocols.amqp.connection import AmqpConnection
from orthia.broker.protocols.amqp.options import SUBPROTOCOLS, AmqpOptions
from orthia.config.clock import monotonic_seconds
from orthia.config.settings import AcceptorSettings, ClientLimits


class Amqp(ServedProtocol):
    """AMQP with the options of an acceptor."""

    __slots__ = ("_options",)

    def __init__(self, acceptor: AcceptorSettings, limits: ClientLimits) -> None:
        """``limits`` hold where the acceptor sets none of its own."""
        self._options = AmqpOptions.of(acceptor, limits)

    @property
    @override
    def versions(self) -> str:
        return "AMQP 1.0"

    @property
    @override
    def greeting(self) -> bytes:
        """The beginning of a protocol header, of AMQP itself or of its layer for SASL."""
        return b"AMQP"

    @property
    @override
    def subprotocols(self) -> Sequence[str]:
        return SUBPROTOCOLS

    @override
    def connect(self, core: Broker, socket: Socket) -> ProtocolConnection:
        return AmqpConnection(core, self._options, socket, monotonic_seconds)
