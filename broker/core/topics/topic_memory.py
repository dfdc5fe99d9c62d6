# mypyc compiles this module.
"""Memory that subscribers of topics take: all together, and each connection."""

from collections.abc import Callable
from typing import Any

from orthia.broker.core.errors import Refusal
from orthia.broker.core.limits.memory import CreditPool
from orthia.broker.core.queue.subscriptions import Subscription
from orthia.broker.core.topics.publication import Publication
from orthia.journal.engine.large import LargeMessages


class TopicAccount(CreditPool):
    """What the topic subscriptions of one connection hold together.

    A message counts for each subscription that holds it. It is claimed from its delivery until it
    is acknowledged; messages of open transactions are credit again, and count for those.
    """

    __slots__ = ("is_ended", "subscriptions", "waiting")

    def __init__(self, most_delivered: int) -> None:
        super().__init__(most_delivered, small_claim=0)
        self.waiting = 0
        """Bytes that are not delivered yet."""
        self.subscriptions: dict[Subscription[Any], None] = {}
        self.is_ended = False
        """Whether its connection is being ended; what it holds goes with its subscriptions."""

    @property
    def held(self) -> int:
        """Bytes that are not delivered, or not acknowledged."""
        return self.waiting + self.claimed

    def end(self, reason: str) -> None:
        """End the connection with an error that gives the ``reason``."""
        if not self.is_ended:
            self.is_ended = True
            for subscription in list(self.subscriptions)[:1]:
                subscription.fail(reason, Refusal.SLOW)


class TopicMemory:
    """Counts the bytes of messages that subscribers hold, each message once.

    It also keeps the bodies of large ones, which no queue may need.
    """

    def __init__(
        self,
        limit: int,
        max_unacknowledged_bytes: int,
        large: LargeMessages | None = None,
        count_bodies: Callable[[int], None] = lambda _: None,
    ) -> None:
        """``max_unacknowledged_bytes`` bounds one connection, ``limit`` all together.

        ``count_bodies`` is called with how many bytes more, or fewer, the store keeps for
        subscribers.
        """
        self.limit = limit
        self.used = 0
        self._on_its_way = 0
        """Bytes of messages that topics are still giving to their subscribers."""
        self._max_unacknowledged_bytes = max_unacknowledged_bytes
        self._large = large
        self._count_bodies = count_bodies
        self._bodies: dict[int, int] = {}
        """How many publications share each body: many wildcards may match one message."""
        self._accounts: dict[object, TopicAccount] = {}

    @property
    def is_exceeded(self) -> bool:
        """Whether subscribers hold more than the limit."""
        return 0 <= self.limit < self.used - self._on_its_way

    def hold(self, publication: Publication) -> None:
        """Count the topic as a holder of a message, until its subscribers have it."""
        publication.holders = 1
        self.used += publication.size
        self._on_its_way += publication.size
        body = publication.record.large
        if body is not None and self._large is not None:
            self._large.pin(body.id)
            if body.id not in self._bodies:
                self._count_bodies(body.size)
            self._bodies[body.id] = self._bodies.get(body.id, 0) + 1

    def given(self, publication: Publication) -> None:
        """Note that all subscribers of a topic have a message: only they hold it now."""
        self._on_its_way -= publication.size
        self.release(publication)

    def release(self, publication: Publication) -> None:
        """Stop counting one holder of a message."""
        publication.holders -= 1
        if not publication.holders:
            self.used -= publication.size
            body = publication.record.large
            if body is not None and self._large is not None:
                self._bodies[body.id] -= 1
                if not self._bodies[body.id]:
                    del self._bodies[body.id]
                    self._count_bodies(-body.size)
                self._large.unpin(body.id)

    def account_of(self, connection: object) -> TopicAccount:
        """Return the account of a connection that gets one more subscription."""
        account = self._accounts.get(connection)
        if account is None:
            account = TopicAccount(self._max_unacknowledged_bytes)
            self._accounts[connection] = account
        return account

    def closed(self, connection: object, subscription: Subscription[Any]) -> None:
        """Forget a subscription, and with the last of a connection its account."""
        account = self._accounts[connection]
        del account.subscriptions[subscription]
        if not account.subscriptions:
            del self._accounts[connection]

    def end_the_worst(self) -> None:
        """End the connection that holds most, one after the other, while too much is held."""
        while self.is_exceeded and self._accounts:
            if any(account.is_ended for account in self._accounts.values()):
                return  # what that one holds is not free yet
            worst = max(self._accounts.values(), key=lambda account: account.held)
            if not worst.held:
                return
            worst.end(
                f"topics' subscribers hold more than global-max-size {self.limit} together, and"
                " those of this connection most: acknowledge or read faster, or use a queue"
            )
