"""Logs headers that have no meaning here, of the frames that ask for something.

Those of a SEND go to the receivers of the message. Those of a SUBSCRIBE go nowhere: whoever means a
header of another broker, or misspells one, would notice by the messages alone. That is no reason to
end the connection, since the specification allows headers of a client's own.
"""

import difflib
import logging
from collections.abc import Iterable, Mapping
from typing import Final

from orthia.broker.protocols.stomp.headers import HEADERS
from orthia.broker.quoting import quoted

LOGGER = logging.getLogger("orthia.broker")
_FRAMES: Final = ("CONNECT", "SUBSCRIBE", "UNSUBSCRIBE", "NACK")
"""Frames that a header can change. The others, beside SEND and ACK, name a transaction or end the
connection: no broker reads more of them."""
_OF_EVERY_FRAME: Final = frozenset({"receipt", "content-length", "content-type"})
_KNOWN: Final[Mapping[str, frozenset[str]]] = {
    frame: _OF_EVERY_FRAME | {one.name for one in HEADERS if frame in one.frames}
    for frame in _FRAMES
}
_RAW: Final = {frame: frozenset(name.encode() for name in names) for frame, names in _KNOWN.items()}
_MOST: Final = 64
"""Names that are logged of each frame: clients can make up any number."""
_LONGEST: Final = 80


class UnknownHeaders:
    """Logs each name once; shared by all connections of an acceptor."""

    def __init__(self) -> None:
        self._logged: dict[str, set[bytes]] = {frame: set() for frame in _FRAMES}

    def look(self, command: str, names: Iterable[bytes]) -> None:
        """Log those of the header ``names`` that have no meaning in a frame of this ``command``."""
        unknown = set(names) - _RAW[command]
        logged = self._logged[command]
        for name in sorted(one[:_LONGEST] for one in unknown):
            if name not in logged and len(logged) < _MOST:
                logged.add(name)
                self._log(command, name.decode(errors="replace"))

    @staticmethod
    def _log(command: str, name: str) -> None:
        known = {one.lower(): one for one in sorted(_KNOWN[command])}
        near = difflib.get_close_matches(name.lower(), known, 1)
        LOGGER.warning(
            "ignoring the header %s of a client's %s, which has no meaning here%s (logged once for"
            " each name; `orthia docs stomp-headers` lists those that have)",
            quoted(name),
            command,
            f"; did it mean {known[near[0]]}?" if near else "",
        )
