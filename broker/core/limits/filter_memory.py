"""Memory of the selectors of durable subscriptions, by owner.

They stay parsed when their clients leave. A selector is parsed once for all queues that have it: it
counts once for each owner, which is a user or the connection of a client without one, and once in
the sum. Selectors of stored queues are counted, and never refused.
"""

from collections import Counter
from typing import Final

from orthia.broker.core.errors import LimitExceeded
from orthia.broker.core.identity import Principal
from orthia.broker.core.selectors.selector import CHARACTER_BYTES
from orthia.broker.quoting import quoted

_RESERVED_SHARE: Final = 8
"""One part in so many is reserved: no single owner can use it."""
_Owner = str | Principal | None
"""A user, the connection of a client without one, or None if unknown."""


class FilterMemory:
    """Counts the selectors of queues; on the loop's thread."""

    def __init__(self, most_bytes: int) -> None:
        self.bytes = 0
        """Bytes of all of them together."""
        self._most_bytes = most_bytes
        self._of_queues: dict[str, tuple[_Owner, str]] = {}
        self._uses: Counter[str] = Counter()
        self._uses_of: dict[_Owner, Counter[str]] = {}
        self._bytes_of: Counter[_Owner] = Counter()

    def refuse_if_too_much(self, principal: Principal, text: str, named: str) -> None:
        """Raise LimitExceeded if a client must not have a queue, ``named`` so, with this filter.

        One that its owner has at another queue costs nothing.
        """
        most, size = self._most_bytes, CHARACTER_BYTES * len(text)
        owner = owner_of(principal)
        if text not in self._uses_of.get(owner, ()):
            of_one = most - most // _RESERVED_SHARE
            if self._bytes_of[owner] + size > of_one:
                who = "this connection" if isinstance(owner, Principal) else f"user {quoted(owner)}"
                raise LimitExceeded(
                    f"the selectors of durable subscriptions of {who} are {self._bytes_of[owner]}"
                    f" bytes, and one may have {of_one} of max-selector-bytes {most}: that of"
                    f" {named} is {size} more"
                )
        if text not in self._uses and self.bytes + size > most:
            raise LimitExceeded(
                f"the selectors of durable subscriptions are {self.bytes} bytes, and all may have"
                f" max-selector-bytes {most}: that of {named} is {size} more"
            )

    def hold(self, queue: str, owner: str | Principal | None, text: str | None) -> None:
        """Count the filter of a queue, in place of what was counted for it."""
        self.release(queue)
        if text is None:
            return
        size = CHARACTER_BYTES * len(text)
        self._of_queues[queue] = (owner, text)
        if not self._uses[text]:
            self.bytes += size
        self._uses[text] += 1
        uses = self._uses_of.setdefault(owner, Counter())
        if not uses[text]:
            self._bytes_of[owner] += size
        uses[text] += 1

    def release(self, queue: str) -> None:
        """Discount the filter of a queue, if it has one."""
        held = self._of_queues.pop(queue, None)
        if held is None:
            return
        owner, text = held
        size = CHARACTER_BYTES * len(text)
        self._uses[text] -= 1
        if not self._uses[text]:
            del self._uses[text]
            self.bytes -= size
        uses = self._uses_of[owner]
        uses[text] -= 1
        if not uses[text]:
            del uses[text]
            self._bytes_of[owner] -= size
            if not uses:
                del self._uses_of[owner]
                del self._bytes_of[owner]


def owner_of(principal: Principal) -> str | Principal:
    """Return for whom a filter counts that a client asks for."""
    return principal if principal.unrestricted else principal.name
