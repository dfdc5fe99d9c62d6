"""The parts of a ``broker.xml`` that can be read without the rest.

Who looks at a store needs the password of its database, and not those of users, key stores and
metrics: what is not of the part that is asked for is left out before any ``${...}`` is looked up.
"""

from enum import Enum
from typing import Final

_OF_THE_STORE: Final = frozenset(
    {
        *("name", "store", "persistence-enabled", "password-codec", "ha-policy"),
        *("bindings-directory", "large-messages-directory", "failover-log-directory"),
    }
)

_OF_HTTP: Final = frozenset({"name", "password-codec", "health"})


class Part(Enum):
    """What of a file is asked for; the settings of the rest are the defaults."""

    WHOLE = "whole"
    STORE = "store"
    """Messages, locks and the failover log: where they are, and how to reach them."""
    ACCEPTORS = "acceptors"
    """The store, and what is listened on: key stores with their passwords."""
    HTTP = "http"
    """Where the node serves HTTP."""

    def includes(self, section: str) -> bool:
        """Tell whether ``section``, the name of an element in ``core``, is of this part."""
        if self is Part.HTTP:
            return section in _OF_HTTP
        if self is Part.WHOLE or section in _OF_THE_STORE or section.startswith("journal-"):
            return True
        return self is Part.ACCEPTORS and section == "acceptors"
