"""The client of a run that has a durable subscription, and is away now and then."""

from orthia.broker.client.connection import BrokerRefused, Connection, ServerFrame
from tests.chaos.clients import Given
from tests.chaos.consumers import Consumer, Habits
from tests.chaos.history import Kind
from tests.chaos.subscriptions import subscription_name

_NAME = "audit"
_IDENTITY = "1"
_SUBSCRIBED = "subscribed"
_ENDED = "ended"
_LEAVES_PROBABILITY = 0.01
_ENDS_PROBABILITY = 0.002
_AWAY_SECONDS = 4.0
_NO_SUCH = "has no durable subscription"


class DurableSubscriber(Consumer):
    """Receives a topic by a durable subscription.

    Now and then it leaves, in order or by a crash, and comes back; and now and then it ends its
    subscription, and makes another of the same name.
    """

    def __init__(
        self,
        name: str,
        topic: str,
        given: Given,
        selector: str = "",
    ) -> None:
        super().__init__(name, topic, given, Habits(selector=selector))
        self.client_id = name
        self._number = 1
        """Of the subscription it has, counted from its first."""
        self._asked_to_end = 0
        """How often it asked to end this one, without a word of what came of it."""
        self._leaves = True

    def hurry(self) -> None:
        """Stay from now on."""
        super().hurry()
        self._leaves = False

    @property
    def _subscription(self) -> str:
        return subscription_name(self._queue, self.name, self._number)

    def work(self, connection: Connection) -> None:
        """Receive until stopped, lost, or about to leave; be away for a while then."""
        self._unacknowledged, self._asked = [], {}
        if self._asked_to_end:
            self._end(connection)
        self.note(Kind.SUBSCRIBE, queue=self._subscription)
        self.subscribe(connection, _IDENTITY, self._queue)
        while not self._stopping.is_set():
            for frame in connection.exchange(0.2):
                if frame.command == "RECEIPT":
                    self._acknowledged(frame)
                    continue
                self.received(connection, frame)
                chance = self._random.random()
                if self._leaves and chance < _ENDS_PROBABILITY:
                    self._end(connection)
                    return
                if self._leaves and chance < _LEAVES_PROBABILITY:
                    self._leave(connection)
                    return

    def subscribe_headers(self) -> dict[str, str]:
        """Name the subscription, and ask for a word when it is there."""
        return {"durable-subscription-name": _NAME, "receipt": _SUBSCRIBED}

    def source(self, frame: ServerFrame) -> str:
        """Return the subscription that it has."""
        del frame
        return self._subscription

    def _acknowledged(self, frame: ServerFrame) -> None:
        if frame.headers["receipt-id"] == _SUBSCRIBED:
            self.note(Kind.SUBSCRIBED, queue=self._subscription)
        else:
            super()._acknowledged(frame)

    def _leave(self, connection: Connection) -> None:
        if self._random.random() < 0.5:
            connection.send("UNSUBSCRIBE", {"id": _IDENTITY})
            connection.exchange(0)
        connection.close()
        self._stopping.wait(self._random.uniform(0, _AWAY_SECONDS))

    def _end(self, connection: Connection) -> None:
        """End the subscription with all it has; what comes until that is done counts for nothing.

        Where the connection is lost meanwhile, it is asked for again on the next one.
        """
        self._asked_to_end += 1
        self.note(Kind.UNSUBSCRIBE, queue=self._subscription)
        connection.send("UNSUBSCRIBE", {"durable-subscription-name": _NAME, "receipt": _ENDED})
        try:
            while not any(
                frame.headers.get("receipt-id") == _ENDED for frame in connection.exchange(0.5)
            ):
                if self._abandoned.is_set():
                    return
        except BrokerRefused as error:
            if _NO_SUCH not in str(error):
                raise
            if self._asked_to_end == 1:
                raise AssertionError(f"{self._subscription} was there: {error}") from error
            self._begin_anew()  # it was ended, and only the word of it was lost
            raise
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._asked_to_end = 0
        self._number += 1
