"""``/temp-queue/NAME`` and ``/temp-topic/NAME``: what a connection calls its own, as in Classic.

The first frame that names one makes it: a SUBSCRIBE, a SEND, or the ``reply-to`` of one. Whoever
gets that message finds in ``reply-to`` what anybody may send to.
"""

from typing import Final

from orthia.broker.core.api import BrokerCore
from orthia.broker.protocols.stomp.client_frame import Frame
from orthia.broker.protocols.stomp.frames import ProtocolError, escape
from orthia.broker.protocols.stomp.login import Client
from orthia.config.address_settings import RoutingType

_PREFIXES: Final = {
    "/temp-queue/": RoutingType.ANYCAST,
    "/temp-topic/": RoutingType.MULTICAST,
}
_BEGINNINGS: Final = tuple(_PREFIXES)
_LONGEST: Final = 200
"""Characters of a name, which is part of a longer one."""


class Temporaries:
    """Those of one connection, by what it calls them."""

    __slots__ = ("_client", "_core", "_made")

    def __init__(self, core: BrokerCore, client: Client) -> None:
        self._core = core
        self._client = client
        self._made: dict[str, str] = {}

    def of_core(self, destination: str) -> str:
        """Return the destination as the core knows it; raises ProtocolError and BrokerError."""
        if not destination.startswith(_BEGINNINGS):
            return destination
        made = self._made.get(destination)
        if made is None:
            prefix = next(one for one in _BEGINNINGS if destination.startswith(one))
            name = destination[len(prefix) :]
            if not name or len(name) > _LONGEST:
                raise ProtocolError(
                    f"a temporary destination has a name of 1 to {_LONGEST} characters:"
                    f" {prefix}NAME"
                )
            made = self._core.create_temporary(self._client.principal, _PREFIXES[prefix], name)
            self._made[destination] = made
        return made

    def name_for_others(self, frame: Frame) -> None:
        """Have the ``reply-to`` of a SEND say what others may send to."""
        reply_to = frame.get(b"reply-to")
        if reply_to is not None and reply_to.startswith(_BEGINNINGS):
            frame.raw[b"reply-to"] = escape(self.of_core(reply_to).encode(), frame.version)

    def end(self) -> None:
        """End all of them: their connection is over."""
        if self._made:
            self._made.clear()
            self._core.end_temporaries(self._client.principal)
