"""What a selector asks of a message, by the names that JMS and Artemis have for it."""

from collections.abc import Callable, Mapping
from typing import Final

from orthia.journal.model.fields import Property
from orthia.journal.model.message import Message

Value = str | int | float | bool | None
"""None is unknown, as SQL's NULL."""


MOST_CHARACTERS: Final = 4_096
"""How many characters of one message a selector searches by LIKE, or puts together by ``+``.

A header may have 64 kB, and a selector may name it a thousand times."""

_PARSED_BYTES: Final = 256 * 1024
"""Of heads that are kept as what they say, which takes some times as much as they do."""
_PARSED_OVERHEAD: Final = 400
"""Bytes that what is kept of a head takes however short that is; measured on CPython 3.11."""


def _properties(message: Message) -> Mapping[str, Property]:
    try:
        return message.properties()
    except ValueError:
        return {}  # a head that cannot be read says nothing; it is delivered all the same


class Parsed:
    """The heads that were parsed a while ago: most messages are asked of by every selector.

    A hundred selectors would parse each a hundred times, and so would as many queues to which a
    topic's messages are copied. No message is kept by it.
    """

    __slots__ = ("_bytes", "_known")

    def __init__(self) -> None:
        self._known: dict[tuple[int, bytes, bytes], Mapping[str, Property]] = {}
        self._bytes = 0

    def properties(self, message: Message) -> Mapping[str, Property]:
        """Return what a message's head says; nothing if it cannot be read."""
        head = (message.encoding, message.head, message.stated)
        known = self._known.get(head)
        if known is None:
            size = len(message.head) + len(message.stated) + _PARSED_OVERHEAD
            if self._bytes + size > _PARSED_BYTES:
                self._known.clear()
                self._bytes = 0
            self._bytes += size
            known = self._known[head] = _properties(message)
        return known


_PARSED: Final = Parsed()
"""One for all queues, of which there may be many: what it keeps is counted nowhere else."""


class Said:
    """A message as selectors see it: what its head says is parsed when asked for, and once.

    One for all selectors that a message is matched against.
    """

    __slots__ = ("_properties", "characters", "message")

    def __init__(self, message: Message) -> None:
        self.message = message
        self.characters = MOST_CHARACTERS
        """How many more the selector may search that is asked just now."""
        self._properties: Mapping[str, Property] | None = None

    def get(self, name: str) -> Value:
        """Return a property of the message, which is not one of ``BROKERS_OWN``."""
        properties = self._properties
        if properties is None:
            properties = self._properties = _PARSED.properties(self.message)
        value = properties.get(name)
        return None if isinstance(value, bytes) else value

    @property
    def searched(self) -> int:
        """How many characters were searched for the selector that was asked last."""
        return MOST_CHARACTERS - self.characters

    def may_search(self, characters: int) -> bool:
        """Count characters that are to be searched or copied; return whether they may be."""
        if characters > self.characters:
            return False
        self.characters -= characters
        return True


def _is_durable(said: Said) -> bool:
    return said.get("JMSDeliveryMode") != "NON_PERSISTENT"


BROKERS_OWN: Final[Mapping[str, Callable[[Said], Value]]] = {
    "AMQPriority": lambda said: said.message.priority,
    "JMSPriority": lambda said: said.message.priority,
    "AMQTimestamp": lambda said: said.message.timestamp_ms,
    "JMSTimestamp": lambda said: said.message.timestamp_ms,
    "AMQExpiration": lambda said: said.message.expires_ms,
    "JMSExpiration": lambda said: said.message.expires_ms,
    "AMQAddress": lambda said: said.message.address,
    "AMQSize": lambda said: (
        len(said.message.head) + len(said.message.stated) + said.message.body_size
    ),
    "AMQDurable": lambda said: "DURABLE" if _is_durable(said) else "NON_DURABLE",
    "JMSDeliveryMode": lambda said: "PERSISTENT" if _is_durable(said) else "NON_PERSISTENT",
    "AMQUserID": lambda said: said.get("JMSMessageID"),
    "AMQGroupID": lambda said: said.get("JMSXGroupID"),
    "_AMQ_GROUP_ID": lambda said: said.get("JMSXGroupID"),
}
"""Names that are no property of the message as its sender wrote it. ``AMQSize`` is in bytes, of
headers and body; the times are milliseconds since 1970 UTC."""
