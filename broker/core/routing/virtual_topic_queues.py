"""Queues that are called as consumers of a virtual topic: who has one needs the topic's rights.

``virtualTopicConsumerWildcards`` of an acceptor makes ``Consumer.a.VirtualTopic.b`` a queue of the
topic ``VirtualTopic.b``, and no two queues have one name. So whoever had a queue of that name at
another address would keep the topic's consumers from theirs, or consume in their place.
"""

from orthia.broker.core.identity import Principal
from orthia.broker.quoting import quoted
from orthia.broker.security.permissions import Security
from orthia.config.settings import Settings


class VirtualTopicQueues:
    """Asks for the rights on the topics that names of queues are of."""

    def __init__(self, settings: Settings, security: Security) -> None:
        found = (one for acceptor in settings.acceptors for one in acceptor.virtual_topic_consumers)
        self._consumers = tuple(dict.fromkeys(found))
        self._security = security

    def check(self, principal: Principal, permission: str, address: str, queue: str) -> None:
        """Raise NotAuthorized unless a client may have a queue, of an address, by its name."""
        for one in self._consumers:
            topic = one.topic_of(queue)
            if topic is not None and topic != address:
                why = f", whose consumer queue {quoted(queue)} is called as"
                self._security.check(principal, permission, topic, queue, why=why)
