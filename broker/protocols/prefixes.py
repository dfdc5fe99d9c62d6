# mypyc compiles this module.
"""``anycastPrefix`` and ``multicastPrefix`` of an acceptor.

The core knows ``/queue/NAME`` and ``/topic/NAME``. A destination that begins with a prefix of its
acceptor becomes one of these; as in Artemis the prefix is not part of the address.
"""

from orthia.config.settings import AcceptorSettings


class Prefixes:
    """The prefixes of one acceptor; of those that a destination begins with, the longest counts."""

    def __init__(self, acceptor: AcceptorSettings) -> None:
        known = [
            *((prefix, "/queue/") for prefix in acceptor.anycast_prefixes),
            *((prefix, "/topic/") for prefix in acceptor.multicast_prefixes),
        ]
        self._known = sorted(known, key=lambda one: -len(one[0]))

    @classmethod
    def of(cls, acceptor: AcceptorSettings) -> "Prefixes | None":
        """Return those of an acceptor; None if it has none, which costs nothing."""
        return cls(acceptor) if acceptor.anycast_prefixes or acceptor.multicast_prefixes else None

    def of_core(self, destination: str) -> str:
        """Return the destination as the core knows it."""
        for prefix, meant in self._known:
            if destination.startswith(prefix):
                return meant + destination[len(prefix) :]
        return destination
