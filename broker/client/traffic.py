"""Sending and receiving in bulk across failovers, for ``produce``, ``consume`` and the demo.

A producer counts a message as stored once it has its receipt, and sends again those without one
when the connection broke; each has a duplicate id, so that it is stored once. A consumer counts a
message as consumed once its ACK has a receipt; one that comes again before that is a duplicate.
"""

import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import uuid4

from orthia.broker.client.connection import Connection, ConnectionLost, ServerFrame
from orthia.broker.client.failover import FailoverLink

_POLL_SECONDS: Final = 0.2
_BURST: Final = 64
"""Messages written before the broker's answers are read again."""
_MAX_UNSENT_BYTES: Final = 1_048_576
_GOODBYE_SECONDS: Final = 10.0
_SETTLED_SECONDS: Final = 1.0


@dataclass
class TrafficReport:
    """The outcome of sending or receiving."""

    wanted: int | None
    confirmed: int = 0
    """Messages whose SEND, or ACK, has its receipt."""
    repeated: int = 0
    """Messages sent again, or received again, because a connection was lost."""
    elapsed_seconds: float = 0.0
    latencies_seconds: "array[float]" = field(default_factory=lambda: array("d"), repr=False)

    @property
    def complete(self) -> bool:
        """Whether all wanted messages are confirmed."""
        return self.wanted is None or self.confirmed >= self.wanted

    @property
    def rate(self) -> float:
        """Confirmed messages per second."""
        return self.confirmed / self.elapsed_seconds if self.elapsed_seconds > 0 else 0.0

    def latencies_ms(self, percentiles: Sequence[int]) -> dict[str, float]:
        """Return the latency percentiles by names like ``p50``; empty if nothing was measured."""
        ordered = sorted(self.latencies_seconds)
        last = len(ordered) - 1
        if last < 0:
            return {}
        return {
            f"p{one}": ordered[min(last, len(ordered) * one // 100)] * 1000 for one in percentiles
        }


class Producer:
    """Sends numbered messages with receipts; the number of outstanding ones is bounded."""

    def __init__(
        self,
        link: FailoverLink,
        destination: str,
        *,
        body: Callable[[int], bytes],
        count: int | None,
        outstanding: int = 100,
        rate: float | None = None,
        persistent: bool = True,
        duplicate_ids: bool = True,
        on_confirmed: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Send ``count`` messages, or until ``stop`` is called; ``rate`` is messages a second.

        With ``duplicate_ids`` a message that is sent again is not stored again.
        ``on_confirmed`` gets the number of each message, from 0, once, when it has its receipt.
        """
        self._link = link
        self._headers = {"destination": destination}
        if not persistent:
            self._headers["persistent"] = "false"
        self._run_id = uuid4() if duplicate_ids else None
        self._body = body
        self._count = count
        self._outstanding = outstanding
        self._rate = rate
        self._on_confirmed = on_confirmed
        self._next = 0
        self._sent_at: dict[int, float] = {}
        self._stopping = False
        self.report = TrafficReport(count)

    def stop(self) -> None:
        """Send no more; ``run`` returns once all that was sent is confirmed. From any thread."""
        self._stopping = True

    def run(self) -> TrafficReport:
        """Send everything.

        Raises BrokerUnreachable if no node is found, BrokerRefused if one refuses; ``report`` then
        has what was done before.
        """
        started = time.monotonic()
        try:
            while not self._finished:
                connection = self._link.connect()
                try:
                    self._send_all(connection, started)
                    _say_goodbye(connection)
                except ConnectionLost as error:
                    self._link.lost(error, self.report.confirmed)
                finally:
                    connection.close()
        finally:
            self.report.elapsed_seconds = time.monotonic() - started
        return self.report

    @property
    def _all_sent(self) -> bool:
        return self._stopping or (self._count is not None and self._next >= self._count)

    @property
    def _finished(self) -> bool:
        return self._all_sent and not self._sent_at

    def _send_all(self, connection: Connection, started: float) -> None:
        for number in list(self._sent_at):
            self._send(connection, number)
            self.report.repeated += 1
        while not self._finished:
            wait_seconds = self._send_some(connection, started)
            for frame in connection.exchange(wait_seconds):
                if frame.command == "RECEIPT":
                    self._confirm(frame)

    def _send_some(self, connection: Connection, started: float) -> float:
        """Send what may be sent now; return how many seconds to wait for an answer."""
        for _ in range(_BURST):
            if self._all_sent or len(self._sent_at) >= self._outstanding:
                return _POLL_SECONDS
            if connection.unsent_bytes > _MAX_UNSENT_BYTES:
                return _POLL_SECONDS
            if self._rate is not None:
                early_seconds = started + self._next / self._rate - time.monotonic()
                if early_seconds > 0:
                    return min(early_seconds, _POLL_SECONDS)
            number = self._next
            self._next += 1
            self._sent_at[number] = time.monotonic()
            self._send(connection, number)
        return 0.0

    def _send(self, connection: Connection, number: int) -> None:
        body = self._body(number)
        headers = {**self._headers, "receipt": str(number), "content-length": str(len(body))}
        if self._run_id is not None:
            headers["_AMQ_DUPL_ID"] = f"{self._run_id}:{number}"
        connection.send("SEND", headers, body)

    def _confirm(self, frame: ServerFrame) -> None:
        number = int(frame.headers["receipt-id"])
        sent_at = self._sent_at.pop(number, None)
        if sent_at is not None:
            self.report.latencies_seconds.append(time.monotonic() - sent_at)
            self.report.confirmed += 1
            self._on_confirmed(number)


class Consumer:
    """Receives messages and acknowledges each; a burst of ACKs shares one receipt."""

    def __init__(
        self,
        link: FailoverLink,
        destination: str,
        *,
        count: int | None,
        idle_timeout_seconds: float | None = None,
        ack: str = "client-individual",
        selector: str | None = None,
        on_message: Callable[[ServerFrame], None] = lambda _: None,
    ) -> None:
        """Receive ``count`` messages, or until nothing came for ``idle_timeout_seconds``.

        With a ``selector`` only messages that match it. ``on_message`` gets every message as it
        comes, repeated ones too.
        """
        self._link = link
        self._destination = destination
        self._count = count
        self._idle_timeout_seconds = idle_timeout_seconds
        self._ack = ack
        self._selector = {} if selector is None else {"selector": selector}
        self._on_message = on_message
        self._unconfirmed: dict[str, int] = {}
        """Message ids that were acknowledged, with the receipt that is to confirm them."""
        self._awaited: set[str] = set()
        """Those whose receipt was lost with a connection: either stored, or they come again."""
        self._receipt = 0
        self._stopping = False
        self.report = TrafficReport(count)

    def stop(self) -> None:
        """Take no more; ``run`` returns once all that was taken is confirmed. From any thread."""
        self._stopping = True

    def run(self) -> TrafficReport:
        """Receive; raises BrokerUnreachable and BrokerRefused, as a producer does."""
        started = time.monotonic()
        try:
            while not self._finished:
                connection = self._link.connect()
                try:
                    self._receive_all(connection)
                    break
                except ConnectionLost as error:
                    self._link.lost(error, self.report.confirmed)
                finally:
                    connection.close()
        finally:
            self.report.elapsed_seconds = time.monotonic() - started
        return self.report

    @property
    def _taken(self) -> int:
        return self.report.confirmed + len(self._unconfirmed) + len(self._awaited)

    @property
    def _enough(self) -> bool:
        return self._stopping or (self._count is not None and self._taken >= self._count)

    @property
    def _finished(self) -> bool:
        return self._enough and not self._unconfirmed and not self._awaited

    def _receive_all(self, connection: Connection) -> None:
        """Receive until there are enough, or no more come."""
        self._awaited |= self._unconfirmed.keys()
        self._unconfirmed.clear()
        subscription = {"id": "0", "destination": self._destination, "ack": self._ack}
        subscription |= self._selector
        # The receipt distinguishes a refusal from a broker that stops.
        connection.send("SUBSCRIBE", {**subscription, "receipt": "0"})
        last_news = time.monotonic()
        while not self._finished:
            frames = connection.exchange(_POLL_SECONDS)
            now = time.monotonic()
            if frames:
                last_news = now
                self._take(connection, frames)
            elif self._is_over(now - last_news):
                break
        self.report.confirmed += len(self._awaited)
        self._awaited.clear()
        _say_goodbye(connection)

    def _is_over(self, quiet_seconds: float) -> bool:
        """Return whether no more messages are expected after a silence of this length."""
        if self._idle_timeout_seconds is not None and quiet_seconds >= self._idle_timeout_seconds:
            return True
        # Redeliveries come first, so after a short silence there are none.
        return self._enough and not self._unconfirmed and quiet_seconds >= _SETTLED_SECONDS

    def _take(self, connection: Connection, frames: list[ServerFrame]) -> None:
        taken: list[tuple[str, str]] = []
        for frame in frames:
            if frame.command == "RECEIPT":
                self._confirm(int(frame.headers["receipt-id"]))
            elif frame.command == "MESSAGE":
                message_id = frame.headers.get("message-id", "")
                if message_id in self._awaited:
                    self._awaited.discard(message_id)
                    self.report.repeated += 1
                elif self._enough:
                    continue
                self._on_message(frame)
                if self._ack == "auto":
                    self.report.confirmed += 1
                else:
                    self._unconfirmed[message_id] = self._receipt + 1
                    taken.append((message_id, frame.headers.get("ack", message_id)))
        self._acknowledge(connection, taken)

    def _acknowledge(self, connection: Connection, taken: list[tuple[str, str]]) -> None:
        if not taken:
            return
        self._receipt += 1
        for _, ack in taken[:-1]:
            connection.send("ACK", {"id": ack})
        connection.send("ACK", {"id": taken[-1][1], "receipt": str(self._receipt)})

    def _confirm(self, receipt: int) -> None:
        done = [one for one, awaits in self._unconfirmed.items() if awaits <= receipt]
        for message_id in done:
            del self._unconfirmed[message_id]
        self.report.confirmed += len(done)


def _say_goodbye(connection: Connection) -> None:
    """Send DISCONNECT and wait for its receipt, so that nothing counts as a failed delivery."""
    connection.send("DISCONNECT", {"receipt": "goodbye"})
    deadline = time.monotonic() + _GOODBYE_SECONDS
    while time.monotonic() < deadline:
        try:
            frames = connection.exchange(deadline - time.monotonic())
        except ConnectionLost:
            return  # everything was confirmed before
        if any(frame.headers.get("receipt-id") == "goodbye" for frame in frames):
            return
