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
from typing import Final

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


@dataclass(frozen=True)
class HolderId:
    """What a holder id says."""

    name: str | None = None
    """Of its node; None if it says none."""
    kind: str = ""
    """Of its locker; empty if it keeps a lease."""
    has_presence: bool = True
    """Whether it has a presence lock, if it lives."""
    timers: Timers | None = None
    """None if it does not say."""

    @classmethod
    def parse(cls, text: str) -> "HolderId":
        """Read what ``text`` says; one of an unknown form says little, and is no error."""
        has_presence = not text.endswith(_LEASE_ONLY)
        name, at, rest = text.removesuffix(_LEASE_ONLY).rpartition("@")
        parts = rest.split(":")
        found = _TIMERS.search(parts[_PARTS_BEFORE_KIND - 1]) if len(parts) > 2 else None
        return cls(
            name=name if at else None,
            kind=":".join(parts[_PARTS_BEFORE_KIND:]),
            has_presence=has_presence,
            timers=Timers(int(found[1]), int(found[2])) if found else None,
        )

    @property
    def suffix(self) -> str:
        """What an id ends with that says this."""
        timers = self.timers
        text = f"/{timers.renew_period_ms}/{timers.expiration_ms}" if timers is not None else ""
        text += f":{self.kind}" if self.kind else ""
        return text if self.has_presence else text + _LEASE_ONLY

    @property
    def watched_period_ms(self) -> int | None:
        """The renew period of a holder whose absence can be noticed; None if it cannot.

        Not that of one without a presence lock, of one that never renews, and of one that does not
        say its period: nobody knows for how long it delivers, except that it ends with its lease.
        """
        if not self.has_presence or self.timers is None:
            return None
        return self.timers.renew_period_ms or None


def new_holder_id(
    name: str, *, crash_detection: bool, kind: str = "", timers: Timers | None = None
) -> str:
    """Return the id of this process as a holder of locks, a new one at each call.

    Of a name as much is in it as there is room for.
    """
    said = HolderId(None, kind[:_KIND_LENGTH], crash_detection, timers)
    tail = f"{_place()}{os.getpid()}:{uuid.uuid4()}{said.suffix}"
    return name[: _LENGTH - len(tail)] + tail


def is_here(holder_id: str | None) -> bool:
    """Return whether a holder is a process of this host."""
    return holder_id is not None and _place() in holder_id


def _place() -> str:
    return f"@{socket.gethostname()[:_HOST_LENGTH]}:"
