"""stompman, as users use it: python -m tests.clients.stompman_client SCENARIO ADDRESS [ADDRESS].

The scenarios are written without asyncio: a loop on a thread of its own carries out what they say.
"""

import asyncio
import os
import sys
import threading
from collections.abc import Coroutine
from contextlib import AsyncExitStack, suppress
from typing import Any, TypeVar

import stompman
from typing_extensions import override

from tests.clients.more_scenarios import SECONDS, MoreScenarios
from tests.clients.scenarios import AWKWARD, Message, RefusedError, Session

Result = TypeVar("Result")

LOOP = asyncio.new_event_loop()


def run(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Have the loop do something, and wait for it."""
    return asyncio.run_coroutine_threadsafe(coroutine, LOOP).result(SECONDS)


class StompmanSession(Session):
    """A client of one node, and what its subscriptions got."""

    version = "1.2"
    acks_in_transactions = False
    ends_subscriptions = False

    def __init__(
        self,
        address: str,
        *,
        passcode: str = os.environ["STOMP_PASSCODE"],
        version: str = version,
        client_id: str | None = None,
        beats_ms: int = 0,
    ) -> None:
        host, port = address.split(":")
        headers = {} if client_id is None else {"client-id": client_id}
        server = stompman.ConnectionParameters(
            host, int(port), os.environ["STOMP_LOGIN"], passcode, connect_headers=headers
        )
        if version != self.version:
            raise ValueError(f"stompman does not speak {version}")
        self._transactions: dict[str, tuple[AsyncExitStack, stompman.Transaction]] = {}
        self._subscriptions: dict[str, stompman.ManualAckSubscription] = {}
        self._frames: asyncio.Queue[stompman.AckableMessageFrame] = asyncio.Queue()
        # With an interval of 0 it would do nothing but write heart-beats.
        interval_ms = beats_ms or 60_000
        self._client = stompman.Client(
            [server],
            heartbeat=stompman.Heartbeat(interval_ms, interval_ms),
            connect_retry_attempts=1,
            connect_timeout=SECONDS,
            connection_confirmation_timeout=5 if passcode == "wrong" else SECONDS,
            disconnect_confirmation_timeout=1,
            on_error_frame=None,
        )
        try:
            run(self._client.__aenter__())
        except stompman.FailedAllConnectAttemptsError as error:
            raise RefusedError("refused") from error

    @override
    def send(self, to: str, body: str | bytes, **headers: str) -> None:
        content = body if isinstance(body, bytes) else body.encode()
        content_type = headers.pop("content-type", None)
        transaction = headers.pop("transaction", None)
        try:
            if transaction is not None:
                run(self._transactions[transaction][1].send(content, to, headers=headers))
                return
            run(
                self._client.send(
                    content,
                    to,
                    content_type=content_type,
                    headers=headers,
                    receipt_timeout=SECONDS,
                )
            )
        except stompman.SendReceiptError as error:
            raise refused(error) from error
        except (
            stompman.FailedAllConnectAttemptsError,
            stompman.FailedAllWriteAttemptsError,
        ) as error:
            raise RefusedError("the connection is gone") from error

    @override
    def subscribe(self, to: str, ack: Any = "auto", name: str = "", **headers: str) -> None:
        subscribing = self._client.subscribe_with_manual_ack(
            to, self._frames.put, ack=ack, headers=headers, receipt_timeout=SECONDS
        )
        try:
            self._subscriptions[name or to] = run(subscribing)
        except stompman.SubscriptionError as error:
            raise refused(error) from error

    @override
    def unsubscribe(self, name: str, **headers: str) -> None:
        assert not headers, "it has no headers"
        run(self._subscriptions.pop(name).unsubscribe())
        self._catch_up()

    @override
    def ack(self, message: Message, **headers: str) -> None:
        assert not headers, "it has no headers"
        run(message.frame.ack())
        self._catch_up()

    @override
    def nack(self, message: Message) -> None:
        run(message.frame.nack())
        self._catch_up()

    @override
    def begin(self, transaction: str) -> None:
        async def begin() -> tuple[AsyncExitStack, stompman.Transaction]:
            stack = AsyncExitStack()
            return stack, await stack.enter_async_context(self._client.begin())

        self._transactions[transaction] = run(begin())

    @override
    def commit(self, transaction: str) -> None:
        run(self._transactions.pop(transaction)[0].aclose())
        self._catch_up()

    @override
    def abort(self, transaction: str) -> None:
        async def leave() -> None:
            left = RefusedError("which is how a block of it is left in vain")
            with suppress(RefusedError):
                await stack.__aexit__(type(left), left, None)

        stack, _ = self._transactions.pop(transaction)
        run(leave())
        self._catch_up()

    @property
    @override
    def waiting(self) -> int:
        return self._frames.qsize()

    @override
    def next(self) -> Message:
        frame = run(self._frames.get())
        headers = {name: str(value) for name, value in frame.headers.items()}
        return Message(frame.body, headers, frame)

    @override
    def disconnect(self) -> None:
        for name in list(self._subscriptions):
            self.unsubscribe(name)
        run(self._client.__aexit__(None, None, None))

    @override
    def drop(self) -> None:
        left = ConnectionError("the node may be gone")
        with suppress(stompman.Error, ExceptionGroup):  # of what went on trying meanwhile
            run(self._client.__aexit__(type(left), left, None))

    def _catch_up(self) -> None:
        """Have a receipt: the client has one of a SEND and a SUBSCRIBE alone, and it comes last."""
        self.send("/queue/sm-after", "whose receipt comes behind all that was said before")


def refused(error: stompman.SendReceiptError | stompman.SubscriptionError) -> RefusedError:
    """Return what the ERROR said, or how else it failed."""
    return RefusedError(error.reason if error.frame is None else error.frame.headers["message"])


if __name__ == "__main__":
    threading.Thread(target=LOOP.run_forever, daemon=True).start()
    _, name, *addresses = sys.argv
    getattr(MoreScenarios("sm", addresses, StompmanSession, ("1.2",), AWKWARD), name)()
    sys.stdout.flush()
    os._exit(0)  # what was dropped would go on trying
