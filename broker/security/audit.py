"""The audit log: logins, refused permissions, and management operations.

Each event is one JSON object; ``orthia.broker.node.audit_file`` writes them. None contains a
secret: never a passcode, and of a failed login the name only if there is such a user, since people
type the passcode where the name belongs.

A console, a scaler or a scraper asks the same every few seconds: what only reads is written once in
``READ_SECONDS`` for each user, address, resource and operation. What changes something is always.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

from orthia.broker.core.identity import Origin, Principal
from orthia.config.clock import monotonic_seconds

Write = Callable[[bytes], None]
"""Writes a line; it neither blocks nor raises."""
READ_SECONDS: Final = 600.0
LONGEST_FACT: Final = 1_000
"""Characters of a text in an event; whoever may ask for something must not fill the disk."""
MOST_READS: Final = 2_000
"""Reads that are remembered; the one that was written first is forgotten, and written again."""
READS: Final = ("get", "is", "count", "list", "browse", "query")
"""What operations that change nothing begin with, as in Artemis."""


class Audit:
    """Writes events to the audit log, if there is one; on the loop's thread."""

    def __init__(
        self,
        write: Write | None,
        node: str,
        is_user: Callable[[str], bool] = lambda _: False,
        clock: Callable[[], float] = monotonic_seconds,
    ) -> None:
        """``write`` is None without an audit log; ``is_user`` says whether a user has a name."""
        self._write = write
        self._clock = clock
        self._read_at: dict[tuple[str, str, str, str], float] = {}
        """When a read was written last, the oldest first."""
        self._node = node
        self._is_user = is_user

    def logged_in(self, principal: Principal, acceptor: str) -> None:
        """Note a client that logged in."""
        self._note(
            "login",
            principal.origin,
            principal.name,
            acceptor=acceptor,
            roles=sorted(principal.roles),
            verified=not principal.unrestricted,
        )

    def login_failed(self, origin: Origin, login: str | None, acceptor: str) -> None:
        """Note a client whose login failed."""
        known = login if login is not None and self._is_user(login) else None
        self._note("login-failed", origin, known, acceptor=acceptor)

    def disconnected(self, principal: Principal) -> None:
        """Note that a client that had logged in is disconnected."""
        self._note("disconnect", principal.origin, principal.name)

    def refused(self, principal: Principal, permission: str, address: str, **facts: str) -> None:
        """Note a permission that a user asked for and lacks; ``facts`` say what for."""
        self._note(
            "permission-refused",
            principal.origin,
            principal.name,
            permission=permission,
            address=_shortened(address),
            **{name: _shortened(value) for name, value in facts.items()},
        )

    def managed(
        self, principal: Principal, resource: str, operation: str, arguments: Sequence[object]
    ) -> None:
        """Note a management operation that a user was allowed; of the same reads, the first."""
        if operation.startswith(READS) and self._was_read(principal, resource, operation):
            return
        self._note(
            "management",
            principal.origin,
            principal.name,
            resource=_shortened(resource),
            operation=operation,
            arguments=[_shortened(one) for one in arguments],
        )

    def _was_read(self, principal: Principal, resource: str, operation: str) -> bool:
        """Return whether a user's read from an address is in the log, or else remember it."""
        now, reads = self._clock(), self._read_at
        key = (principal.name, principal.origin.address, resource[:LONGEST_FACT], operation)
        written = reads.pop(key, None)
        if written is not None and now - written < READ_SECONDS:
            reads[key] = written
            return True
        if len(reads) >= MOST_READS:
            del reads[next(iter(reads))]
        reads[key] = now
        return False

    def users_changed(self, names: Iterable[str], connections: int) -> None:
        """Note users whose password or roles changed, or who were removed."""
        self._note("users-changed", None, None, names=sorted(names), ended=connections)

    def _note(self, event: str, origin: Origin | None, user: str | None, **facts: object) -> None:
        if self._write is None:
            return
        shown = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "node": self._node,
            "event": event,
            "from": origin and origin.address,
            "port": origin and origin.port,
            "connection": origin and origin.connection,
            "user": user,
            **facts,
        }
        self._write(json.dumps(shown, default=str, ensure_ascii=True).encode() + b"\n")


def _shortened(fact: object) -> object:
    """Return a fact with its text bounded; what is left out is said."""
    if not isinstance(fact, str) or len(fact) <= LONGEST_FACT:
        return fact
    return f"{fact[:LONGEST_FACT]}... ({len(fact)} characters)"
