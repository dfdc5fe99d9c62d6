"""``/temp-queue/NAME`` and ``/temp-topic/NAME``: what a connection calls its own, as in Classic.

The first frame that names one creates it: a SUBSCRIBE, a SEND, or the ``reply-to`` of one. Whoever
receives that message finds in ``reply-to`` a destination that anybody may send to.
"""

from typing import Final

from orthia.broker.protocols.stomp.client_frame import Frame
from orthia.broker.protocols.stomp.frames import ProtocolError, escape
from orthia.broker.protocols.stomp.session import Session
from orthia.config.address_settings import RoutingType

_PREFIXES: Final = {
    "/temp-queue/": RoutingType.ANYCAST,
    "/temp-topic/": RoutingType.MULTICAST,
}
_BEGINNINGS: Final = tuple(_PREFIXES)
_LONGEST: Final = 200
"""Characters of a name, which is part of a longer one."""


class TemporaryDestinations:
    """The temporary destinations of one connection, by the names its client gives them."""

    __slots__ = ("_created", "_session")

    def __init__(self, session: Session) -> None:
        self._session = session
        self._created: dict[str, str] = {}

    def of_core(self, destination: str) -> str:
        """Return the destination as the core knows it; raises ProtocolError and BrokerError."""
        if not destination.startswith(_BEGINNINGS):
            return destination
        created = self._created.get(destination)
        if created is None:
            prefix = next(one for one in _BEGINNINGS if destination.startswith(one))
            name = destination[len(prefix) :]
            if not name or len(name) > _LONGEST:
                raise ProtocolError(
                    f"a temporary destination has a name of 1 to {_LONGEST} characters:"
                    f" {prefix}NAME"
                )
            session = self._session
            created = session.core.create_temporary(session.principal, _PREFIXES[prefix], name)
            self._created[destination] = created
        return created

    def rewrite_reply_to(self, frame: Frame) -> None:
        """Replace a temporary ``reply-to`` of a SEND by the destination that others send to."""
        reply_to = frame.get(b"reply-to")
        if reply_to is not None and reply_to.startswith(_BEGINNINGS):
            frame.raw[b"reply-to"] = escape(self.of_core(reply_to).encode(), frame.version)

    def end(self) -> None:
        """Delete all of them: their connection is over."""
        if self._created:
            self._created.clear()
            self._session.core.end_temporaries(self._session.principal)
