# mypyc compiles this module.
"""Which deliveries count as failed attempts when the connection of their client ends.

A client works through its whole prefetch in the order it came. If one message makes it crash each
time, that message must reach the dead-letter address in the end, and those that only waited behind
it must not. So of each subscription two messages count, if the socket took any byte of them:

- the oldest that is not acknowledged: the client acknowledges after its work;
- the newest that an open transaction acknowledged: the client does so before its work.

A NACK always counts. So does a refused COMMIT, for all it would have acknowledged, unless it was
refused for want of room, or for what was sent before it. A client that unsubscribes or disconnects
in good order did not fail: nothing counts, as in Artemis.
"""

from collections.abc import Collection, Iterable

from orthia.broker.core.api import Answer, MessageReference, SubscriptionHandle, TransactionWork


def attempted(
    subscription: SubscriptionHandle,
    oldest: MessageReference | None,
    transactions: Collection[TransactionWork],
    taken: int,
) -> list[MessageReference]:
    """Return the messages of ``subscription`` whose delivery counts as a failed attempt.

    ``oldest`` is the first delivered of those it did not acknowledge; ``taken`` is how many of the
    bytes written for the client its socket took.
    """
    counted = _of(subscription, (one for one in transactions if one.is_refused))
    if not counted:
        acknowledged = _of(subscription, transactions)
        newest = max(acknowledged, key=lambda one: one.written_at, default=None)
        counted = [one for one in (oldest, newest) if one is not None]
    return [one for one in counted if one.written_at < taken]


def _of(
    subscription: SubscriptionHandle, transactions: Iterable[TransactionWork]
) -> list[MessageReference]:
    return [
        one
        for work in transactions
        for answer in Answer
        for one in work.answered(answer).get(subscription, ())
    ]
