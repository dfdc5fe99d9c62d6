"""Wildcard addresses, and which addresses each of them matches.

A name with wildcards that has a queue or a subscriber is an address too. Each gets a number when it
comes, and every other address knows which of them match it up to a number. When a message is sent
to an address those with higher numbers are matched, in steps. So a new subscription costs nothing
for each address, a new address nothing for each subscription, and what is kept is in proportion to
the addresses and the subscriptions, not to their product: of pairs that match, ``MOST_PAIRS`` are
kept. Addresses that were not sent to for longest are matched again.
"""

from collections import OrderedDict
from collections.abc import Callable, Container, Iterable
from typing import Final

from orthia.broker.core.routing.address import Address
from orthia.broker.core.slices import GO_ON, Finding
from orthia.config.wildcards import WildcardAddresses

MOST_PAIRS: Final = 1_048_576
"""Pairs of an address and a wildcard address that matches it, in all: some 8 bytes each."""
_GONE: Final = -1
"""The number that a forgotten address knows: nothing is kept for it any more."""
_AT_ONCE: Final = 64
"""How many wildcard addresses are matched in one step."""


class _Pattern:
    """A wildcard address in use, in a linked list of all by their numbers.

    One that is gone still knows the one before, so that steps that are at it can go on.
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
    """The wildcard addresses in use; on the loop's thread."""

    def __init__(self, wildcards: WildcardAddresses, temporary: Container[str]) -> None:
        """No wildcard matches the ``temporary`` addresses."""
        self.newest = 0
        """The number of the newest one; an address that knows it is up to date."""
        self._wildcards = wildcards
        self._temporary = temporary
        self._used: dict[str, _Pattern] = {}
        self._last: _Pattern | None = None
        self._known_to: OrderedDict[Address, None] = OrderedDict()
        """The addresses that know which match them; the one that was sent to last is at the end."""
        self._pairs = 0

    def listen(self, name: str, address: Address) -> None:
        """Let an address get the messages of all that its name matches, if it has wildcards."""
        wildcards = self._wildcards
        if name in self._used or not wildcards.routing_enabled or not wildcards.is_pattern(name):
            return
        self.newest += 1
        pattern = _Pattern(name, address, wildcards.matcher(name), self.newest, self._last)
        if self._last is not None:
            self._last.after = pattern
        self._last = self._used[name] = pattern

    def hearing(self, address: Address) -> Finding[Iterable[Address]]:
        """Find the wildcard addresses in use that match an address."""
        name, newest, pattern = address.use.name, self.newest, self._last
        known_up_to, known = address.heard_up_to, address.heard_by
        for one in known:
            if not one.is_used:
                self._forget(one.use.name)  # if it is used again it gets a new number
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
        # One may have been forgotten and have come again, and so be in both.
        used = (one for one in known if one.is_used)
        hearing = tuple(dict.fromkeys((*used, *reversed(found))))
        if address.heard_up_to == known_up_to and address.heard_by is known:
            self._keep(address, hearing, newest)
        return hearing

    def _keep(self, address: Address, hearing: tuple[Address, ...], up_to: int) -> None:
        """Let an address know what matches it; forget that of those sent to longest ago."""
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
        """Forget addresses that the book has forgotten, with their names."""
        for name, address in gone:
            self._forget(name)
            self._known_to.pop(address, None)
            self._pairs -= len(address.heard_by)
            address.hear((), _GONE)

    def _forget(self, name: str) -> None:
        pattern = self._used.pop(name, None)
        if pattern is None:
            return
        before, after = pattern.before, pattern.after
        if before is not None:
            before.after = after
        if after is not None:
            after.before = before
        else:
            self._last = before
