"""Limits on how many queues clients create: all together, each user, and each connection.

Whatever else has a row of BINDINGS of its own counts as a queue: the messages of a queue that have
another priority than most, and the duplicate ids of an address that has no queue.

What is deleted does not count any more, neither for its user nor for its connection: a client that
asks by temporary queues makes one for each request, and never has many.

A queue stays: it is stored, opened by every node that takes over, and nobody needs to use it. Its
binding says who created it, so a user does not begin at zero by a new connection or a takeover.
"""

from collections import Counter
from collections.abc import Iterable
from weakref import WeakKeyDictionary, ref

from orthia.broker.core.errors import LimitExceeded
from orthia.broker.core.identity import Principal
from orthia.broker.quoting import quoted
from orthia.config.security_settings import ResourceLimitSetting
from orthia.config.settings import ClientLimits


class QueueCreations:
    """Counts the queues that clients create; on the loop's thread."""

    def __init__(self, limits: ClientLimits, users: Iterable[ResourceLimitSetting] = ()) -> None:
        """``users`` are the limits of single users."""
        self._limits = limits
        self._of_named = {one.match: one.max_queues for one in users if one.max_queues is not None}
        self._count = 0
        self._by_user: Counter[str] = Counter()
        self._by_connection: WeakKeyDictionary[Principal, int] = WeakKeyDictionary()
        self._creators: dict[object, ref[Principal]] = {}
        """Which connection created what there is."""

    def refuse_if_too_many(self, principal: Principal, named: str) -> None:
        """Raise LimitExceeded if a client must not create one more queue.

        ``named`` is how the error calls it. Without security anybody may use any login, so only
        connections are counted.
        """
        limits, what = self._limits, f"{named} is one more"
        self._refuse_if_all_have_too_many(named)
        if (
            principal.is_connection
            and self._by_connection.get(principal, 0) >= limits.max_queues_per_connection
        ):
            raise LimitExceeded(
                "this connection has created max-queues-per-connection"
                f" {limits.max_queues_per_connection} already: {what}"
            )
        self._refuse_if_user_has_too_many(self.user_of(principal), named)

    def refuse_for_broker(self, user: str | None, named: str) -> None:
        """Raise LimitExceeded if the broker must not create a queue for a user's messages.

        What a client makes the broker create counts as what it creates itself.
        """
        self._refuse_if_all_have_too_many(named)
        self._refuse_if_user_has_too_many(user, named)

    def _refuse_if_all_have_too_many(self, named: str) -> None:
        most = self._limits.max_queues
        if self._count >= most:
            raise LimitExceeded(f"the broker has max-queues {most} already: {named} is one more")

    def _refuse_if_user_has_too_many(self, user: str | None, named: str) -> None:
        """Raise LimitExceeded if a user has created as many queues as it may."""
        if user is None:
            return
        limits, what = self._limits, f"{named} is one more"
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
        """Return which user a binding names as the creator; None if it is unknown."""
        return None if principal.unrestricted else principal.name

    def created(self, principal: Principal, what: object) -> None:
        """Count a queue for its connection; ``opened`` counts it for its user.

        ``what`` is its name, or whatever else says to ``gone`` which it is.
        """
        self._by_connection[principal] = self._by_connection.get(principal, 0) + 1
        self._creators[what] = ref(principal)

    def gone(self, what: object) -> None:
        """Stop counting what is deleted for the connection that created it, if that is there."""
        creator = self._creators.pop(what, None)
        principal = None if creator is None else creator()
        if principal is not None:
            self._by_connection[principal] -= 1

    def opened(self, user: str | None) -> None:
        """Count a queue that a user created, on this node or an earlier one."""
        self._count += 1
        if user is not None:
            self._by_user[user] += 1

    def deleted(self, user: str | None, count: int = 1) -> None:
        """Stop counting queues of a user that are gone."""
        self._count -= count
        if user is not None:
            self._by_user[user] -= count
            if not self._by_user[user]:
                del self._by_user[user]
