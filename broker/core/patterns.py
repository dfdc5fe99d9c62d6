"""Subscriptions to many addresses at once: which addresses hear which.

A name with wildcards that has a queue or a subscriber is an address too, and every other that it
stands for knows it: those that are there, and those that come later. So no message has to be
matched.
"""

from collections.abc import Callable, Container, Iterable, Mapping

from orthia.broker.core.address import Address
from orthia.config.wildcards import WildcardAddresses


class Patterns:
    """The names with wildcards that are heard; on the loop's thread."""

    def __init__(
        self,
        wildcards: WildcardAddresses,
        addresses: Mapping[str, Address],
        temporary: Container[str],
    ) -> None:
        """``addresses`` are all there are, by name; the ``temporary`` ones nobody else hears."""
        self._wildcards = wildcards
        self._addresses = addresses
        self._temporary = temporary
        self._heard: dict[str, tuple[Address, Callable[[str], bool]]] = {}

    def listen(self, name: str, address: Address) -> None:
        """Have an address hear all that its name stands for, if it has wildcards."""
        wildcards = self._wildcards
        if name in self._heard or not wildcards.routing_enabled or not wildcards.is_pattern(name):
            return
        matches = wildcards.matcher(name)
        self._heard[name] = (address, matches)
        for other_name, other in self._addresses.items():
            is_other = other is not address and other_name not in self._temporary
            if is_other and matches(other_name):
                other.route_by(patterns=(*other.patterns, address))

    def join(self, name: str, address: Address) -> None:
        """Have an address that is new be heard by all that stand for it."""
        if self._heard:
            found = [one for one, matches in self._heard.values() if matches(name)]
            if found:
                address.route_by(patterns=found)

    def forget_unused(self, patterns: Iterable[Address]) -> None:
        """Have those that nobody hears any more be looked at no more."""
        for pattern in patterns:
            if not pattern.is_used:
                for name in [name for name, (one, _) in self._heard.items() if one is pattern]:
                    self.left(name)

    def left(self, name: str) -> None:
        """Take note that an address is used no more."""
        pattern, matches = self._heard.pop(name, (None, None))
        if pattern is None or matches is None:
            return
        for other_name, other in self._addresses.items():
            if matches(other_name):
                left = [one for one in other.patterns if one is not pattern]
                other.route_by(patterns=left)
