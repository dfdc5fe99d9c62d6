# mypyc compiles this module.
"""Client ids that one connection alone may have."""

from orthia.broker.core.errors import BrokerError
from orthia.broker.quoting import quoted


class ClientIdInUse(BrokerError):  # noqa: N818 - named for what is the case
    """Another connection has the client id alone."""


class SoleClients:
    """Which connections have a client id alone; on the loop's thread."""

    __slots__ = ("_owners",)

    def __init__(self) -> None:
        self._owners: dict[str, object] = {}

    def claim(self, client_id: str, owner: object) -> None:
        """Let a connection have a client id alone; raises ClientIdInUse."""
        if self._owners.setdefault(client_id, owner) is not owner:
            raise ClientIdInUse(
                f"client id {quoted(client_id)} is another connection's; each connection wants a"
                " client id of its own, or has to wait until the other one is gone"
            )

    def release(self, client_id: str, owner: object) -> None:
        """Let others have the client id of a connection that has ended."""
        if self._owners.get(client_id) is owner:
            del self._owners[client_id]
