"""Reading queues back: windows and counts, on a thread of its own, in the order asked for."""

from collections.abc import Callable
from functools import partial

from orthia.config.errors import OrthiaError
from orthia.journal.engine.abc import Windows
from orthia.journal.engine.read_thread import ReadThread
from orthia.journal.model.moments import MomentKind, MomentPlace
from orthia.journal.model.windows import QueueCounts, QueuePlace, Reached, Window


def within(sizes: list[tuple[int, int]], max_messages: int, max_bytes: int) -> int:
    """Return how many of the first messages fit; the first one always does."""
    total = 0
    for index, (_, size) in enumerate(sizes[:max_messages]):
        total += size
        if total > max_bytes and index:
            return index
    return min(len(sizes), max_messages)


class Reader(ReadThread):
    """The thread that answers windows and counts."""

    def __init__(
        self,
        windows: Windows,
        *,
        still_valid: Callable[[], bool],
        post: Callable[[Callable[[], None]], None],
    ) -> None:
        super().__init__(
            "journal-reader",
            still_valid=still_valid,
            post=post,
            ended=windows.close,
            what="messages of queues",
        )
        self._windows = windows

    def window(
        self,
        queue_id: int,
        after_seq: int,
        up_to_seq: int,
        max_messages: int,
        max_bytes: int,
        done: Callable[[Window | OrthiaError], None],
    ) -> None:
        """Have a window read."""
        query = self._windows.window
        self.ask(partial(query, queue_id, after_seq, up_to_seq, max_messages, max_bytes), done)

    def count(
        self,
        after: QueuePlace,
        up_to_seq: int,
        limit: int,
        done: Callable[[QueueCounts | OrthiaError], None],
    ) -> None:
        """Have a stretch of all queues counted."""
        self.ask(partial(self._windows.count, after, up_to_seq, limit), done)

    def reached(
        self,
        kind: MomentKind,
        after: MomentPlace,
        up_to_ms: int,
        limit: int,
        max_bytes: int,
        done: Callable[[Reached | OrthiaError], None],
    ) -> None:
        """Have messages read whose moment has come."""
        self.ask(partial(self._windows.reached, kind, after, up_to_ms, limit, max_bytes), done)
