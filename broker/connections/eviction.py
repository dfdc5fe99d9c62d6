"""Who has to go when clients hold too much: told why, in the log and to the client."""

import logging
from collections.abc import Collection
from typing import TypeVar

from orthia.broker.connections.abc import Client
from orthia.broker.connections.client_memory import ClientMemory
from orthia.broker.core.limits.refusals import Refusal, Refusals

LOGGER = logging.getLogger("orthia.broker")
_Client = TypeVar("_Client", bound=Client)


class Eviction:
    """Ends clients for what they hold, by the rules of ``ClientMemory``."""

    def __init__(self, memory: ClientMemory, refusals: Refusals) -> None:
        self._memory = memory
        self._refusals = refusals

    def has_sent_when_full(self, client: Client, sent_bytes: int) -> None:
        """End a client that sent more while there is no memory, if it holds more than its share."""
        if sent_bytes > self._memory.share:
            self._end(client, f"{self._who_is_full(client)}, and this one went on sending")

    def make_room(self, clients: Collection[_Client]) -> None:
        """End clients that hold much and do nothing; have others go on when there is room."""
        memory = self._memory
        while (victim := memory.victim(clients)) is not None:
            before = memory.used
            self._end(
                victim,
                f"{self._who_is_full(victim)}, and this one did not read, send or acknowledge for a"
                " while",
            )
            if memory.used >= before:
                break  # what it held is still on its way out
        memory.relieve()

    def _who_is_full(self, client: Client) -> str:
        memory, account = self._memory, client.account
        if memory.is_full:
            return f"all clients together hold max-client-bytes {memory.limit} in the broker"
        return (
            f"{account.name} hold {account.limit} in the broker, the most of max-client-bytes"
            f" {memory.limit} that is for one"
        )

    def _end(self, client: Client, reason: str) -> None:
        LOGGER.warning(
            "a client at %s was ended with %d bytes held for it, because %s",
            client.address,
            client.held,
            reason,
        )
        self._refusals.count(Refusal.SLOW)
        client.end(reason)
