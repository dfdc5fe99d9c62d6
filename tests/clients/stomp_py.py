"""stomp.py, as its users use it: python -m tests.clients.stomp_py SCENARIO ADDRESS [ADDRESS]."""

import os
import queue
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import stomp
from stomp.exception import ConnectFailedException, NotConnectedException
from stomp.utils import Frame
from typing_extensions import override

from tests.clients.more_scenarios import SECONDS, MoreScenarios
from tests.clients.scenarios import Message, RefusedError, Session

VERSIONS = {
    "1.0": stomp.StompConnection10,
    "1.1": stomp.StompConnection11,
    "1.2": stomp.StompConnection12,
}


class Inbox(stomp.ConnectionListener):  # type: ignore[misc] # it has no types
    """What comes on a connection, in order: a thread of the client's brings it."""

    def __init__(self) -> None:
        self.frames: queue.Queue[Frame | None] = queue.Queue()

    def on_connected(self, frame: Frame) -> None:
        """Take the answer to CONNECT."""
        self.frames.put(frame)

    def on_message(self, frame: Frame) -> None:
        """Take a message."""
        self.frames.put(frame)

    def on_receipt(self, frame: Frame) -> None:
        """Take a receipt."""
        self.frames.put(frame)

    def on_error(self, frame: Frame) -> None:
        """Take an ERROR."""
        self.frames.put(frame)

    def on_disconnected(self) -> None:
        """Note the end."""
        self.frames.put(None)


class StompPySession(Session):
    """A connection, with what came on it while something else was waited for."""

    acks_in_transactions = True
    ends_subscriptions = True

    def __init__(
        self,
        address: str,
        *,
        passcode: str = os.environ["STOMP_PASSCODE"],
        version: str = "1.2",
        client_id: str | None = None,
        beats_ms: int = 0,
    ) -> None:
        host, port = address.split(":")
        options: dict[str, Any] = {}
        if version != "1.0":
            # It would count the node as gone when either stands still for one and a half beats.
            options |= {"heartbeats": (beats_ms, beats_ms), "heart_beat_receive_scale": 240}
        self.version = version
        self._inbox = Inbox()
        self._came: list[Frame] = []
        self._count = 0
        self._connection = VERSIONS[version](
            [(host, int(port))], auto_decode=False, reconnect_attempts_max=1, **options
        )
        self._connection.set_listener("inbox", self._inbox)
        headers = {} if client_id is None else {"client-id": client_id}
        try:
            self._connection.connect(os.environ["STOMP_LOGIN"], passcode, headers=headers)
        except ConnectFailedException as error:
            raise RefusedError("there is no connection") from error
        self._receive()  # CONNECTED, or what the ERROR said

    @override
    def send(self, to: str, body: str | bytes, **headers: str) -> None:
        self._await(lambda of: self._connection.send(to, body, headers={**headers, **of}))

    @override
    def subscribe(self, to: str, ack: str = "auto", name: str = "", **headers: str) -> None:
        self._await(lambda of: self._connection.subscribe(to, name or to, ack, {**headers, **of}))

    @override
    def unsubscribe(self, name: str, **headers: str) -> None:
        self._await(lambda of: self._connection.unsubscribe(name, headers={**headers, **of}))

    @override
    def ack(self, message: Message, **headers: str) -> None:
        self._await(lambda of: self._answer("ack", message, {**headers, **of}))

    @override
    def nack(self, message: Message) -> None:
        self._await(lambda of: self._answer("nack", message, of))

    @override
    def begin(self, transaction: str) -> None:
        self._connection.begin(transaction)

    @override
    def commit(self, transaction: str) -> None:
        self._await(lambda of: self._connection.commit(transaction, headers=of))

    @override
    def abort(self, transaction: str) -> None:
        self._await(lambda of: self._connection.abort(transaction, headers=of))

    @property
    @override
    def waiting(self) -> int:
        return len(self._came)

    @override
    def next(self) -> Message:
        frame = self._came.pop(0) if self._came else self._receive()
        return Message(frame.body, frame.headers, frame)

    @override
    def disconnect(self) -> None:
        self._connection.disconnect("bye")

    @override
    def drop(self) -> None:
        with suppress(AttributeError, OSError):  # its reader closed the socket meanwhile
            self._connection.transport.disconnect_socket()

    def _answer(self, how: str, message: Message, headers: dict[str, str]) -> None:
        answer = getattr(self._connection, how)
        if self.version == "1.1":
            named = [message.headers["message-id"], message.headers["subscription"]]
        else:
            named = [message.headers["ack" if self.version == "1.2" else "message-id"]]
        answer(*named, **headers)

    def _await(self, act: Callable[[dict[str, str]], object]) -> None:
        """Do something with a receipt, and wait for it."""
        self._count += 1
        wanted = f"r{self._count}"
        try:
            act({"receipt": wanted})
        except (NotConnectedException, OSError, AttributeError) as error:
            # its reader closed the socket meanwhile
            raise RefusedError("the connection is gone") from error
        while True:
            frame = self._receive()
            if frame.cmd != "RECEIPT":
                self._came.append(frame)
            elif frame.headers["receipt-id"] == wanted:
                return

    def _receive(self) -> Frame:
        frame = self._inbox.frames.get(timeout=SECONDS)
        if frame is None:
            raise RefusedError("the connection is gone")
        if frame.cmd == "ERROR":
            raise RefusedError(frame.headers["message"])
        return frame


if __name__ == "__main__":
    _, name, *addresses = sys.argv
    getattr(MoreScenarios("py", addresses, StompPySession, tuple(VERSIONS), "awkward"), name)()
