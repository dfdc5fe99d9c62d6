"""Subscriptions to many addresses at once: which addresses hear which.

A name with wildcards that has a queue or a subscriber is an address too, and every other that it
stands for knows it: those that are there, and those that come later. So no message has to be
matched.
"""

from collections.abc import Callable, Container, Mapping

from orthia.broker.core.routing.address import Address
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
            if other is address or address in other.patterns or other_name in self._temporary:
                continue
            if matches(other_name):
                other.hear(address, name)

    def join(self, name: str, address: Address) -> None:
        """Have an address that is new be heard by all that stand for it."""
        if self._heard:
            heard = self._heard.items()
            found = {one: pattern for pattern, (one, matches) in heard if matches(name)}
            for one, pattern in found.items():
                address.hear(one, pattern)

    def forget_unused(self, address: Address) -> None:
        """Have an address be heard by nobody who stands for it and is used no more.

        Others that they stand for find it out when they are sent to: to look through all of them
        would hold everybody up.
        """
        unused = [pattern for pattern in address.patterns if not pattern.is_used]
        if unused:
            for pattern in unused:
                self._heard.pop(address.patterns[pattern], None)
            address.hear_no_more(unused)

    def left(self, gone: Mapping[str, Address]) -> None:
        """Take note that addresses are forgotten."""
        for name in gone:
            self._heard.pop(name, None)
        patterns = set(gone.values())
        for other in self._addresses.values():
            if not patterns.isdisjoint(other.patterns):
                other.hear_no_more(patterns)
