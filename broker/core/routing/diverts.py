"""Diverts: what is sent to one address goes to another, too or instead, in the same unit.

The copy says where it was sent, as in Artemis: ``_AMQ_ORIG_ADDRESS``. It keeps its time to expire,
and passes diverts of its new address, but none a second time.
"""

from collections.abc import Iterable

from orthia.broker.core.selectors import SelectorRefused, parse
from orthia.config.address_settings import DivertRoutingType, DivertSettings, RoutingType
from orthia.config.errors import ConfigurationError
from orthia.journal.model.encodings import NO_HEAD
from orthia.journal.model.message import Message


class Divert:
    """One divert, ready to be asked; raises ConfigurationError for a filter that cannot be read."""

    __slots__ = ("_selector", "address", "is_exclusive", "name", "settings")

    def __init__(self, settings: DivertSettings) -> None:
        self.settings = settings
        self.name = settings.name
        self.address = settings.forwarding_address
        self.is_exclusive = settings.exclusive
        try:
            self._selector = None if settings.filter is None else parse(settings.filter)
        except SelectorRefused as error:
            raise ConfigurationError(
                f"divert {settings.name!r}: its filter {settings.filter!r} is refused: {error}"
            ) from None

    def takes(self, record: Message) -> bool:
        """Return whether a message is diverted."""
        return self._selector is None or self._selector.matches(record)

    def diverted(self, record: Message) -> Message:
        """Return the message as it goes to the other address."""
        origin = {"_AMQ_ORIG_ADDRESS": record.address}
        if record.expires_ms and record.encoding != NO_HEAD:
            origin["expires"] = str(record.expires_ms)
        copy = record.relocated(self.address, origin)
        return copy._replace(expires_ms=record.expires_ms)

    def kinds(self, kind: RoutingType, of_address: Iterable[RoutingType]) -> list[RoutingType]:
        """Return what a message, sent as of a ``kind``, is of at an address of those types."""
        wanted = self.settings.routing_type
        if wanted is DivertRoutingType.PASS:
            return [kind]
        if wanted is DivertRoutingType.STRIP:
            return sorted(of_address, key=lambda one: one.value)
        return [RoutingType(wanted.value)]
