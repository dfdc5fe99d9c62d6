"""What subscribers of topics make the broker hold: all of them together, and each connection."""

from typing import TYPE_CHECKING

from orthia.broker.core.memory import Refused
from orthia.journal.engine.large import LargeMessages
from orthia.journal.message import Message

if TYPE_CHECKING:
    from orthia.broker.core.topic import TopicSubscription


class Publication:
    """A message of a topic: one for all of its subscribers, and what their frames share."""

    __slots__ = ("frames", "holders", "record", "seq", "size")

    def __init__(self, seq: int, record: Message, size: int) -> None:
        self.seq = seq
        self.record = record
        self.size = size
        """Bytes it counts for in memory."""
        self.frames: dict[object, bytes] | None = {}
        """See ``MessageReference.shared``; None once nobody is given it at the same time."""
        self.holders = 0
        """How many subscribers hold it; kept by ``TopicMemory``."""


class TopicAccount:
    """What the topic subscriptions of one connection hold together.

    A message counts for each of them that holds it.
    """

    __slots__ = ("_most_delivered", "delivered", "is_ended", "refused", "subscriptions", "waiting")

    def __init__(self, most_delivered: int) -> None:
        self._most_delivered = most_delivered
        self.waiting = 0
        """Bytes that wait to be delivered."""
        self.delivered = 0
        """Bytes that were delivered and are not acknowledged; those of transactions are not."""
        self.refused: Refused[TopicSubscription] = Refused()
        """Those that get no more until others of the connection have acknowledged."""
        self.subscriptions: dict[TopicSubscription, None] = {}
        self.is_ended = False
        """Whether its connection was told to go; what it holds goes with its subscriptions."""

    @property
    def held(self) -> int:
        """Bytes that wait for the connection, or for its acknowledgement."""
        return self.waiting + self.delivered

    @property
    def has_credit(self) -> bool:
        """Whether the connection may have more that it does not acknowledge."""
        return self.delivered < self._most_delivered

    def acknowledged(self, size: int) -> None:
        """Count fewer delivered bytes, and have those go on that were refused for them."""
        self.delivered -= size
        if self.refused and self.has_credit:
            self.refused.relieve(lambda: self.has_credit, lambda one: one.resume())

    def end(self, reason: str) -> None:
        """End the connection, with an ERROR that says why."""
        if not self.is_ended:
            self.is_ended = True
            for subscription in list(self.subscriptions)[:1]:
                subscription.fail(reason)


class TopicMemory:
    """Counts the bytes of messages that subscribers hold, each message once.

    And keeps the bodies of large ones for them, which no queue may need.
    """

    def __init__(
        self, limit: int, max_unacknowledged_bytes: int, large: LargeMessages | None = None
    ) -> None:
        """``max_unacknowledged_bytes`` is of one connection, ``limit`` of all together."""
        self.limit = limit
        self.used = 0
        self._max_unacknowledged_bytes = max_unacknowledged_bytes
        self._large = large
        self._accounts: dict[object, TopicAccount] = {}

    @property
    def is_exceeded(self) -> bool:
        """Whether subscribers hold more than they may."""
        return 0 <= self.limit < self.used

    def hold(self, publication: Publication) -> None:
        """Count somebody who holds a message."""
        publication.holders += 1
        if publication.holders == 1:
            self.used += publication.size
            body = publication.record.large
            if body is not None and self._large is not None:
                self._large.pin(body.id)

    def release(self, publication: Publication) -> None:
        """Count somebody who does so no more."""
        publication.holders -= 1
        if not publication.holders:
            self.used -= publication.size
            body = publication.record.large
            if body is not None and self._large is not None:
                self._large.unpin(body.id)

    def opened(self, connection: object, subscription: "TopicSubscription") -> TopicAccount:
        """Return the account of a connection that has one more subscription."""
        account = self._accounts.get(connection)
        if account is None:
            account = TopicAccount(self._max_unacknowledged_bytes)
            self._accounts[connection] = account
        account.subscriptions[subscription] = None
        return account

    def closed(self, connection: object, subscription: "TopicSubscription") -> None:
        """Forget a subscription, and with the last of a connection its account."""
        account = self._accounts[connection]
        del account.subscriptions[subscription]
        account.refused.forget(subscription)
        if not account.subscriptions:
            del self._accounts[connection]

    def end_the_worst(self) -> None:
        """While too much is held end the connection that holds most, one after the other."""
        while self.is_exceeded and self._accounts:
            if any(account.is_ended for account in self._accounts.values()):
                return  # what it held is not free yet
            worst = max(self._accounts.values(), key=lambda account: account.held)
            worst.end(
                f"topics' subscribers hold more than global-max-size {self.limit} together, and"
                " those of this connection most: acknowledge or read faster, or use a queue"
            )
