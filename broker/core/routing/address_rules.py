"""What ``broker.xml`` says of addresses: their settings, diverts and declared queues."""

from collections.abc import Iterator

from orthia.broker.core.routing.address_expiry import changes_messages
from orthia.broker.core.routing.diverts import Divert
from orthia.broker.core.selectors import SelectorRefused, parse
from orthia.config.addresses import AddressResolver, ResolvedAddressSettings
from orthia.config.settings import Settings
from orthia.config.violations import Violation


class AddressRules:
    """The rules of one ``broker.xml``; made on any thread, asked on the loop's."""

    def __init__(self, settings: Settings) -> None:
        """Raises ConfigurationError for a divert whose filter cannot be parsed."""
        matcher = settings.wildcard_addresses.matcher
        self.addresses = {address.name: address for address in settings.addresses}
        """The declared addresses by name, in the order of the file."""
        self.queues = {
            queue.name: queue for address in settings.addresses for queue in address.queues
        }
        """The declared queues of all addresses by name."""
        self.changes_messages = any(changes_messages(one) for one in settings.address_settings)
        """Whether any address changes when messages expire, or stamps them."""
        self._resolver = AddressResolver(settings)
        self._diverts = [(matcher(one.address), Divert(one)) for one in settings.diverts]

    def settings_of(self, address: str) -> ResolvedAddressSettings:
        """Return the settings of an address."""
        return self._resolver.resolve(address)

    def diverts_of(self, address: str) -> tuple[Divert, ...]:
        """Return the diverts of messages that are sent to an address."""
        return tuple(one for matches, one in self._diverts if matches(address))


def unreadable_filters(settings: Settings) -> Iterator[Violation]:
    """Yield the filters of diverts and queues that cannot be parsed: before a node serves."""
    for address in settings.addresses:
        for queue in address.queues:
            selector = queue.options.get("filter")
            if selector is not None:
                where = f"core/addresses/address[{address.name}]/queue[{queue.name}]"
                yield from _unreadable(where, selector)
    for divert in settings.diverts:
        if divert.filter is not None:
            yield from _unreadable(f"core/diverts/divert[{divert.name}]", divert.filter)


def _unreadable(where: str, selector: str) -> Iterator[Violation]:
    try:
        parse(selector)
    except SelectorRefused as error:
        yield Violation(where, f"its filter {selector!r} is refused: {error}")
