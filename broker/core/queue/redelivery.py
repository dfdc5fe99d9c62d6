# mypyc compiles this module.
"""When a message is delivered again after a failed delivery, and how failures are counted.

The delay is Artemis': ``redelivery-delay``, times ``redelivery-delay-multiplier`` for each attempt
after the first, made longer or shorter by chance up to ``redelivery-collision-avoidance-factor`` of
it, and at most ``max-redelivery-delay``, which is ten times ``redelivery-delay`` if it is not set.

The count and the delay are stored in a unit of their own after the attempt; a message whose
delivery never failed has none. If a node dies before that commit, its successor knows of one
attempt less; if the store is full, every node does. A client that waits for it is told after that
commit.
"""

import math
from collections.abc import Callable, Iterable
from functools import partial

from orthia.broker.core.api import Done, MessageReference
from orthia.config.addresses import ResolvedAddressSettings
from orthia.config.errors import OrthiaError
from orthia.journal.errors import JournalClosed
from orthia.journal.journal import MessageJournal
from orthia.journal.model.moments import MessageTime, MomentKind
from orthia.journal.model.unit import Unit

_TIMES_DELAY = 10
_LONGEST_MS = 2**53


def redelivery_delay_ms(
    settings: ResolvedAddressSettings, attempts: int, chance: Callable[[], float]
) -> int:
    """Return after how many milliseconds a message is delivered again that had so many attempts.

    ``chance`` returns a number from 0 up to 1.
    """
    first = settings.redelivery_delay
    if not first:
        return 0
    try:
        delay = first * math.pow(settings.redelivery_delay_multiplier, attempts - 1)
    except OverflowError:
        delay = float(_LONGEST_MS)
    factor = settings.redelivery_collision_avoidance_factor
    if factor:
        delay *= 1 + (2 * chance() - 1) * factor
    longest = settings.max_redelivery_delay
    if longest < 0:
        longest = _TIMES_DELAY * first
    return int(min(delay, longest, _LONGEST_MS))


def keep_attempts(
    journal: MessageJournal,
    queue_id_for: Callable[[int], int],
    references: Iterable[tuple[MessageReference, int]],
    now_ms: int,
    done: Done | None,
) -> None:
    """Store how often delivery of a queue's messages failed, and when they are delivered again.

    ``queue_id_for`` returns what those of a priority are stored under. ``done`` follows once that
    is stored, and all that was given to the journal before it.
    """
    unit = Unit(done)
    unit.refused = partial(_not_counted, done)
    for reference, delay_ms in references:
        if reference.location is None:
            continue  # it is in memory only, as is its count
        queue_id = queue_id_for(reference.record.priority)
        expires_ms = reference.record.expires_ms
        kind = MomentKind.EXPIRES if expires_ms else MomentKind.NEVER
        retry_ms = now_ms + delay_ms if delay_ms else 0
        unit.count_attempts(
            MessageTime(*(reference.seq, queue_id, kind, expires_ms, reference.attempts, retry_ms))
        )
        reference.location = reference.location._replace(is_timed=True)
    if unit.attempted or done is not None:
        try:
            journal.append_unit(unit)
        except JournalClosed:
            return  # this node is ending: the next one knows of one attempt less


def _not_counted(done: Done | None, reason: OrthiaError) -> None:
    """Go on without: the journal has told of its reason."""
    del reason
    if done is not None:
        done()
