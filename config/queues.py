"""What a queue does beside keeping messages in order: Artemis' settings of one queue.

One value says it for a queue that ``addresses`` declares, for one that a client has created, for a
durable subscription, and in the binding that is stored.
"""

from dataclasses import dataclass
from typing import Final

LAST_VALUE_NAME: Final = "_AMQ_LVQ_NAME"
"""The header whose value names what a message is the newest of, where no other is configured."""


@dataclass(frozen=True)
class QueueOptions:
    """Settings of one queue; the defaults are Artemis', and those of a queue that is none of it."""

    filter: str | None = None
    """A selector: only messages it matches come into the queue; None for all."""
    exclusive: bool = False
    """One consumer gets all messages; the next one takes over when it leaves."""
    last_value_key: str | None = None
    """The header by whose value a newer message replaces an older one; None replaces none."""
    non_destructive: bool = False
    """Each consumer sees every message, and what it acknowledges stays."""
    ring_size: int = -1
    """Messages kept at most: the oldest goes for a new one. -1 for any number."""
    purge_on_no_consumers: bool = False
    """Without a consumer there is no message: when the last leaves, what is left is deleted."""
    consumers_before_dispatch: int = 0
    """How many consumers there must be before the first message is delivered."""
    delay_before_dispatch: int = -1
    """Milliseconds after which it is delivered with fewer consumers; -1 waits for them."""
    enabled: bool = True
    """False: no message is routed to it."""
    group_rebalance: bool = False
    """Groups are given out anew when a consumer comes."""
    group_rebalance_pause_dispatch: bool = False
    """While groups are given out anew, nothing is delivered until all is acknowledged."""
    group_buckets: int = -1
    """Groups are told apart by so many hashes; -1 by name, 0 not at all."""
    group_first_key: str | None = None
    """The header that marks a group's first message to a consumer; None marks none."""

    @property
    def conflict(self) -> str | None:
        """What cannot be said of one queue; None if all can."""
        if self.non_destructive and (grouping := self._grouping) is not None:
            return (
                f"is non-destructive with {grouping}: each consumer sees every message, whatever"
                f" group it is of; expected non-destructive false, or no {grouping}"
            )
        if self.last_value_key is None:
            return None
        if self.ring_size >= 0:
            return (
                "is a last value queue and a ring: messages are replaced wherever they are, and a"
                " ring is taken from the front; expected ring-size -1, or last-value false"
            )
        if self.purge_on_no_consumers:
            return (
                "is a last value queue with purge-on-no-consumers: what nobody consumes is what its"
                " values are kept for; expected one of the two to be false"
            )
        return None

    @property
    def _grouping(self) -> str | None:
        """The first that is set of what says how groups are given out; None if none is."""
        said = {
            "group-rebalance": self.group_rebalance,
            "group-rebalance-pause-dispatch": self.group_rebalance_pause_dispatch,
            "group-buckets": self.group_buckets > 0,
            "group-first-key": self.group_first_key is not None,
        }
        return next((name for name, is_set in said.items() if is_set), None)

    @property
    def has_groups(self) -> bool:
        """Whether the messages of a group go to one consumer at a time."""
        is_one_for_all = self.exclusive or self.ring_size >= 0 or self.non_destructive
        return bool(self.group_buckets) and not is_one_for_all


PLAIN: Final = QueueOptions()
