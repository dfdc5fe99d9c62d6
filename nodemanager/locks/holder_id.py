"""Who holds a lock, as NODE_MANAGER_STORE has it: made and read here only.

    name@host:process:uuid/period/expiration:kind:lease-only

``name`` is the node's, ``uuid`` a fresh one: two processes never have one id. The rest is what
other nodes must know and may have configured otherwise. ``period`` and ``expiration`` are the
holder's ``jdbc-lock-renew-period`` and ``jdbc-lock-expiration`` in milliseconds. They are published
with the lease because both nodes count with the holder's period: it delivers, and a waiting node
watches it, for so many of them. ``kind`` is the kind of its locker, if that is not a lease, in
place of the timers;
``lease-only`` is there if it has no presence lock beside it. A node of an older version publishes
no timers, and reads an id with timers as it reads its own.
"""

import os
import re
import socket
import uuid
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple, Self

_LENGTH: Final = 128
"""Of the table's column."""
_HOST_LENGTH: Final = 40
_KIND_LENGTH: Final = 20
_LEASE_ONLY: Final = ":lease-only"
_PARTS_BEFORE_KIND: Final = 3
"""Host, process, and UUID with timers."""
_TIMERS: Final = re.compile(r"/([0-9]{1,18})/([0-9]{1,18})$", re.ASCII)


@dataclass(frozen=True)
class Timers:
    """How a node keeps its lease."""

    renew_period_ms: int
    expiration_ms: int


class _Said(NamedTuple):
    """What an id says; one of an unknown form says little."""

    name: str | None
    place: str
    kind: str
    has_presence: bool
    timers: Timers | None

    @classmethod
    def read(cls, text: str) -> "_Said":
        name, at, rest = text.removesuffix(_LEASE_ONLY).rpartition("@")
        parts = rest.split(":")
        place = ":".join(parts[:_PARTS_BEFORE_KIND])
        found = _TIMERS.search(place) if len(parts) >= _PARTS_BEFORE_KIND else None
        return cls(
            name=name if at else None,
            place=place[: found.start()] if found else place,
            kind=":".join(parts[_PARTS_BEFORE_KIND:]),
            has_presence=not text.endswith(_LEASE_ONLY),
            timers=Timers(int(found[1]), int(found[2])) if found else None,
        )


class HolderId(str):
    """An id: two are one holder if their texts are the same, as the database compares them.

    Any text is an id, as a row that somebody wrote by hand is no error; what an id of another form
    does not say is None, or as if it was not to be said.
    """

    @classmethod
    def new(
        cls, name: str, *, crash_detection: bool, kind: str = "", timers: Timers | None = None
    ) -> Self:
        """Return the id of this process as a holder of locks, another one at each call.

        ``kind`` is that of its locker, if it keeps no lease.
        """
        place = f"{_this_host()}:{os.getpid()}:{uuid.uuid4()}"
        return cls.of(name, place, kind=kind, has_presence=crash_detection, timers=timers)

    @classmethod
    def of(
        cls,
        name: str,
        place: str,
        *,
        kind: str = "",
        has_presence: bool = True,
        timers: Timers | None = None,
    ) -> Self:
        """Return the id that says this; of the name as much as there is room for."""
        tail = f"@{place}"
        tail += f"/{timers.renew_period_ms}/{timers.expiration_ms}" if timers is not None else ""
        tail += f":{kind[:_KIND_LENGTH]}" if kind else ""
        tail += "" if has_presence else _LEASE_ONLY
        return cls(name[: _LENGTH - len(tail)] + tail)

    @cached_property
    def _said(self) -> _Said:
        return _Said.read(self)

    @property
    def name(self) -> str | None:
        """Of its node; None if it says none."""
        return self._said.name

    @property
    def place(self) -> str:
        """``host:process:uuid``."""
        return self._said.place

    @property
    def kind(self) -> str:
        """Of its locker; empty if it keeps a lease."""
        return self._said.kind

    @property
    def has_presence(self) -> bool:
        """Whether it has a presence lock, if it lives."""
        return self._said.has_presence

    @property
    def timers(self) -> Timers | None:
        """How it keeps its lease; None if it does not say."""
        return self._said.timers

    @property
    def watched_period_ms(self) -> int | None:
        """The renew period of a holder whose absence can be noticed; None if it cannot.

        Not that of one without a presence lock, of one that never renews, and of one that does not
        say its period: nobody knows for how long it delivers, except that it ends with its lease.
        """
        if not self.has_presence or self.timers is None:
            return None
        return self.timers.renew_period_ms or None

    @property
    def is_here(self) -> bool:
        """Whether it is a process of this host."""
        return self.name is not None and self.place.startswith(f"{_this_host()}:")


def _this_host() -> str:
    return socket.gethostname()[:_HOST_LENGTH]
