"""Message groups: which consumer has a group, so that nobody else gets its messages meanwhile.

A group belongs to the consumer that got its first message until that leaves, until a message closes
the group, or until groups are given out anew because a consumer came. Whoever had it may still work
on what it has: so the next one gets nothing of the group until all that is acknowledged, or came
back. A group that nobody has messages of may be forgotten when there are very many.
"""

import hashlib
import logging
import zlib
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, Final

from orthia.broker.core.api import MessageReference
from orthia.broker.core.limits.memory import GroupMemory
from orthia.broker.core.queue.subscriptions import Subscription
from orthia.broker.core.selectors import MessageProperties
from orthia.config.queues import QueueOptions
from orthia.journal.model.encodings import NO_HEAD, encoding_of
from orthia.journal.model.message import Message, with_property, without_property

LOGGER = logging.getLogger("orthia.broker")
MOST_GROUPS: Final = 65_536
"""How many groups are known of one queue; beyond it the one that was quiet for longest goes."""
_CLOSES: Final = "-1"
LONGEST_NAME: Final = 64
"""Characters of a name up to which a group is known by it; a longer one by its digest."""
GROUP_OVERHEAD: Final = 512
"""Bytes that a group counts for beside its name: its places in what is known of it."""
_DIGEST_BYTES: Final = 16
Group = str | bytes | int
"""Its name, the digest of one that is long, or its bucket."""


def is_grouped(record: Message) -> bool:
    """Return whether a message is of a group; asked of every message, so it looks closer at few."""
    return may_be_grouped(record) and _name(MessageProperties(record)) is not None


def may_be_grouped(record: Message) -> bool:
    """Return whether a message has to be looked at closer: its group is in the head, or stated."""
    return bool(record.stated) or (
        record.encoding != NO_HEAD and encoding_of(record.encoding).may_name_group(record.head)
    )


def say_that_a_ring_keeps_none(queue: str) -> None:
    """Tell the operator of a queue that the messages of its groups go to any of its consumers."""
    LOGGER.warning(
        "queue %s has ring-size, so that the messages of a group go to whichever consumer is next:"
        " make it exclusive, or do without groups (logged once for each queue)",
        queue,
    )


def _digest(name: str) -> bytes:
    return hashlib.blake2b(name.encode(), digest_size=_DIGEST_BYTES).digest()


def _size(group: Group) -> int:
    if isinstance(group, str):
        return GROUP_OVERHEAD + len(group.encode())
    return GROUP_OVERHEAD


def _name(properties: MessageProperties) -> str | None:
    name = properties.get("JMSXGroupID")
    return name if isinstance(name, str) and name else None


class Groups:
    """The groups of one queue; pure."""

    def __init__(self, options: QueueOptions, memory: GroupMemory) -> None:
        self._buckets = options.group_buckets
        self._rebalances = options.group_rebalance
        self._first_key = options.group_first_key
        self._pauses = options.group_rebalance_pause_dispatch
        self._memory = memory
        self.size = 0
        """Bytes that the groups count for which somebody has."""
        self._owners: dict[Group, Subscription[Any]] = {}
        self._owned: dict[Subscription[Any], set[Group]] = {}
        """The groups that each consumer has."""
        self._quiet: OrderedDict[Group, None] = OrderedDict()
        """Those with an owner, and no message with anybody; which was quiet longest, first."""
        self._held: dict[int, Group] = {}
        """The groups of messages that consumers have, by their seq."""
        self._counts: dict[Group, int] = {}
        """How many those are of each group."""
        self._passed_over: set[Group] = set()
        """Groups of which somebody passed a message over that was not for them."""
        self._is_paused = False

    @property
    def are_idle(self) -> bool:
        """Whether no consumer has a group, or messages of one."""
        return not self._owners and not self._held

    def of(self, properties: MessageProperties) -> Group | None:
        """Return the group of a message; None if it is of none."""
        name = _name(properties)
        if name is None or not self._buckets:
            return None
        if self._buckets > 0:
            return zlib.crc32(name.encode()) % self._buckets
        return name if len(name) <= LONGEST_NAME else _digest(name)

    def admits(self, group: Group | None, subscription: Subscription[Any]) -> bool:
        """Return whether a consumer may have messages of a group now; if not, that is noted."""
        if group is None:
            return not self._is_paused
        owner = self._owners.get(group)
        if owner is subscription and not self._is_paused:
            return True
        if owner is None and not self._counts.get(group) and not self._is_paused:
            return True
        self._passed_over.add(group)
        return False

    def delivered(
        self, properties: MessageProperties, seq: int, subscription: Subscription[Any]
    ) -> bool:
        """Note what a consumer gets; return whether it is the first of a group that it gets."""
        group = self.of(properties)
        if group is None:
            return False
        is_first = self._owners.get(group) is not subscription
        self._held[seq] = group
        self._counts[group] = self._counts.get(group, 0) + 1
        self._quiet.pop(group, None)
        if str(properties.get("JMSXGroupSeq")) == _CLOSES:
            self._disown(group)
        elif is_first:
            self._disown(group)
            self._owners[group] = subscription
            self._owned.setdefault(subscription, set()).add(group)
            self._memory.add(self, _size(group))
            if len(self._owners) > MOST_GROUPS:
                self.forget_one()
            self._memory.make_room(self)
        return is_first

    def mark_first(self, reference: MessageReference) -> None:
        """Mark a group's first message to a consumer, if that is wanted, until it has answered."""
        if self._first_key is not None:
            reference.record = with_property(reference.record, self._first_key, "true")

    def unmark(self, references: Iterable[MessageReference]) -> None:
        """Undo ``mark_first``."""
        if self._first_key is not None:
            for reference in references:
                reference.record = without_property(reference.record, self._first_key)

    def forget_one(self) -> bool:
        """Forget the group that was quiet for longest, unless all are in use; return whether."""
        if not self._quiet:
            return False
        self._disown(next(iter(self._quiet)))
        return True

    def _disown(self, group: Group) -> None:
        """Remove the owner of a group."""
        self._quiet.pop(group, None)
        owner = self._owners.pop(group, None)
        if owner is not None:
            self._memory.remove(self, _size(group))
            owned = self._owned[owner]
            owned.discard(group)
            if not owned:
                del self._owned[owner]

    def answered(self, seqs: Iterable[int]) -> bool:
        """Note messages that have left their consumers; return whether a group is free now."""
        is_free = False
        for seq in seqs:
            group = self._held.pop(seq, None)
            if group is None:
                continue
            self._counts[group] -= 1
            if not self._counts[group]:
                del self._counts[group]
                if group in self._owners:
                    self._quiet[group] = None
                else:
                    is_free |= group in self._passed_over
        if self._is_paused and not self._held:
            self._is_paused = False
            is_free = True
        return is_free and self._looked_again()

    def came(self) -> bool:
        """Note a new consumer; return whether others may have a group now."""
        if not self._rebalances or not self._owners:
            return False
        self._owners.clear()
        self._owned.clear()
        self._quiet.clear()
        self._memory.remove(self, self.size)
        self._is_paused = self._pauses and bool(self._held)
        return self._looked_again()

    def left(self, subscription: Subscription[Any]) -> bool:
        """Note a consumer that has left; return whether a group is free now."""
        its_own = self._owned.pop(subscription, set())
        for group in its_own:
            del self._owners[group]
            self._quiet.pop(group, None)
        self._memory.remove(self, sum(map(_size, its_own)))
        return not its_own.isdisjoint(self._passed_over) and self._looked_again()

    def _looked_again(self) -> bool:
        self._passed_over.clear()
        return True
