"""Who ends what keeps the fence waiting: for how long it tries, and what it says of it."""

from collections.abc import Iterator

import pytest

from orthia.database import Blocker, StoreUnavailable
from orthia.nodemanager import fencing
from orthia.nodemanager.events import Event, FenceBlocked, FenceUnblocked
from orthia.nodemanager.fencing import Unblocker
from orthia.nodemanager.threads import REAL_THREADS
from tests.support.waiting import wait_until

TOKEN = 7
FROZEN = Blocker(11, "client a", None)
FOREIGN = Blocker(12, "client b", "not allowed")


class Fence:
    """A store whose sessions in the way are scripted, and a node that waits for it."""

    def __init__(self) -> None:
        self.answers: list[list[Blocker] | StoreUnavailable] = []
        self.asked = 0
        self.is_held = True
        self.events: list[Event] = []
        self.unblocker = Unblocker(
            self._end_blockers,
            token=TOKEN,
            is_held=lambda: self.is_held,
            report=self.events.append,
            threads=REAL_THREADS,
        )

    def _end_blockers(self) -> list[Blocker]:
        self.asked += 1
        answer = self.answers.pop(0) if self.answers else []
        if isinstance(answer, StoreUnavailable):
            raise answer
        return answer

    @property
    def is_over(self) -> bool:
        """Whether nothing is ended any more."""
        return not self.unblocker._thread.is_alive()


@pytest.fixture
def fence(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fence]:
    """Give a fence that is looked at again and again."""
    monkeypatch.setattr(fencing, "PATIENCE_SECONDS", 0.001)
    made = Fence()
    yield made
    made.unblocker.stop()
    wait_until(lambda: made.is_over, what="the thread ends")


def test_whatever_is_in_the_way_is_ended_and_told(fence: Fence) -> None:
    """However often it is looked for: what stays in the way is told once."""
    fence.answers = [[], [FOREIGN], [FOREIGN, FROZEN], [FOREIGN]]
    fence.unblocker.start()
    wait_until(lambda: fence.asked > 5, what="all has been looked at")
    assert fence.events == [
        FenceBlocked(TOKEN, "session 12 (client b)", "not allowed"),
        FenceUnblocked(TOKEN, "11 (client a)"),
    ]


def test_a_database_that_does_not_say_who_is_in_the_way_is_asked_again(fence: Fence) -> None:
    """A connection that is lost for a moment leaves nobody waiting for ever."""
    fence.answers = [StoreUnavailable("lost"), StoreUnavailable("lost"), [FROZEN]]
    fence.unblocker.start()
    wait_until(lambda: fence.asked > 3, what="it was asked again")
    assert fence.events == [
        FenceBlocked(TOKEN, "a session of the database", "lost"),
        FenceUnblocked(TOKEN, "11 (client a)"),
    ]


def test_nothing_is_ended_once_the_lock_is_lost_or_the_fence_is_passed(fence: Fence) -> None:
    """The sessions are another node's then, or nobody's concern."""
    fence.unblocker.start()
    wait_until(lambda: fence.asked > 1, what="it looks")
    fence.is_held = False
    wait_until(lambda: fence.is_over, what="it looks no more")
    passed = Fence()
    passed.unblocker.stop()
    passed.unblocker.start()
    wait_until(lambda: passed.is_over, what="it looks no more")
    assert passed.asked == 0
