"""Connecting to the live node of a pair, and again after a takeover."""

import time
from collections.abc import Callable, Sequence
from typing import Final

from orthia.broker.client.connection import (
    HEART_BEAT_MS,
    BrokerAddress,
    BrokerRefused,
    BrokerUnreachable,
    Connection,
    ConnectionLost,
    EndedByBroker,
    Login,
)

_RETRY_SECONDS: Final = 0.1
_LOGIN_REFUSED: Final = "login or passcode is wrong"
"""The broker's answer to a wrong login, which says no more to guessers."""
_MAX_FRUITLESS_ENDS: Final = 5


class FailoverLink:
    """Finds the live node of a pair, and finds it again when the connection is lost."""

    def __init__(
        self,
        addresses: Sequence[BrokerAddress],
        login: Login | None = None,
        *,
        patience_seconds: float = 60.0,
        heart_beat_ms: int = HEART_BEAT_MS,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Try ``addresses`` in turn for up to ``patience_seconds``; ``say`` prints progress."""
        self._addresses = list(addresses)
        self._login = login
        self._patience_seconds = patience_seconds
        self._heart_beat_ms = heart_beat_ms
        self._say = say
        self.reconnects = 0
        self.longest_outage_seconds = 0.0
        self._first = True
        self._fruitless_ends = 0
        self._progress = 0

    def lost(self, error: ConnectionLost, progress: int) -> None:
        """Note why a connection was lost; ``progress`` is a count that grows with the work done.

        Raises BrokerRefused when the broker ended several connections in a row without progress:
        then it is not stopping but refuses the client's frames.
        """
        self._say(f"lost the connection: {error}")
        if progress > self._progress or not isinstance(error, EndedByBroker):
            self._fruitless_ends = 0
        self._progress = progress
        if isinstance(error, EndedByBroker):
            self._fruitless_ends += 1
            if self._fruitless_ends >= _MAX_FRUITLESS_ENDS:
                raise BrokerRefused(str(error)) from error

    def connect(self) -> Connection:
        """Return a connection to the live node; say at once if there is none yet.

        Raises BrokerUnreachable after ``patience_seconds``, BrokerRefused at once.
        """
        started = time.monotonic()
        deadline = started + self._patience_seconds
        told = False
        while True:
            reasons: list[str] = []
            for address in self._addresses:
                try:
                    connection = Connection.open(
                        address, self._login, heart_beat_ms=self._heart_beat_ms
                    )
                except ConnectionLost as error:
                    reasons.append(str(error))
                    continue
                except BrokerRefused as error:
                    raise BrokerRefused(f"{error}{self._what_is_missing(str(error))}") from error
                self._connected(connection, time.monotonic() - started)
                return connection
            if time.monotonic() >= deadline:
                raise BrokerUnreachable(
                    f"no broker in {self._patience_seconds:g} s ({'; '.join(reasons)});"
                    " is one running there? try `orthia status`"
                )
            if not told:
                told = True
                self._say(
                    f"no node serves yet ({'; '.join(reasons)}); trying for"
                    f" {self._patience_seconds:g} s"
                )
            time.sleep(_RETRY_SECONDS)

    def _what_is_missing(self, refusal: str) -> str:
        """Return advice to add to a broker's refusal of a CONNECT."""
        if _LOGIN_REFUSED not in refusal:
            return ""
        if self._login is None:
            return "; no user was given: say --user NAME, with the password in ORTHIA_PASSWORD"
        if not self._login.passcode:
            return "; no password was given: set ORTHIA_PASSWORD"
        return ""

    def _connected(self, connection: Connection, outage_seconds: float) -> None:
        if self._first:
            self._first = False
            self._say(f"connected to {connection.address}")
            return
        self.reconnects += 1
        self.longest_outage_seconds = max(self.longest_outage_seconds, outage_seconds)
        self._say(f"connected to {connection.address} after {outage_seconds:.1f} s")
