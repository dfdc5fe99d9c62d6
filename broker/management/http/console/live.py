"""What follows what happens: parts of pages, sent as events to those who look at them.

A browser keeps one request open (Server-Sent Events), and gets a part of its page anew when that is
other than before. Each is a task of the loop of HTTP, and no thread. It asks the broker for what
the page itself asks for, once for all that show one user the same, at the pace of all pages that
follow. A client that reads slowly is sent nothing more until it has read, and is disconnected by
``orthia.broker.management.http.bounds``.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable
from typing import Any, Final

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from orthia.broker.core.errors import LimitExceeded
from orthia.broker.management.http.console.rendering import SECURITY, event
from orthia.broker.management.http.pace import Pace
from orthia.config.errors import OrthiaError

MOST_STREAMS: Final = 24
"""Of all that ``bounds.MAX_CONNECTIONS`` leaves room for: the rest is for requests."""
LOOK_SECONDS: Final = 2.0
_LOOKS: Final = 8
"""So often in that time is looked whether something changed that cannot wait."""
SILENT_SECONDS: Final = 15.0
"""After so long without an event a comment shows whether somebody is still there."""
Update = Callable[[], Coroutine[Any, Any, bytes]]
"""Returns the event that brings a part of a page as it is now."""


class Streams:
    """All streams of one node; on the loop of HTTP."""

    def __init__(self, pace: Pace, look_seconds: float = LOOK_SECONDS) -> None:
        self._pace = pace
        self._look_seconds = look_seconds
        self._looks: dict[Hashable, asyncio.Task[bytes]] = {}
        """What is made, or was made a moment ago, by what it is of."""
        self.open = 0
        """How many there are."""

    def refuse_if_too_many(self) -> None:
        """Raise LimitExceeded if there may be no more."""
        if self.open >= MOST_STREAMS:
            raise LimitExceeded(
                f"{MOST_STREAMS} pages follow what happens on this node already, which are as many"
                " as may: close one, or reload this page to see it as it is now"
            )

    def follow(
        self,
        page: Hashable,
        first: bytes,
        update: Update,
        changed: Callable[[], Hashable] | None = None,
    ) -> "Stream":
        """Return a stream whose ``first`` event brings a part of a page as it is now.

        It is made anew from time to time, and soon when what ``changed`` returns is another; by the
        ``update`` of one of all streams of an equal ``page``, which are to bring the same.
        """
        return Stream(self, self._events(page, first, update, changed))

    async def _events(
        self,
        page: Hashable,
        first: bytes,
        update: Update,
        changed: Callable[[], Hashable] | None,
    ) -> AsyncIterator[bytes]:
        sent, sent_at = first, time.monotonic()
        yield first
        while True:
            await self._wait(changed)
            try:
                now = await self._look((page, changed and changed()), update)
            except OrthiaError as error:
                yield event("refused", str(error))
                return
            if now != sent:
                sent, sent_at = now, time.monotonic()
                yield now
            elif time.monotonic() - sent_at > SILENT_SECONDS:
                sent_at = time.monotonic()
                yield b": nothing new\n\n"

    async def _look(self, page: Hashable, update: Update) -> bytes:
        """Return the event of a page, made once for all who look at the same moment."""
        making = self._looks.get(page)
        if making is None:
            making = self._looks[page] = asyncio.ensure_future(self._made(update))
            making.add_done_callback(_retrieve)
            loop = asyncio.get_running_loop()
            loop.call_later(self._look_seconds / 2, self._looks.pop, page)
        return await asyncio.shield(making)  # who leaves does not end it for the others

    async def _made(self, update: Update) -> bytes:
        await self._pace.turn()
        return await update()

    async def _wait(self, changed: Callable[[], Hashable] | None) -> None:
        if changed is None:
            # All look at the same moments: the interpreter changes between its threads once for
            # all, and what one was shown the next is shown, too.
            await asyncio.sleep(self._look_seconds - time.monotonic() % self._look_seconds)
            return
        before = changed()
        for _ in range(_LOOKS):
            await asyncio.sleep(self._look_seconds / _LOOKS)
            if changed() != before:
                return


def _retrieve(made: asyncio.Task[bytes]) -> None:
    """Note that its error was seen: nobody may wait any more."""
    if not made.cancelled():
        made.exception()


class Stream:
    """One stream, as a response; an ASGI application."""

    def __init__(self, streams: Streams, events: AsyncIterator[bytes]) -> None:
        self._streams = streams
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send what happens until somebody leaves."""
        response = StreamingResponse(self._events, headers=SECURITY, media_type="text/event-stream")
        self._streams.open += 1
        try:
            await response(scope, receive, send)
        finally:
            self._streams.open -= 1
