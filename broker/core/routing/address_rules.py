"""What ``broker.xml`` says of addresses, ready to be asked: settings, diverts, declared queues."""

from orthia.broker.core.routing.diverts import Divert
from orthia.config.addresses import AddressResolver, ResolvedAddressSettings
from orthia.config.settings import Settings


class AddressRules:
    """Made on any thread, since that takes long for a long file; asked on the loop's."""

    def __init__(self, settings: Settings) -> None:
        """Raises ConfigurationError for a divert whose filter cannot be read."""
        matcher = settings.wildcard_addresses.matcher
        self.addresses = {address.name: address for address in settings.addresses}
        """Those that are declared, by name, in the order of the file."""
        self.queues = {
            queue.name: queue for address in settings.addresses for queue in address.queues
        }
        """Those that are declared, of any address."""
        self._resolver = AddressResolver(settings)
        self._diverts = [(matcher(one.address), Divert(one)) for one in settings.diverts]

    def settings_of(self, address: str) -> ResolvedAddressSettings:
        """Return what is set for an address."""
        return self._resolver.resolve(address)

    def diverts_of(self, address: str) -> tuple[Divert, ...]:
        """Return the diverts of what is sent to an address."""
        return tuple(one for matches, one in self._diverts if matches(address))
