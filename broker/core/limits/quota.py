# mypyc compiles this module.
"""How much the store holds, against the limits that operators set.

A message is charged before it is stored, and counts in each queue that has it until it is
acknowledged, expired or moved: its headers, its body wherever that is, and ``MESSAGE_OVERHEAD``.
The body of a large message counts as it arrives, and while its transaction is open. What the broker
itself moves to a dead-letter or expiry address is counted and never refused. What earlier nodes
left counts from when it is counted, or read, in the background.
"""

import logging
from typing import NamedTuple

from orthia.broker.core.api import FanOut
from orthia.broker.core.errors import NoRoomInStore, QuotaExceeded
from orthia.broker.core.slices import Wait
from orthia.broker.quoting import quoted
from orthia.config.address_settings import AddressFullPolicy, PageFullPolicy
from orthia.config.addresses import ResolvedAddressSettings

LOGGER = logging.getLogger("orthia.broker")
UNLIMITED = 1 << 62
"""More than any store holds."""


class ShownUse(NamedTuple):
    """What the store holds, for a metric."""

    used: int
    limit: int | None
    closed_by: frozenset[str]
    """``disk`` or ``database``, while that is full: nothing is admitted then."""


class StoreUse:
    """What all addresses hold together, and whether the store admits anything."""

    __slots__ = ("_closed", "_max_bytes", "_refused_bytes", "limit", "used")

    def __init__(self, max_bytes: int) -> None:
        """Begin empty; ``max_bytes`` below 0 means no limit."""
        self._max_bytes = UNLIMITED if max_bytes < 0 else max_bytes
        self._closed: dict[str, str] = {}
        self._refused_bytes = 0
        """The size that ``limit`` refused last."""
        self.limit = self._max_bytes
        """0 while the store is closed."""
        self.used = 0

    @property
    def is_closed(self) -> bool:
        """Whether nothing is admitted, however small."""
        return bool(self._closed)

    def close(self, who: str, reason: str) -> None:
        """Admit nothing, for a ``reason`` in a whole sentence, until ``who`` calls ``reopen``."""
        self._closed[who] = reason
        self.limit = 0

    def reopen(self, who: str) -> None:
        """Admit messages again, unless somebody else has closed it too."""
        self._closed.pop(who, None)
        if not self._closed:
            self.limit = self._max_bytes

    def close_or_reopen(self, who: str, reason: str | None) -> None:
        """Close for a ``reason``; reopen for None."""
        if reason is None:
            self.reopen(who)
        else:
            self.close(who, reason)

    @property
    def shown(self) -> "ShownUse":
        """What an operator sees."""
        limit = None if self._max_bytes == UNLIMITED else self._max_bytes
        return ShownUse(self.used, limit, frozenset(self._closed))

    @property
    def refused_by(self) -> str | None:
        """What refuses messages: ``disk``, ``database``, ``max-store-bytes``; None if nothing does.

        The limit does as long as it would refuse again what it refused last. On any thread.
        """
        closed_by = next(iter(self._closed.copy()), None)
        if closed_by is not None:
            return closed_by
        is_full = self.used + self._refused_bytes > self._max_bytes
        return "max-store-bytes" if is_full else None

    def add(self, size: int) -> None:
        """Count ``size`` bytes more, or fewer, which were admitted elsewhere."""
        self.used += size

    def refuse_if_closed(self) -> None:
        """Raise NoRoomInStore if the store is closed."""
        if self._closed:
            raise NoRoomInStore(next(iter(self._closed.values())))

    def refuse_if_full(self, size: int) -> None:
        """Raise QuotaExceeded or NoRoomInStore if ``size`` more bytes are not admitted."""
        self.refuse_if_closed()
        if self.used + size > self.limit:
            if size <= self.limit:  # else it is too large for an empty store
                self._refused_bytes = size
            more = f"{size} bytes more" if size else "messages"
            raise QuotaExceeded(
                f"all addresses together may hold max-store-bytes {self.limit} and hold"
                f" {self.used}: {more} are refused; consume messages, or raise the limit"
            )


class AddressUse:
    """What the queues of one address hold, and what happens at its limits.

    With DROP, in either of the two policies, a message without room is dropped; one that finds room
    enters all of its queues. With BLOCK nothing is read from a sender until there is room, or it
    gets no credit; what it has sent by then is admitted whole, as is a transaction, so the address
    exceeds its limit by what each sender sent last. Otherwise a message without room is refused.
    """

    __slots__ = ("_blocks_at_bytes", "_blocks_at_messages", "_bytes_name", "_drops", "_is_told",
                 "_max_bytes", "_max_messages", "_messages_name", "_most_used", "_waiting",
                 "asks_first", "messages", "name", "total", "uploading", "used")  # fmt: skip

    def __init__(self, name: str, settings: ResolvedAddressSettings, total: StoreUse) -> None:
        """Begin empty."""
        self.name = name
        self.total = total
        self.used = 0
        self.messages = 0
        self.uploading = 0
        """Bytes of bodies that are still arriving, or belong to open transactions."""
        self._waiting: dict[Wait, None] = {}
        """Senders that wait for room."""
        self.configure(settings)

    def configure(self, settings: ResolvedAddressSettings) -> None:
        """Apply the limits and policies of ``settings``."""
        policy = settings.address_full_policy
        fails = policy in (AddressFullPolicy.FAIL, AddressFullPolicy.DROP)
        blocks = policy is AddressFullPolicy.BLOCK
        self._drops = policy is AddressFullPolicy.DROP or (
            policy is AddressFullPolicy.PAGE and settings.page_full_policy is PageFullPolicy.DROP
        )
        self._is_told = False
        self.asks_first = self._drops or blocks
        """Whether a full address drops messages or blocks senders, instead of refusing."""
        self._max_bytes, self._bytes_name = _least(
            ("max-size-bytes", settings.max_size_bytes if fails else -1),
            ("page-limit-bytes", settings.page_limit_bytes),
        )
        self._most_used = self._max_bytes - self.uploading
        """Bytes that messages may hold beside what is uploading."""
        self._max_messages, self._messages_name = _least(
            ("max-size-messages", settings.max_size_messages if fails else -1),
            ("page-limit-messages", settings.page_limit_messages),
        )
        self._blocks_at_bytes = _unless_negative(settings.max_size_bytes if blocks else -1)
        self._blocks_at_messages = _unless_negative(settings.max_size_messages if blocks else -1)
        self._let_senders_go_on()

    @property
    def fill(self) -> float | None:
        """How much of its nearest limit is used, 1 when full; None without one. Any thread."""
        most_bytes = min(self._max_bytes, self._blocks_at_bytes)
        most_messages = min(self._max_messages, self._blocks_at_messages)
        found: list[float] = []
        if most_bytes < UNLIMITED:
            found.append((self.used + self.uploading) / max(1, most_bytes))
        if most_messages < UNLIMITED:
            found.append(self.messages / max(1, most_messages))
        return max(found) if found else None

    def drops(self, size: int) -> bool:
        """Return whether a message of ``size`` bytes is dropped because the address is full."""
        is_full = self._drops and self._has_no_room(size)
        if is_full and not self._is_told:
            self._is_told = True
            LOGGER.warning(
                "address %s is full (%s): messages that are sent there are dropped until there is"
                " room, as its policy DROP says (logged once for each address)",
                quoted(self.name),
                self._bytes_name or self._messages_name,
            )
        return is_full

    def refuse_if_dropped(self, size: int) -> None:
        """Raise QuotaExceeded if a message of ``size`` bytes would be dropped by now.

        For a transaction, which is done as a whole: there was room when the message was routed.
        """
        if self._drops and self._has_no_room(size):
            limits = (
                (self._messages_name, self._max_messages),
                (self._bytes_name, self._max_bytes),
            )
            limit = " and ".join(f"{name} {most}" for name, most in limits if name)
            raise QuotaExceeded(
                f"address {quoted(self.name)} may hold {limit}, and a transaction sends more than"
                " there is room for: nothing of it is done; send fewer messages in one, or send"
                " them without a transaction, and its policy DROP drops what has no room"
            )

    def _has_no_room(self, size: int) -> bool:
        return self.messages >= self._max_messages or self.used + size > self._most_used

    def charge(self, size: int) -> None:
        """Charge a message that is to be stored; raises QuotaExceeded, NoRoomInStore."""
        total = self.total
        used = self.used + size
        if (
            used > self._most_used
            or self.messages >= self._max_messages
            or total.used + size > total.limit
        ):
            if self._drops:
                total.refuse_if_full(size)
            else:
                self.refuse_if_full(size)
        self.used = used
        self.messages += 1
        total.used += size

    def refuse_if_full(self, size: int) -> None:
        """Raise QuotaExceeded or NoRoomInStore if a message of ``size`` bytes is not admitted."""
        self.total.refuse_if_full(size)
        if self.messages >= self._max_messages:
            raise QuotaExceeded(
                f"address {quoted(self.name)} may hold {self._messages_name} {self._max_messages}"
                f" and holds {self.messages} messages: another is refused; consume messages, or"
                " raise the limit"
            )
        self.refuse_if_over(size, size)

    def refuse_if_over(self, size: int, missing: int) -> None:
        """Raise QuotaExceeded if a message of ``size`` bytes is not admitted.

        All but the ``missing`` bytes are counted as uploading.
        """
        if self.used + missing > self._most_used:
            coming = ""
            if self.uploading:
                coming = (
                    f", and {self.uploading} of messages not sent yet, or not read from a topic"
                )
            raise QuotaExceeded(
                f"address {quoted(self.name)} may hold {self._bytes_name} {self._max_bytes} and"
                f" holds {self.used} bytes{coming}: a message that counts for {size} is refused;"
                " consume messages, or raise the limit"
            )

    def uploaded(self, size: int) -> None:
        """Count ``size`` bytes more, or fewer, of bodies whose messages are not sent yet."""
        self.uploading += size
        self._most_used = self._max_bytes - self.uploading
        self.total.add(size)

    def add(self, size: int, messages: int = 1) -> None:
        """Charge messages whatever the limits are."""
        self.used += size
        self.messages += messages
        self.total.used += size

    def release(self, size: int, messages: int = 1) -> None:
        """Release the charge of messages that are gone."""
        self.messages -= messages
        if not self.messages:
            size = self.used  # an older node may have counted some differently: nothing is left
        self.used -= size
        self.total.used -= size
        if self._waiting:
            self._let_senders_go_on()

    # --- senders that wait for room

    def behind(self) -> FanOut | None:
        """Return what senders wait for before they send more; None if there is room."""
        return self if self.is_behind else None

    @property
    def is_behind(self) -> bool:
        """Whether senders wait for room."""
        return self.used >= self._blocks_at_bytes or self.messages >= self._blocks_at_messages

    @property
    def admits_more(self) -> bool:
        """Always, with BLOCK: what was sent already is taken."""
        return True

    @property
    def rest(self) -> Wait:
        """What steps yield to wait for room."""
        if not self._is_told:
            self._is_told = True
            LOGGER.warning(
                "%s; until there is room nothing is read from the connections that send there, of"
                " AMQP their links get no credit (logged once for each address)",
                self._describe(),
            )
        wait = Wait(self._leave, self._describe)
        self._waiting[wait] = None
        return wait

    def _describe(self) -> str:
        return (
            f"address {quoted(self.name)} is full (address-full-policy BLOCK): it holds"
            f" {self.messages} messages, {self.used} bytes; consume messages, or raise its limit"
        )

    def _leave(self, wait: Wait) -> None:
        self._waiting.pop(wait, None)

    def _let_senders_go_on(self) -> None:
        if not self.is_behind:
            waiting, self._waiting = self._waiting, {}
            for wait in waiting:
                wait()


def _unless_negative(limit: int) -> int:
    return UNLIMITED if limit < 0 else limit


class Charges:
    """What a unit has charged to addresses, until it is stored or undone."""

    __slots__ = ("_made",)

    def __init__(self) -> None:
        self._made: list[tuple[AddressUse, int]] = []

    def charge(self, use: AddressUse, size: int) -> None:
        """Charge a message; raises QuotaExceeded, NoRoomInStore."""
        use.charge(size)
        self._made.append((use, size))

    def add(self, use: AddressUse, size: int) -> None:
        """Charge a message that the broker itself moves, whatever the limits are."""
        use.add(size)
        self._made.append((use, size))

    def undo(self) -> None:
        """Release everything that was charged."""
        made, self._made = self._made, []
        for use, size in made:
            use.release(size)


def _least(*limits: tuple[str, int]) -> tuple[int, str]:
    """Return the lowest limit that is set, and its name."""
    return min(((value, name) for name, value in limits if value >= 0), default=(UNLIMITED, ""))
