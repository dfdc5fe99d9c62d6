"""Diverts: a message that is sent to one address goes to another, also or instead, in one unit.

The copy names the address it was sent to, as in Artemis: ``_AMQ_ORIG_ADDRESS``. It keeps the time
when it expires. The diverts of its new address apply to it, but no divert takes it twice.
"""

from collections.abc import Iterable

from orthia.broker.core.selectors import SelectorRefused, parse
from orthia.config.address_settings import DivertRoutingType, DivertSettings, RoutingType
from orthia.config.errors import ConfigurationError
from orthia.journal.model.encodings import NO_HEAD
from orthia.journal.model.message import Message


class Divert:
    """One divert; raises ConfigurationError for a filter that cannot be parsed."""

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
        """Return whether the divert takes a message."""
        return self._selector is None or self._selector.matches(record)

    def diverted(self, record: Message) -> Message:
        """Return the copy for the other address."""
        origin = {"_AMQ_ORIG_ADDRESS": record.address}
        if record.expires_ms and record.encoding != NO_HEAD:
            origin["expires"] = str(record.expires_ms)
        copy = record.relocated(self.address, origin)
        return copy._replace(expires_ms=record.expires_ms)

    def kinds(self, kind: RoutingType, of_address: Iterable[RoutingType]) -> list[RoutingType]:
        """Return the types a message of a ``kind`` gets at an address ``of_address`` types."""
        wanted = self.settings.routing_type
        if wanted is DivertRoutingType.PASS:
            return [kind]
        if wanted is DivertRoutingType.STRIP:
            return sorted(of_address, key=lambda one: one.value)
        return [RoutingType(wanted.value)]
