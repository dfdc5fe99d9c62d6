# mypyc compiles this module.
"""One client, as its sessions and links see it: who it is, what it may have, how it ends.

``connection`` implements it.
"""

from abc import abstractmethod
from collections.abc import Callable

from orthia.broker.core.api import SubscriptionName
from orthia.broker.core.broker import Broker
from orthia.broker.core.errors import Refusal
from orthia.broker.core.identity import Principal
from orthia.broker.core.slices import Wait
from orthia.broker.protocols.abc import ProtocolConnection, Socket
from orthia.broker.protocols.amqp.drains import Drains
from orthia.broker.protocols.amqp.frames import MIN_MAX_FRAME_SIZE, encode_frame
from orthia.broker.protocols.amqp.options import AmqpOptions
from orthia.broker.protocols.amqp.performatives import Error, encode_performative
from orthia.broker.protocols.amqp.uploads import Uploads


class Client(ProtocolConnection):
    """The context of all sessions and links of one client."""

    def __init__(
        self, core: Broker, options: AmqpOptions, socket: Socket, clock: Callable[[], float]
    ) -> None:
        self.core = core
        self.options = options
        self.socket = socket
        self.clock = clock
        self.uploads = Uploads(core, options, socket, clock)
        """The large messages that it is sending."""
        self.drains = Drains(core, socket.usage)
        """What its links are to answer once they have looked at all there is."""
        self.principal = Principal("", frozenset())
        """Whom the client acts for: nobody before its login."""
        self.is_over = False
        """Whether nothing is written any more."""
        self.is_writable = True
        """Whether the socket takes more."""
        self.is_serving = False
        """Whether messages are delivered."""
        self.max_frame_size = MIN_MAX_FRAME_SIZE
        """Bytes of a frame that the client takes."""
        self.links = 0
        """How many links it has."""
        self.links_size = 0
        """Bytes that they count for."""
        self.ending: dict[SubscriptionName, Wait] = {}
        """The durable subscriptions that it has ended, as long as they are not deleted."""
        self.buffered = 0
        """Bytes of messages that it sends and that are not whole yet; none of uploads."""
        self.unwritten = 0
        """Bytes of the message that each link delivers for which there was no room yet."""
        self.unacknowledged = 0
        """Bytes of deliveries that wait for an outcome."""
        self.acknowledged = 0
        """Bytes of deliveries that got one so far."""
        self.outstanding = 0
        """How many things it asked for wait for the store, to be answered then."""
        self.beyond = 0
        """Bytes that it sent to full addresses by the credit it had, since there was room."""

    def hold(self, change: int) -> None:
        """Note that so many bytes of deliveries more, or fewer, wait for an outcome."""
        self.unacknowledged += change
        if change < 0:
            self.acknowledged -= change

    def takes_messages(self) -> bool:
        """Return whether a message may be delivered now."""
        return self.is_writable and self.is_serving and self.socket.has_room()

    def write(self, frame: bytes) -> None:
        """Write a frame; nothing once all is over."""
        if not self.is_over:
            self.socket.write(frame)

    def say(self, channel: int, performative: object) -> None:
        """Write a performative on a channel."""
        if not self.is_over:
            self.socket.write(encode_frame(encode_performative(performative), channel))

    @abstractmethod
    def refuse(self, error: Error, kind: Refusal | None) -> None:
        """End the connection with an error; count it as ``kind``."""

    @abstractmethod
    def stop_serving(self) -> None:
        """Do nothing more of what came, and end once all that was done is answered."""
