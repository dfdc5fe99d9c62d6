"""Eviction of clients when they hold too much; both the log and the client get the reason."""

import logging
from collections.abc import Collection
from typing import TypeVar

from orthia.broker.connections.abc import Client
from orthia.broker.connections.client_memory import ClientMemory
from orthia.broker.core.errors import Refusal
from orthia.broker.core.limits.refusals import Refusals

LOGGER = logging.getLogger("orthia.broker")
_Client = TypeVar("_Client", bound=Client)


class Eviction:
    """Evicts clients by the rules of ``ClientMemory``."""

    def __init__(self, memory: ClientMemory, refusals: Refusals) -> None:
        self._memory = memory
        self._refusals = refusals

    def has_sent_when_full(self, client: Client, sent_bytes: int) -> None:
        """Evict a client that sent more while memory is full, if it holds more than its share."""
        if sent_bytes > self._memory.share:
            self._end(client, f"{self._who_is_full(client)}, and this one went on sending")

    def make_room(self, clients: Collection[_Client]) -> None:
        """Evict large idle clients, then resume the deliveries of others while there is room."""
        memory = self._memory
        while (victim := memory.victim(clients)) is not None:
            before = memory.used
            self._end(
                victim,
                f"{self._who_is_full(victim)}, and this one did not read, send or acknowledge for a"
                " while",
            )
            if memory.used >= before:
                break  # its bytes are still being written
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
            "evicting a client at %s, for which %d bytes are held: %s",
            client.address,
            client.held,
            reason,
        )
        self._refusals.count(Refusal.SLOW)
        client.end(reason)
