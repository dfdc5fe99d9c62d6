# mypyc compiles this module.
"""Taking a message out of its queue for good, in one unit of the journal."""

import logging
from collections.abc import Callable, Sequence

from orthia.broker.core.api import MessageReference
from orthia.broker.core.limits.memory import size_in_store
from orthia.broker.core.queue.levels import ids_for
from orthia.broker.core.queue.queue import Queue
from orthia.broker.core.sending.placing import Placed
from orthia.broker.core.sending.publisher import Publisher
from orthia.config.errors import OrthiaError
from orthia.journal.errors import HeldElsewhere, StoreFull
from orthia.journal.model.records import RemovalReason
from orthia.journal.model.unit import Unit

LOGGER = logging.getLogger("orthia.broker")


class Relocation:
    """Moves messages; on the loop's thread."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher

    def relocate(
        self,
        queue: Queue,
        reference: MessageReference,
        reason: RemovalReason,
        placed: Sequence[Placed],
        refused: Callable[[], None],
    ) -> None:
        """Take a message out of ``queue`` for ``reason``, into others if there are any.

        ``placed`` says what each of those gets of it.
        """
        unit = Unit()
        if reference.location is not None:
            unit.delete(reference.location, reason)
        for queues, record in placed:
            unit.add_message(ids_for(queues, record), self._publisher.encoded(record))
        to = [(target, size_in_store(record)) for queues, record in placed for target in queues]

        def not_stored(error: OrthiaError) -> None:
            queue.undecided -= 1
            self._publisher.unpin(pinned)
            for target, size in to:
                target.use.release(size)
            if not isinstance(error, StoreFull | HeldElsewhere):  # told once, and not each time
                LOGGER.error(
                    "message %d is %s, and cannot be moved to %s; it stays in its queue: %s",
                    reference.seq,
                    reason.value,
                    ", ".join(f"queue {target.name}" for target, _ in to) or "nowhere",
                    error,
                )
            refused()

        def stored() -> None:
            queue.undecided -= 1
            self._publisher.unpin(pinned)

        large = reference.record.large
        pinned = [] if large is None else [large]
        self._publisher.append(unit, placed, stored, not_stored)
        self._publisher.pin(pinned)
        queue.undecided += 1
        for target, size in to:
            target.use.add(size)  # whatever its limits are: nothing stored is lost for them
