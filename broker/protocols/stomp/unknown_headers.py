"""Headers that mean nothing here, of frames that ask for something: the log tells them by name.

A SEND's reach whoever gets the message. Those of a SUBSCRIBE reach nobody: who means a header of
another broker, or writes one wrongly, would find out from the messages alone. It is no reason to
end the connection, since a client may write for itself what it likes.
"""

import difflib
import logging
from collections.abc import Iterable, Mapping
from typing import Final

from orthia.broker.protocols.stomp.headers import HEADERS
from orthia.broker.quoting import quoted

LOGGER = logging.getLogger("orthia.broker")
_FRAMES: Final = ("CONNECT", "SUBSCRIBE", "UNSUBSCRIBE", "NACK")
"""That ask for what a header could change. What else a client sends beside SEND and ACK names a
transaction, or ends the connection: no broker reads more of it."""
_OF_EVERY_FRAME: Final = frozenset({"receipt", "content-length", "content-type"})
_KNOWN: Final[Mapping[str, frozenset[str]]] = {
    frame: _OF_EVERY_FRAME | {one.name for one in HEADERS if frame in one.frames}
    for frame in _FRAMES
}
_RAW: Final = {frame: frozenset(name.encode() for name in names) for frame, names in _KNOWN.items()}
_MOST: Final = 64
"""Names that are told of each frame: clients can make up any number."""
_LONGEST: Final = 80


class UnknownHeaders:
    """Tells each of them once; one for all connections of an acceptor."""

    def __init__(self) -> None:
        self._told: dict[str, set[bytes]] = {frame: set() for frame in _FRAMES}

    def look(self, command: str, names: Iterable[bytes]) -> None:
        """Tell those of a frame's headers that mean nothing in it; ``command`` is its own."""
        unknown = set(names) - _RAW[command]
        told = self._told[command]
        for name in sorted(one[:_LONGEST] for one in unknown):
            if name not in told and len(told) < _MOST:
                told.add(name)
                self._tell(command, name.decode(errors="replace"))

    @staticmethod
    def _tell(command: str, name: str) -> None:
        known = {one.lower(): one for one in sorted(_KNOWN[command])}
        near = difflib.get_close_matches(name.lower(), known, 1)
        LOGGER.warning(
            "a client's %s has the header %s, which means nothing here, and nothing comes of it%s"
            " (said once for each name; `orthia docs stomp-headers` has those that do)",
            command,
            quoted(name),
            f"; did it mean {known[near[0]]}?" if near else "",
        )
