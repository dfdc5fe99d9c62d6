"""Subscriptions to many addresses at once: which addresses hear which.

A name with wildcards that has a queue or a subscriber is an address too. An address knows which of
them stand for it as of a number that each gets when it comes; when a message is sent, those that
came since are matched, in steps. So nothing is done for all addresses when a subscription comes,
nor for all subscriptions when an address does, and what is kept is of the order of the addresses
and the subscriptions, not of their product: of pairs that were found ``MOST_PAIRS`` are kept.
The addresses that were not sent to for longest are matched anew.
"""

from collections import OrderedDict
from collections.abc import Callable, Container, Iterable
from typing import Final

from orthia.broker.core.routing.address import Address
from orthia.broker.core.slices import GO_ON, Finding
from orthia.config.wildcards import WildcardAddresses

MOST_PAIRS: Final = 1_048_576
"""How often all addresses together may know of one that hears them: some 8 bytes each."""
_GONE: Final = -1
"""What an address that is forgotten is up to date with: nothing is kept for it any more."""
_AT_ONCE: Final = 64
"""How many names with wildcards are matched before others have a turn."""


class _Pattern:
    """A name with wildcards that is heard, in a list of all of them by their numbers.

    One that is gone still knows the one before: whoever goes through the list goes on from there.
    """

    __slots__ = ("address", "after", "before", "matches", "name", "number")

    def __init__(
        self,
        name: str,
        address: Address,
        matches: Callable[[str], bool],
        number: int,
        before: "_Pattern | None",
    ) -> None:
        self.name = name
        self.address = address
        self.matches = matches
        self.number = number
        self.before = before
        self.after: _Pattern | None = None


class Patterns:
    """The names with wildcards that are heard; on the loop's thread."""

    def __init__(self, wildcards: WildcardAddresses, temporary: Container[str]) -> None:
        """Nobody else hears the ``temporary`` addresses."""
        self.newest = 0
        """The number of the one that came last; an address that knows of it is up to date."""
        self._wildcards = wildcards
        self._temporary = temporary
        self._heard: dict[str, _Pattern] = {}
        self._last: _Pattern | None = None
        self._known_to: OrderedDict[Address, None] = OrderedDict()
        """The addresses that know who hears them; those that were sent to last are at the end."""
        self._pairs = 0

    def listen(self, name: str, address: Address) -> None:
        """Have an address hear all that its name stands for, if it has wildcards."""
        wildcards = self._wildcards
        if name in self._heard or not wildcards.routing_enabled or not wildcards.is_pattern(name):
            return
        self.newest += 1
        pattern = _Pattern(name, address, wildcards.matcher(name), self.newest, self._last)
        if self._last is not None:
            self._last.after = pattern
        self._last = self._heard[name] = pattern

    def hearing(self, address: Address) -> Finding[Iterable[Address]]:
        """Find out which addresses with wildcards stand for one and are used."""
        name, newest, pattern = address.use.name, self.newest, self._last
        known_up_to, known = address.heard_up_to, address.heard_by
        for one in known:
            if not one.is_used:
                self._forget(one.use.name)  # used again it is a new one, to all addresses
        if name in self._temporary:
            pattern = None
        found: list[Address] = []
        number = 0
        while pattern is not None and pattern.number > known_up_to:
            one = pattern.address
            if not one.is_used:
                self._forget(pattern.name)
            elif one is not address and pattern.matches(name):
                found.append(one)
            pattern = pattern.before
            number += 1
            if not number % _AT_ONCE:
                yield GO_ON
        # Of the known ones one may have been left by all, and have come anew.
        used = (one for one in known if one.is_used)
        hearing = tuple(dict.fromkeys((*used, *reversed(found))))
        if address.heard_up_to == known_up_to and address.heard_by is known:
            self._keep(address, hearing, newest)
        return hearing

    def _keep(self, address: Address, hearing: tuple[Address, ...], up_to: int) -> None:
        """Have an address know who hears it, and those that were not sent to for longest not."""
        if len(hearing) != len(address.heard_by) or up_to != address.heard_up_to:
            self._pairs += len(hearing) - len(address.heard_by)
            address.hear(hearing, up_to)
        if not hearing:
            self._known_to.pop(address, None)
            return
        self._known_to[address] = None
        self._known_to.move_to_end(address)
        while self._pairs > MOST_PAIRS:
            oldest, _ = self._known_to.popitem(last=False)
            self._pairs -= len(oldest.heard_by)
            oldest.hear((), 0)

    def left(self, gone: Iterable[tuple[str, Address]]) -> None:
        """Take note that addresses are forgotten, with their names."""
        for name, address in gone:
            self._forget(name)
            self._known_to.pop(address, None)
            self._pairs -= len(address.heard_by)
            address.hear((), _GONE)

    def _forget(self, name: str) -> None:
        pattern = self._heard.pop(name, None)
        if pattern is None:
            return
        before, after = pattern.before, pattern.after
        if before is not None:
            before.after = after
        if after is not None:
            after.before = before
        else:
            self._last = before
