# mypyc compiles this module.
"""One client's session, as the handlers of its frames see it: who it is, what answers it, its end.

Each handler takes the session, and beside it what it alone needs. ``connection`` implements it.
"""

from abc import abstractmethod
from collections.abc import Callable

from orthia.broker.core.api import Done
from orthia.broker.core.broker import Broker
from orthia.broker.core.errors import Refusal
from orthia.broker.core.identity import Principal
from orthia.broker.protocols.abc import ProtocolConnection, Socket
from orthia.broker.protocols.stomp.client_frame import Frame
from orthia.broker.protocols.stomp.frames import Version
from orthia.broker.protocols.stomp.options import StompOptions
from orthia.broker.protocols.stomp.output import Output
from orthia.broker.protocols.stomp.receipts import Receipts
from orthia.broker.protocols.stomp.states import Event, State
from orthia.config.errors import OrthiaError


class Session(ProtocolConnection):
    """The context of all handlers of one client; how it ends is up to ``connection``."""

    def __init__(
        self, core: Broker, options: StompOptions, socket: Socket, clock: Callable[[], float]
    ) -> None:
        self.core = core
        self.options = options
        self.socket = socket
        self.clock = clock
        self.state = State.CONNECTING
        self.principal = Principal("", frozenset())
        """Whom the client acts for: nobody before its login."""
        self.version = Version.V1_2
        """The version it speaks: the newest before its CONNECT."""
        self.newest = Version.V1_2
        """The newest version it may ask for."""
        self.output = Output(socket, core.large)
        self.receipts = Receipts(self.output)
        self.unacknowledged = 0
        """Bytes of deliveries that wait for an acknowledgement."""
        self.acknowledged = 0
        """Bytes of deliveries that the client acknowledged or gave back so far."""

    def hold(self, change: int) -> None:
        """Note that so many bytes of deliveries more, or fewer, wait for an acknowledgement."""
        self.unacknowledged += change
        if change < 0:
            self.acknowledged -= change

    @abstractmethod
    def move(self, event: Event) -> None:
        """Go to the state that ``event`` leads to."""

    @abstractmethod
    def resume_deliveries(self) -> None:
        """Deliver again: the socket takes more, or a large body was written whole."""

    @abstractmethod
    def refuse(self, reason: str, receipt: str | None, kind: Refusal | None) -> None:
        """End with an ERROR that says ``reason`` and answers ``receipt``; count it as ``kind``."""

    @abstractmethod
    def refuse_for(self, error: OrthiaError, frame: Frame | None) -> None:
        """End because of what ``frame`` asked for; without an ERROR if this node is to blame."""

    @abstractmethod
    def refuse_unstored(self, error: OrthiaError, done: Done | None) -> None:
        """End because the store refused what ``done`` would have answered."""

    @abstractmethod
    def stop_serving(self) -> None:
        """Do nothing more of what came, and end once all that was done is answered."""
