"""How many queues clients may have created: all together, each user, and each connection.

A queue is for good: it is stored, opened by every node that takes over, and nobody needs to use it.
Who created it is stored with it, so that neither another connection nor another node lets a user
begin at zero.
"""

from collections import Counter
from collections.abc import Iterable
from weakref import WeakKeyDictionary

from orthia.broker.core.errors import LimitExceeded
from orthia.broker.core.identity import Principal
from orthia.broker.quoting import quoted
from orthia.config.security_settings import ResourceLimitSetting
from orthia.config.settings import StompLimits


class QueueCreations:
    """Counts; on the loop's thread."""

    def __init__(self, limits: StompLimits, users: Iterable[ResourceLimitSetting] = ()) -> None:
        """``users`` are the limits of single users."""
        self._limits = limits
        self._of_named = {one.match: one.max_queues for one in users if one.max_queues is not None}
        self._by_user: Counter[str] = Counter()
        self._by_connection: WeakKeyDictionary[Principal, int] = WeakKeyDictionary()

    def refuse_if_too_many(self, principal: Principal, name: str, queues: int) -> None:
        """Raise LimitExceeded if a client must not have queue ``name`` created, beside ``queues``.

        Without security a login is what anybody says, and only connections are counted.
        """
        limits, what = self._limits, f"{quoted(name)} is one more"
        if queues >= limits.max_queues:
            raise LimitExceeded(f"the broker has max-queues {limits.max_queues} already: {what}")
        if self._by_connection.get(principal, 0) >= limits.max_queues_per_connection:
            raise LimitExceeded(
                "this connection has created max-queues-per-connection"
                f" {limits.max_queues_per_connection} already: {what}"
            )
        self.refuse_if_user_has_too_many(self.user_of(principal), name)

    def refuse_for_broker(self, user: str | None, name: str, queues: int) -> None:
        """Raise LimitExceeded if the broker must not create queue ``name`` for a user's messages.

        What a client has the broker create without asking is bounded as what it asks for.
        """
        if queues >= self._limits.max_queues:
            raise LimitExceeded(
                f"the broker has max-queues {self._limits.max_queues} already:"
                f" {quoted(name)} is one more"
            )
        self.refuse_if_user_has_too_many(user, name)

    def refuse_if_user_has_too_many(self, user: str | None, name: str) -> None:
        """Raise LimitExceeded if a user has had as many queues created as one may."""
        if user is None:
            return
        limits, what = self._limits, f"{quoted(name)} is one more"
        limit, limit_name = limits.max_queues_per_user, "max-queues-per-user"
        if user in self._of_named:
            limit, limit_name = self._of_named[user], "max-queues of its resource-limit-setting"
        if 0 <= limit <= self._by_user[user]:
            raise LimitExceeded(
                f"user {quoted(user)} has created {limit_name} {limit}"
                f" already: {what}; queues nobody needs can be deleted with `orthia queue delete`"
            )

    @staticmethod
    def user_of(principal: Principal) -> str | None:
        """Return whom a queue is stored as created by; None if nobody knows."""
        return None if principal.unrestricted else principal.name

    def created(self, principal: Principal) -> None:
        """Count a queue for its connection; ``opened`` counts it for its user."""
        self._by_connection[principal] = self._by_connection.get(principal, 0) + 1

    def opened(self, user: str | None) -> None:
        """Count a queue that a user once created."""
        if user is not None:
            self._by_user[user] += 1

    def deleted(self, user: str | None) -> None:
        """Count a queue no more."""
        if user is not None:
            self._by_user[user] -= 1
            if not self._by_user[user]:
                del self._by_user[user]
