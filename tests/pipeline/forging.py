"""Logs of pairs as nodes write them, made up: for what the history makes of them."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from orthia.nodemanager import events
from orthia.nodemanager.events import Event
from orthia.nodemanager.failover_log import Entry
from orthia.nodemanager.locks.lease import Lock, State
from orthia.pipeline.history.lives import Life, LoggedEvent, life_of
from orthia.pipeline.history.outages import LiveLock

PERIOD_MS = 2_000
EXPIRATION_MS = 20_000
SECOND = 1_000_000
NOON = 1_769_860_800 * SECOND
"""2026-01-31 12:00:00 UTC: long enough ago for stores that say what is now."""
OPENING_SECONDS = 0.04


def us(seconds: float) -> int:
    """Return the instant so many seconds after noon, in microseconds."""
    return NOON + round(seconds * SECOND)


def _time(micros: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)


def holder(name: str) -> str:
    """Return the id of a life of a node."""
    return f"{name}@host:1:uuid/{PERIOD_MS}/{EXPIRATION_MS}"


class Node:
    """Writes the log of one life of one node; times are seconds after noon."""

    def __init__(self, name: str, holder_id: str | None = None) -> None:
        self.name = name
        self.holder = holder_id or holder(name)
        self.events: list[LoggedEvent] = []
        self.clock_is_off = 0.0
        """The database's clock against this node's, in seconds."""
        self.own_clock_is_off = 0.0
        """This node's clock against noon, in seconds."""
        self._said: dict[int, Event] = {}

    def says(self, seconds: float, event: Event, *, knows_time: bool = True) -> "Node":
        """Log ``event`` so many seconds after noon."""
        lock: Lock | None = getattr(event, "lock", None)
        details: dict[str, Any] = event.details()
        one = LoggedEvent(
            len(self.events) + 1,
            us(seconds + self.clock_is_off),
            us(seconds + self.own_clock_is_off),
            type(event).__name__,
            lock.name.lower() if lock is not None else None,
            getattr(event, "token", None),
            details,
            knows_time,
        )
        self.events.append(one)
        self._said[one.seq] = event
        return self

    def obtains(
        self,
        seconds: float,
        token: int,
        former: str | None = None,
        renewed: float | None = None,
        gone: float | None = None,
    ) -> "Node":
        """Take the live lock from ``former``, last renewed then, and gone since."""
        silent_ms = None if renewed is None else (seconds - renewed) * 1_000
        gone_ms = None if gone is None else (seconds - gone) * 1_000
        return self.says(
            seconds, events.LiveLockObtained(Lock.LIVE, token, former, silent_ms, gone_ms)
        )

    def opens(self, seconds: float, token: int) -> "Node":
        """Open the acceptors."""
        self.says(seconds, events.LiveActive(token))
        self.says(seconds + 0.002, events.StateWritten(State.LIVE))
        return self.says(seconds + 0.003, events.TakeoverTimings(token, 0.0, 5.0, 20.0, 15.0))

    def becomes_live(
        self,
        seconds: float,
        token: int,
        former: str | None = None,
        renewed: float | None = None,
        gone: float | None = None,
    ) -> "Node":
        """Take the live lock, and serve soon after that."""
        self.obtains(seconds, token, former, renewed, gone)
        return self.opens(seconds + OPENING_SECONDS, token)

    def without(self, *numbers: int) -> "Node":
        """Lose the events of these numbers."""
        self.events = [one for one in self.events if one.seq not in numbers]
        return self

    def entries(self, pair: str = "pair") -> list[Entry]:
        """Return the rows of the table, whose lines of JSON are those of a file."""
        return [
            Entry(
                db_time=_time(one.at) if one.is_placed else None,
                node_time=_time(one.node_at),
                node_id=pair if one.is_placed else None,
                node_name=self.name,
                holder_id=self.holder,
                role="live",
                code=self._said[one.seq].code,
                level="INFO",
                event=one.event,
                lock=one.lock,
                token=one.token,
                event_seq=one.seq,
                message=self._said[one.seq].message,
                details=dict(one.details),
            )
            for one in self.events
        ]

    def life(self) -> Life:
        """Return what the history reads."""
        return life_of(self.holder, self.name, self.events)


def lives(*nodes: Node) -> Sequence[Life]:
    """Return the lives of all nodes."""
    return [node.life() for node in nodes]


def live_lock(
    seconds: float,
    by: str | None,
    token: int,
    *,
    renewed: float | None = None,
    state: State = State.LIVE,
) -> LiveLock:
    """Return what the store says so many seconds after noon; held if renewed in time."""
    expires = None if renewed is None or by is None else us(renewed + EXPIRATION_MS / 1_000)
    is_held = by is not None and (expires is None or expires > us(seconds))
    return LiveLock(us(seconds), by, token, is_held, expires, state)
