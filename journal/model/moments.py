# mypyc compiles this module.
"""When messages leave their queues by themselves, and how often their delivery failed.

A message that is to be delivered later has a moment when it is due, one that expires has the moment
when it does. The store keeps an index of these moments, and of those messages alone: MESSAGE_TIMES,
or the file journal's memory. It says nothing that the messages do not say, so that it can be made
of them, but for the attempts.
"""

from enum import IntEnum
from typing import NamedTuple


class MomentKind(IntEnum):
    """Why a message leaves its queue by itself."""

    NEVER = 0
    """It does not: only its failed deliveries are kept."""
    DUE = 1
    """It was sent to be delivered later."""
    EXPIRES = 2


class Moment(NamedTuple):
    """When a message leaves its queue by itself."""

    kind: MomentKind
    at_ms: int
    """Milliseconds since 1970 UTC, by the store's clock."""


class MessageTime(NamedTuple):
    """What is kept of one message: a row of MESSAGE_TIMES, in the place of an older one."""

    seq: int
    queue_id: int
    kind: int
    """A ``MomentKind``."""
    at_ms: int
    attempts: int = 0
    """How often its delivery failed."""
    retry_ms: int = 0
    """When it may be delivered again, milliseconds since 1970 UTC; 0 at once."""


class MomentPlace(NamedTuple):
    """A place among the moments of one kind, in their order."""

    at_ms: int
    seq: int


FIRST_MOMENT = MomentPlace(-(2**63), 0)
"""Before all of them."""
