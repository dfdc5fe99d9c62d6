"""Finds clients that left while they were not read from, as when their message waits for room.

A socket that is not read from does not report that its client is gone; the kernel does when asked.
Otherwise such a client would keep its connection and its messages for as long as there is no room,
and could keep out the very client that would make room.
"""

import asyncio
import logging
import select
from collections.abc import Callable, Iterable
from typing import Final, Generic, Protocol, TypeVar

from orthia.broker.core.errors import Refusal
from orthia.broker.core.limits.refusals import Refusals

LOGGER = logging.getLogger("orthia.broker")
KEPT_SECONDS: Final = 60.0
"""How long the bytes of a client that closed may wait to be read."""
_GONE: Final = select.POLLHUP | select.POLLERR | select.POLLNVAL
_CLOSED: Final = select.POLLRDHUP


class _Client(Protocol):
    """A client with a socket."""

    address: str

    @property
    def unread(self) -> asyncio.Transport | None:
        """Its socket while it is not read from; else None."""

    def abort(self) -> None:
        """Disconnect it."""


_Any = TypeVar("_Any", bound=_Client)


class Departures(Generic[_Any]):
    """Which clients have left, and when; on the loop's thread, with a clock in seconds."""

    def __init__(self, is_leaving: Callable[[_Any], None], refusals: Refusals) -> None:
        """``is_leaving`` notes that a client which closed makes room for newcomers."""
        self._is_leaving = is_leaving
        self._refusals = refusals
        self._since: dict[_Any, float] = {}

    def look(self, clients: Iterable[_Any], now: float, paused: float) -> None:
        """Ask the kernel about each client that is not read from.

        Disconnect one whose connection was reset. One that closed makes room for newcomers, and is
        disconnected after ``KEPT_SECONDS``, of which the ``paused`` seconds in which this node
        stood still do not count.
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
                "a client at %s closed its connection %d s ago, while its messages waited for room;"
                " dropping what was not read of them",
                client.address,
                now - since,
            )
            self._refusals.count(Refusal.SILENCE)
            client.abort()
