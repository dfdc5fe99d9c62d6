"""The connections of clients of a live node as operators see them, a page at a time."""

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from operator import attrgetter
from typing import Final

from orthia.broker.core.slices import GO_ON, Finding
from orthia.broker.management.abc import ConnectedClients
from orthia.broker.management.listing import Asked, Kind, Listing, Page
from orthia.broker.management.views import ConnectionView
from orthia.broker.management.waiting import Waiting
from orthia.config.clock import monotonic_seconds

_STEP: Final = 16
"""Connections that are looked at in one step."""
_FIELDS: Final = tuple(one.name for one in fields(ConnectionView))


class ConnectionLists:
    """Shows connections; on the loop's thread."""

    def __init__(
        self,
        clients: ConnectedClients,
        consumers: Callable[[], Finding[Mapping[str, int]]],
        waiting: Waiting,
        time_ms: Callable[[], int],
        clock: Callable[[], float] = monotonic_seconds,
    ) -> None:
        """``consumers`` counts those of each connection that has any."""
        self._clients = clients
        self._consumers = consumers
        kind: Kind[ConnectionView, ConnectionView] = Kind(
            "connections",
            self._members,
            object,  # a member is its connection at one moment, so all are others each time
            "id",
            {name: attrgetter(name) for name in _FIELDS},
            lambda one: (one.id, one.user, one.address, one.client_id or ""),
            lambda one: one,
        )
        self._listing = Listing(kind, waiting.begin, clock, time_ms)

    def forget(self) -> None:
        """Show whoever asks next what was changed."""
        self._listing.forget()

    async def page(self, asked: Asked) -> Page[ConnectionView]:
        """Return a page of all that have logged in; raises WrongArgument."""
        return await self._listing.page(asked)

    def _members(self) -> Finding[list[ConnectionView]]:
        consumers = yield from self._consumers()
        found: list[ConnectionView] = []
        for number, one in enumerate(self._clients.connections()):
            found.append(replace(one, consumers=consumers[one.id]) if one.id in consumers else one)
            if number % _STEP == 0:
                yield GO_ON
        return found
