"""Order for each sender: after a refused unit nothing further of its sender is stored.

A client whose message is refused sends it again, with all that it sent after it. If the store had
taken a later one meanwhile, because there was room again or because only the first was at fault,
it would come before an earlier one. So what is stored of a sender is a prefix of what it sent.

| a unit of a sender of which one was refused | what happens to it                           |
|---------------------------------------------|----------------------------------------------|
| stores a message                            | refused, without being tried                 |
| only deletes                                | stored: it takes no room, and nothing's place |

That is so of a client that learns of a refusal by its connection's end. One that is *answered
singly* learns the outcome of each unit, and sends just those again: nothing else of it is refused.

A unit that was refused itself, and is still among others, says so in its ``refusal``.

The mark is in the sender, which lives as long as its session and its last unit. Only the writer's
thread sets and reads it.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby

from orthia.config.errors import OrthiaError
from orthia.journal.engine.batch import Batch, batch_of
from orthia.journal.errors import SentBehindRefused
from orthia.journal.model.unit import Appended, AppendedMessage, Unit


def mark_refused(item: Appended, reason: OrthiaError) -> None:
    """Mark the sender of a unit refused for ``reason``, so that its later units are refused too."""
    sender = item.sender
    if sender is not None and sender.refusal is None and not sender.is_answered_singly:
        sender.refusal = SentBehindRefused(str(reason))


def refusal_before(item: Appended) -> OrthiaError | None:
    """Return why a unit is refused, itself or because of an earlier one; None if it is not."""
    if isinstance(item, Unit) and item.refusal is not None:
        return item.refusal
    sender = item.sender
    if sender is None or sender.refusal is None:
        return None
    return sender.refusal if isinstance(item, AppendedMessage) or item.rows else None


def storable(batch: Batch) -> Batch:
    """Return ``batch`` without the units that are refused; itself if there are none."""
    left = [item for item in batch.items if refusal_before(item) is None]
    return batch if len(left) == len(batch.items) else batch_of(left)


def in_turn(items: Iterable[Appended]) -> Iterator[tuple[OrthiaError | None, list[Appended]]]:
    """Yield runs of ``items``, in order, each with the reason why it is refused, or None."""
    for reason, stretch in groupby(items, refusal_before):
        yield reason, list(stretch)
