"""A thread that reads for the loop: what it does while the store does not answer."""

from collections.abc import Callable, Iterator
from threading import Event

import pytest

import orthia.journal.engine.read_thread
from orthia.config.errors import OrthiaError
from orthia.database import StoreUnavailable
from orthia.journal.engine.read_thread import ReadThread
from tests.journal.support import Loop


def test_the_log_says_that_a_store_does_not_answer_its_reads(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Consumers wait meanwhile, and a node whose writes go well tells of nothing else."""
    monkeypatch.setattr(orthia.journal.engine.read_thread, "pause_seconds", lambda _: 0.0)
    loop = Loop()
    times = iter(range(100))
    answers: Iterator[str] = iter(["away"] * 9 + ["here"])
    found: list[str | OrthiaError] = []

    def read() -> str:
        if (answer := next(answers)) == "away":
            raise StoreUnavailable("the database is not reachable")
        return answer

    thread = ReadThread(
        "reader",
        still_valid=lambda: True,
        post=loop.post,
        what="messages of queues",
        clock=lambda: float(next(times)),
    )
    thread.start()
    thread.ask(read, found.append)
    loop.run_until(lambda: found, "the answer")
    thread.close()
    assert thread.join(120)
    assert found == ["here"]
    said = [one.getMessage() for one in caplog.records if "has failed for" in one.getMessage()]
    away = "the database is not reachable; retrying"
    assert said == [
        f"reading messages of queues has failed for 2 s: {away}",
        f"reading messages of queues has failed for 6 s: {away}",
    ]


@pytest.mark.parametrize(
    ("valid", "reads"),
    [
        ([True, False, True, False, False], 5),  # it came back, and was lost for good later
        ([False, True, False, False], 4),
        ([False, False], 2),
    ],
)
def test_a_lease_that_lapses_for_a_moment_gives_no_read_up(
    valid: list[bool], reads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A renewal may be answered late; a client would be cut off by a node that is live."""
    monkeypatch.setattr(orthia.journal.engine.read_thread, "pause_seconds", lambda _: 0.0)
    loop = Loop()
    states = iter(valid)
    asked: list[int] = []
    found: list[str | OrthiaError] = []

    def read() -> str:
        asked.append(1)
        raise StoreUnavailable("the database is not reachable")

    thread = ReadThread(
        "reader", still_valid=lambda: next(states), post=loop.post, what="messages of queues"
    )
    thread.start()
    thread.ask(read, found.append)
    loop.run_until(lambda: found, "the answer")
    thread.close()
    assert thread.join(120)
    assert isinstance(found[0], StoreUnavailable)
    assert len(asked) == reads


def test_an_answer_that_is_there_when_the_thread_is_closed_comes_no_more() -> None:
    """Whoever asked has ended by then: the loop runs what was posted to it all the same."""
    loop, is_posted = Loop(), Event()
    found: list[str | OrthiaError] = []

    def post(callback: Callable[[], None]) -> None:
        loop.post(callback)
        is_posted.set()

    thread = ReadThread("reader", still_valid=lambda: True, post=post, what="messages of queues")
    thread.start()
    thread.ask(lambda: "here", found.append)
    assert is_posted.wait(120)
    thread.close()
    assert loop.run_posted() == 1
    assert found == []
    assert thread.join(60)
