"""Order for each sender: behind a unit that is refused nothing of its sender is stored.

A client whose message is refused is told so, sends it again, and with it what it had sent behind
it. Had the store taken any of that meanwhile, because there was room again or because it was
another message's fault, it would be there before what was sent before it. So what is stored of a
sender is what it sent up to a place, in order, with nothing from behind that place.

| a unit of a sender of which one was refused | what becomes of it                           |
|---------------------------------------------|----------------------------------------------|
| stores a message                            | refused, without being tried                 |
| only deletes                                | stored: it takes no room, and nothing's place |

The mark is in the sender, which ends with its session and its last unit. The writer's thread alone
sets it and looks at it.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby

from orthia.config.errors import OrthiaError
from orthia.journal.engine.batch import Batch, batch_of
from orthia.journal.errors import SentBehindRefused
from orthia.journal.model.unit import Appended, AppendedMessage


def mark_refused(item: Appended, reason: OrthiaError) -> None:
    """Note that a unit is refused for ``reason``, for all its sender sent behind it."""
    if item.sender is not None and item.sender.refusal is None:
        item.sender.refusal = SentBehindRefused(str(reason))


def refusal_before(item: Appended) -> OrthiaError | None:
    """Return why a unit is refused for what was refused before it; None if it is not."""
    sender = item.sender
    if sender is None or sender.refusal is None:
        return None
    return sender.refusal if isinstance(item, AppendedMessage) or item.rows else None


def storable(batch: Batch) -> Batch:
    """Return what of ``batch`` is not refused for what was refused before: itself, if all of it."""
    left = [item for item in batch.items if refusal_before(item) is None]
    return batch if len(left) == len(batch.items) else batch_of(left)


def in_turn(items: Iterable[Appended]) -> Iterator[tuple[OrthiaError | None, list[Appended]]]:
    """Yield stretches of ``items``, in order, each with the reason why it is refused, or None."""
    for reason, stretch in groupby(items, refusal_before):
        yield reason, list(stretch)
