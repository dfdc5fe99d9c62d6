"""Queues with names of consumers of a virtual topic: creating one needs the topic's permissions.

``virtualTopicConsumerWildcards`` of an acceptor makes ``Consumer.a.VirtualTopic.b`` a queue of the
topic ``VirtualTopic.b``, and queue names are unique. So a client with a queue of that name at
another address could keep the topic's consumers from theirs, or consume in their place.
"""

from orthia.broker.core.identity import Principal
from orthia.broker.quoting import quoted
from orthia.broker.security.permissions import Security
from orthia.config.settings import Settings


class VirtualTopicQueues:
    """Checks the permissions for the topics that names of queues belong to."""

    def __init__(self, settings: Settings, security: Security) -> None:
        found = (one for acceptor in settings.acceptors for one in acceptor.virtual_topic_consumers)
        self._consumers = tuple(dict.fromkeys(found))
        self._security = security

    def check(self, principal: Principal, permission: str, address: str, queue: str) -> None:
        """Raise NotAuthorized unless a client may create a queue of an address, by its name."""
        for one in self._consumers:
            topic = one.topic_of(queue)
            if topic is not None and topic != address:
                why = f", whose consumer queue {quoted(queue)} is called as"
                self._security.check(principal, permission, topic, queue, why=why)
