"""The connections of a live node, as operators see and end them."""

from collections.abc import Iterator

from typing_extensions import override

from orthia.broker.connections.acceptor import Acceptors
from orthia.broker.management.abc import ConnectedClients
from orthia.broker.management.views import ConnectionView, TransactionState, TransactionView


class ServedClients(ConnectedClients):
    """Those of all acceptors of a node."""

    def __init__(self, acceptors: Acceptors) -> None:
        self._clients = acceptors.clients

    @property
    @override
    def number(self) -> int:
        return len(self._clients.logged_in())

    @override
    def connections(self) -> Iterator[ConnectionView]:
        for client, principal in self._clients.logged_in():
            settings = client.acceptor.settings
            yield ConnectionView(
                id=principal.origin.connection,
                address=client.address,
                port=client.port,
                user=principal.name,
                client_id=principal.client_id,
                verified=not principal.unrestricted,
                acceptor=settings.name,
                protocol=client.acceptor.versions,
                tls=settings.tls is not None,
                since_ms=client.since_ms,
                held_bytes=client.held,
                received_bytes=client.received,
                sent_bytes=client.bytes_taken(),
                consumers=0,
            )

    @override
    def transactions(self) -> Iterator[TransactionView]:
        for client, principal in self._clients.logged_in():
            for one in client.protocol.open_transactions():
                yield TransactionView(
                    id=one.name,
                    state=TransactionState.OPEN,
                    connection=principal.origin.connection,
                    user=principal.name,
                    client_id=principal.client_id,
                    since_ms=one.since_ms,
                    sends=one.sends,
                    acknowledges=one.acknowledges,
                    bytes=one.size,
                )

    @override
    def end(self, connection: str, reason: str) -> bool:
        client = self._clients.with_id(connection)
        if client is None:
            return False
        client.end(reason)
        return True

    @property
    @override
    def held_bytes(self) -> int:
        return self._clients.memory.used

    @property
    @override
    def limit_bytes(self) -> int:
        return self._clients.memory.limit
