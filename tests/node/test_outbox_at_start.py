"""What a node that becomes live says of the outbox."""

import threading
from collections.abc import Sequence

import pytest
from typing_extensions import override

from orthia.broker.node.service import in_words
from orthia.journal.engine.abc import Outbox, OutboxRow
from orthia.journal.engine.outbox import FirstLook, OutboxReader

SINCE_MS = 1_700_000_000_000


class Rows(Outbox):
    """An outbox with rows, of which more are there than are read at once."""

    def __init__(self, count: int, more: int) -> None:
        self.left = [OutboxRow(n, "q", None, b"", SINCE_MS + n) for n in range(count)]
        self.more = more

    @override
    def next_rows(self, limit: int, max_bytes: int) -> list[OutboxRow]:
        found, self.left = self.left[:limit], self.left[limit:]
        return found

    @override
    def waiting(self, limit: int) -> int:
        return self.more

    @override
    def start_over(self) -> None:
        pass

    @override
    def close(self) -> None:
        pass


def looked(rows: Outbox) -> FirstLook | None:
    """Return what the first look of a reader finds."""
    came = threading.Event()

    def done(_: Sequence[OutboxRow]) -> None:
        came.set()

    reader = OutboxReader(rows, post=lambda callback: callback(), longest_pause_seconds=0.01)
    assert reader.first_look(0.0) is None
    reader.start()
    reader.ask(3, 1_000, done)
    found = reader.first_look(60)
    reader.stop()
    reader.join(60)
    return found


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (Rows(0, 0), "; no row of the outbox waits"),
        (Rows(1, 0), "; 1 row of the outbox waits, the oldest since 2023-11-14 22:13:20 UTC"),
        (Rows(3, 40), "; 43 rows of the outbox wait, the oldest since 2023-11-14 22:13:20 UTC"),
    ],
)
def test_the_line_of_a_takeover_says_what_waited(rows: Outbox, said: str) -> None:
    """By the first look, whatever is sent meanwhile."""
    assert in_words(looked(rows)) == said


def test_a_line_of_a_takeover_does_not_wait_for_a_database_that_is_slow() -> None:
    """It says that it does not know."""
    assert in_words(None) == "; the outbox has not been read yet"
