# mypyc compiles this module.
"""The bindings of new queues, on their way to the store."""

from collections.abc import Callable
from dataclasses import replace

from orthia.broker.core.api import Done
from orthia.broker.core.errors import NotLive
from orthia.journal.errors import JournalClosed
from orthia.journal.journal import MessageJournal
from orthia.journal.model.codec import QueueBinding


class NewBindings:
    """Stores them; on the loop's thread."""

    def __init__(self, journal: MessageJournal, next_id: Callable[[], int]) -> None:
        """``next_id`` numbers queues, as it does messages."""
        self._journal = journal
        self._next_id = next_id
        self._unstored: dict[int, list[Done]] = {}
        """Those that are not stored yet, in order, and who waits for which of them."""

    def bind(self, unnumbered: QueueBinding) -> QueueBinding:
        """Store the binding of a new queue, and return it with its id; raises NotLive."""
        binding = replace(unnumbered, queue_id=self._next_id())
        queue_id = binding.queue_id
        try:
            self._journal.add_binding(binding, lambda: self._stored(queue_id))
        except JournalClosed as error:
            raise NotLive(str(error)) from None
        self._unstored[queue_id] = []
        return binding

    def _stored(self, queue_id: int) -> None:
        for done in self._unstored.pop(queue_id, ()):
            done()

    def when_bound(self, done: Done) -> None:
        """Call ``done`` once the bindings of all queues are stored.

        Which may be later than what was given to the journal behind them: see its ``retry``.
        """
        if not self._unstored:
            done()
        else:
            self._unstored[next(reversed(self._unstored))].append(done)
