"""A transaction so large that a node is in the middle of storing it when a fault strikes."""

import time
from contextlib import suppress

from orthia.broker.client.connection import BrokerAddress, ClientError, Connection
from tests.chaos.clients import BULK, body_of
from tests.chaos.ground import Ground
from tests.chaos.history import Kind, Operation
from tests.chaos.population import BULK_QUEUE

_MESSAGES = 60
"""Of 100 kB each."""
_SECONDS = 10.0


def send_bulk(ground: Ground, port: int) -> None:
    """Send it to the node at ``port``, COMMIT and all, and wait for no answer."""
    assert ground.history is not None
    ground.bulks += 1
    client = f"{BULK}-{ground.bulks}"
    inside = {"transaction": client}
    with suppress(ClientError):
        connection = Connection.open(BrokerAddress("127.0.0.1", port), timeout_seconds=2)
        ground.lent.callback(connection.close)
        connection.send("BEGIN", inside)
        for number in range(_MESSAGES):
            name = f"{client}/{number}"
            ground.history.add(Operation(Kind.SEND, client, BULK_QUEUE, name, transaction=client))
            headers = {"destination": BULK_QUEUE, "persistent": "true", **inside}
            connection.send("SEND", headers, body_of(name))
        ground.history.add(Operation(Kind.COMMIT, client, transaction=client))
        connection.send("COMMIT", inside)
        give_up = time.monotonic() + _SECONDS
        while connection.unsent_bytes and time.monotonic() < give_up:
            connection.exchange(0.05)
    ground.history.add(Operation(Kind.LOST, client))  # nobody will know what became of it
