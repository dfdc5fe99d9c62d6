# mypyc compiles this module.
"""How much a queue delivers before others have a turn, and while it must not deliver at all."""

from collections.abc import Callable
from typing import Final

from orthia.broker.core.limits.memory import Waiters
from orthia.broker.core.queue.gate import Deliverer
from orthia.broker.core.slices import GO_ON, Slices, Steps
from orthia.journal.journal import MessageJournal

AT_ONCE: Final = 128
"""How many messages are delivered or taken back before others have a turn."""


class Pace:
    """The turns in which one queue delivers; on the loop's thread.

    A delivery begins only if none of ``is_delivering``, ``held``, ``is_put_off`` and
    ``waits_for_journal`` says otherwise.
    """

    __slots__ = (
        "_has_more", "_in_turn", "_journal", "_journal_full", "_slices", "held", "is_delivering",
        "is_going_on", "waits_for_journal",
    )  # fmt: skip

    def __init__(
        self,
        slices: Slices,
        journal: MessageJournal | None = None,
        journal_full: Waiters[Deliverer] | None = None,
    ) -> None:
        """Without a ``journal`` what is delivered is not stored."""
        self._slices = slices
        self._journal = journal
        self._journal_full = journal_full
        self.waits_for_journal = False
        """Whether there was more to deliver than at once while the journal was full: each message
        that an ``auto`` consumer gets is a delete, behind which others wait to be stored."""
        self.is_delivering = False
        """Whether a delivery is under way: a consumer that acknowledges at once begins no other."""
        self.held = 0
        """How often many messages are on their way back: until all are, none is delivered, since
        those that come back first may not be the oldest."""
        self.is_going_on = False
        """Whether there was more to deliver than at once, and there is a task for that."""
        self._in_turn = False
        """Whether that task has its turn."""
        self._has_more = False

    def suspend(self) -> None:
        """Deliver nothing until ``unsuspend``, as often: what belongs together is on its way."""
        self.held += 1

    def unsuspend(self) -> None:
        """End a ``suspend``; the queue's ``dispatch`` delivers then."""
        self.held -= 1

    def is_put_off(self) -> bool:
        """Return whether the task that there is delivers later; ask it if ``is_going_on``.

        Otherwise a thousand consumers that are asked again would each have as much delivered as one
        may at once.
        """
        if self._in_turn:
            return False
        self._has_more = True
        return True

    def is_blocked(self, queue: Deliverer) -> bool:
        """Return whether no delivery of a queue may begin at this moment."""
        return bool(
            self.is_delivering
            or self.held
            or (self.is_going_on and self.is_put_off())
            or (self.waits_for_journal and self.has_no_room(queue))
        )

    def has_no_room(self, queue: Deliverer) -> bool:
        """Return whether the journal is full; the queue is resumed when it is not."""
        self.waits_for_journal = self._journal is not None and self._journal.is_full
        if self.waits_for_journal and self._journal_full is not None:
            self._journal_full.note(queue)
        return self.waits_for_journal

    def go_on_later(self, dispatch: Callable[[], object]) -> None:
        """Deliver the rest in later turns of the loop, by ``dispatch``.

        It is not kept: a subscriber that has left would be a cycle.
        """
        self._has_more = True
        if not self.is_going_on:
            self.is_going_on = True
            self._slices.later(self._going_on(dispatch))

    def _going_on(self, dispatch: Callable[[], object]) -> Steps:
        try:
            while self._has_more:
                self._has_more = False
                self._in_turn = True
                try:
                    dispatch()
                finally:
                    self._in_turn = False
                yield GO_ON
        finally:
            self.is_going_on = False
