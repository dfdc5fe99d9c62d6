"""The audit log: logins, refused permissions, and management operations.

Each event is one JSON object; ``orthia.broker.node.audit_file`` writes them. None contains a
secret: never a passcode, and of a failed login the name only if there is such a user, since people
type the passcode where the name belongs.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime

from orthia.broker.core.identity import Origin, Principal

Write = Callable[[bytes], None]
"""Writes a line; it neither blocks nor raises."""


class Audit:
    """Writes events to the audit log, if there is one; on the loop's thread."""

    def __init__(
        self, write: Write | None, node: str, is_user: Callable[[str], bool] = lambda _: False
    ) -> None:
        """``write`` is None without an audit log; ``is_user`` says whether a user has a name."""
        self._write = write
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

    def refused(self, principal: Principal, permission: str, address: str) -> None:
        """Note a permission that a user asked for and lacks."""
        self._note(
            "permission-refused",
            principal.origin,
            principal.name,
            permission=permission,
            address=address,
        )

    def managed(
        self, principal: Principal, resource: str, operation: str, arguments: Sequence[object]
    ) -> None:
        """Note a management operation that a user was allowed."""
        self._note(
            "management",
            principal.origin,
            principal.name,
            resource=resource,
            operation=operation,
            arguments=list(arguments),
        )

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
