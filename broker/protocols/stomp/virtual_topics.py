"""``virtualTopicConsumerWildcards`` of an acceptor: Classic's consumers of virtual topics.

A client of Classic consumes the messages of the topic ``VirtualTopic.Orders`` from a queue that it
calls ``Consumer.app1.VirtualTopic.Orders``. With ``Consumer.*.>;2``, as in Artemis, such a name, of
which the first two words are the consumer's, stands for a queue of the MULTICAST address that the
rest names: ``VirtualTopic.Orders::Consumer.app1.VirtualTopic.Orders``.
"""

from orthia.broker.core.destinations import QUALIFIED
from orthia.config.settings import AcceptorSettings, VirtualTopicConsumers

_QUEUE = "/queue/"


class VirtualTopics:
    """Those of one acceptor; the first that a destination matches counts."""

    def __init__(self, consumers: tuple[VirtualTopicConsumers, ...]) -> None:
        self._consumers = consumers

    @classmethod
    def of(cls, acceptor: AcceptorSettings) -> "VirtualTopics | None":
        """Return those of an acceptor; None if it has none."""
        consumers = acceptor.virtual_topic_consumers
        return cls(consumers) if consumers else None

    def of_core(self, destination: str) -> str:
        """Return the destination to consume from for a client that names ``destination``."""
        name = destination.removeprefix(_QUEUE)
        if name.startswith("/") or QUALIFIED in name:
            return destination
        for consumers in self._consumers:
            topic = consumers.topic_of(name)
            if topic is not None:
                return f"/topic/{topic}{QUALIFIED}{name}"
        return destination
