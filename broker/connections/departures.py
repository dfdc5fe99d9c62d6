"""Clients that went while nobody read from them, as from one whose message waits for room.

A socket that is not read from does not tell that the client is gone; the kernel does when it is
asked. Else such a client would keep its place, and the messages it has, for as long as there is no
room, and who would make room could be kept out by it.
"""

import asyncio
import logging
import select
from collections.abc import Callable, Iterable
from typing import Final, Generic, Protocol, TypeVar

from orthia.broker.core.limits.refusals import Refusal, Refusals

LOGGER = logging.getLogger("orthia.broker")
KEPT_SECONDS: Final = 60.0
"""How long what a client sent before it closed may wait to be read."""
_GONE: Final = select.POLLHUP | select.POLLERR | select.POLLNVAL
_CLOSED: Final = select.POLLRDHUP


class _Client(Protocol):
    """A client whose socket can be asked for."""

    address: str

    @property
    def unread(self) -> asyncio.Transport | None:
        """Its socket while nobody reads from it."""

    def abort(self) -> None:
        """Cut it off."""


_Any = TypeVar("_Any", bound=_Client)


class Departures(Generic[_Any]):
    """Which clients have gone, and since when; on the loop's thread, with a clock of seconds."""

    def __init__(self, is_leaving: Callable[[_Any], None], refusals: Refusals) -> None:
        """``is_leaving`` has a client that has closed make room if its place is wanted."""
        self._is_leaving = is_leaving
        self._refusals = refusals
        self._since: dict[_Any, float] = {}

    def look(self, clients: Iterable[_Any], now: float, paused: float) -> None:
        """Ask the kernel for each that is not read from.

        One that was reset is cut off. One that has closed makes room as one that was told its last,
        and is cut off when it was not read for long; not for the ``paused`` seconds in which this
        node stood still.
        """
        unread = {}
        for one in clients:
            socket = one.unread
            if socket is not None and not socket.is_closing():
                unread[socket.get_extra_info("socket").fileno()] = one
        before, self._since = self._since, {}
        if not unread:
            return
        poll = select.poll()
        for descriptor in unread:
            poll.register(descriptor, _CLOSED)
        for descriptor, events in poll.poll(0):
            client = unread[descriptor]
            if events & _GONE:
                client.abort()
                continue
            since = before.get(client)
            if since is None:
                self._is_leaving(client)
                since = now
            since += paused
            if now - since < KEPT_SECONDS:
                self._since[client] = since
                continue
            LOGGER.warning(
                "a client at %s closed its connection %d s ago, while what it had sent waited for"
                " room, and was cut off: what was not read of it by then is not stored",
                client.address,
                now - since,
            )
            self._refusals.count(Refusal.SILENCE)
            client.abort()
