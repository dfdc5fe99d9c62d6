"""The properties of a message as selectors see them, by their names in JMS and Artemis."""

from collections.abc import Callable, Mapping
from typing import Final

from orthia.journal.model.fields import Property
from orthia.journal.model.message import Message

Value = str | int | float | bool | None
"""None is unknown, like SQL's NULL."""


MOST_CHARACTERS: Final = 4_096
"""How many characters of one message a selector may search by LIKE or concatenate by ``+``: a
header may have 64 kB, and a selector may name it a thousand times."""

_PARSED_BYTES: Final = 256 * 1024
"""Bytes of heads whose properties are kept; the properties take a few times as much."""
_PARSED_OVERHEAD: Final = 400
"""Bytes that the properties of even a short head take; measured on CPython 3.11."""


def _properties(message: Message) -> Mapping[str, Property]:
    try:
        return message.properties()
    except ValueError:
        return {}  # a message with an unreadable head has no properties; it is still delivered


class Parsed:
    """The heads that were parsed lately: one message meets many selectors.

    Without it a hundred selectors, or a hundred queues of one topic, would parse the same head a
    hundred times. It keeps no message.
    """

    __slots__ = ("_bytes", "_known")

    def __init__(self) -> None:
        self._known: dict[tuple[int, bytes, bytes], Mapping[str, Property]] = {}
        self._bytes = 0

    def properties(self, message: Message) -> Mapping[str, Property]:
        """Return the properties of a message; none if its head cannot be read."""
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
"""One for all queues, so that its size is bounded."""


class MessageProperties:
    """The properties of one message; its head is parsed once, when the first is asked for.

    One object for all selectors that a message is matched against.
    """

    __slots__ = ("_properties", "characters", "message")

    def __init__(self, message: Message) -> None:
        self.message = message
        self.characters = MOST_CHARACTERS
        """How many more the current selector may search."""
        self._properties: Mapping[str, Property] | None = None

    @property
    def are_typed(self) -> bool:
        """Whether a text among them is no number, whatever it looks like."""
        return self.message.is_typed

    def get(self, name: str) -> Value:
        """Return a property that is not one of ``BROKERS_OWN``; None if there is none."""
        properties = self._properties
        if properties is None:
            properties = self._properties = _PARSED.properties(self.message)
        value = properties.get(name)
        return None if isinstance(value, bytes) else value

    @property
    def searched(self) -> int:
        """How many characters the last selector has searched."""
        return MOST_CHARACTERS - self.characters

    def may_search(self, characters: int) -> bool:
        """Count characters that are to be searched or copied; return False if too many."""
        if characters > self.characters:
            return False
        self.characters -= characters
        return True


def _timestamp_ms(properties: MessageProperties) -> int:
    """Return when its sender made a message, if its protocol says that; else when it came."""
    said = properties.get("JMSTimestamp")
    return said if isinstance(said, int) else properties.message.timestamp_ms


def _is_durable(properties: MessageProperties) -> bool:
    return properties.get("JMSDeliveryMode") != "NON_PERSISTENT"


BROKERS_OWN: Final[Mapping[str, Callable[[MessageProperties], Value]]] = {
    "AMQPriority": lambda properties: properties.message.priority,
    "JMSPriority": lambda properties: properties.message.priority,
    "AMQTimestamp": _timestamp_ms,
    "JMSTimestamp": _timestamp_ms,
    "AMQExpiration": lambda properties: properties.message.expires_ms,
    "JMSExpiration": lambda properties: properties.message.expires_ms,
    "AMQAddress": lambda properties: properties.message.address,
    "AMQSize": lambda properties: (
        len(properties.message.head) + len(properties.message.stated) + properties.message.body_size
    ),
    "AMQDurable": lambda properties: "DURABLE" if _is_durable(properties) else "NON_DURABLE",
    "JMSDeliveryMode": lambda properties: (
        "PERSISTENT" if _is_durable(properties) else "NON_PERSISTENT"
    ),
    "AMQUserID": lambda properties: properties.get("JMSMessageID"),
    "AMQGroupID": lambda properties: properties.get("JMSXGroupID"),
    "_AMQ_GROUP_ID": lambda properties: properties.get("JMSXGroupID"),
}
"""Names whose values the broker computes. ``AMQSize`` is bytes of headers and body; times are
milliseconds since 1970 UTC."""
