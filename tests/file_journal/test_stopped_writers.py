"""A writer stops before any of its system calls, a successor works, and the writer goes on."""

import itertools
import logging
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orthia.journal import Fenced
from orthia.journal.errors import JournalIOError
from orthia.journal.file.fence import FENCE_FILE
from tests.file_journal.steps import CALLS, observed
from tests.file_journal.support import Client, DirectJournal, file_settings, rolling

pytestmark = pytest.mark.extended

PATIENCE_SECONDS = 120
NEVER = 10**9
SYNCS = {"fsync", "fdatasync"}
SOME = 8
"""Of the many moments at which both have the same file in hand one in so many is tried."""

Calls = list[tuple[str, ...]]
Run = Callable[..., tuple[Calls, Calls]]


def names(arguments: tuple[Any, ...]) -> set[str]:
    """Return the names of the files that a system call is about."""
    paths = {Path(one) for one in arguments if isinstance(one, str | Path)}
    if isinstance(arguments[0], int):
        paths.add(Path(f"/proc/self/fd/{arguments[0]}").readlink())
    return {path.name for path in paths}


class Actor:
    """A journal that works on a thread of its own, one turn at a time."""

    def __init__(self, work: Callable[[], None], stops_before: int) -> None:
        self._work = work
        self._stops_before = stops_before
        self._may_go = threading.Semaphore(0)
        self._stands = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.counts = False
        self.calls: Calls = []
        """What was called, and on which files."""
        self.is_done = False
        self.refused: Exception | None = None
        self.failure: BaseException | None = None

    def turn(self) -> None:
        """Let it work until it stops or ends."""
        if self.is_done:
            return
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._may_go.release()
        assert self._stands.acquire(timeout=PATIENCE_SECONDS)

    def is_here(self) -> bool:
        """Return whether this is its thread."""
        return threading.current_thread() is self._thread

    def step(self, name: str, arguments: tuple[Any, ...]) -> None:
        """Stop, if this is the call to stop before."""
        if not self.counts:
            return
        self.calls.append((name, *sorted(names(arguments))))
        if len(self.calls) == self._stops_before:
            self._stands.release()
            assert self._may_go.acquire(timeout=PATIENCE_SECONDS)

    def _run(self) -> None:
        try:
            self._work()
        except (Fenced, JournalIOError) as error:
            self.refused = error
        except BaseException as error:  # noqa: BLE001 - raised by the test, which sees it
            self.failure = error
        finally:
            self.is_done = True
            self._stands.release()


class Actors:
    """Those whose calls are counted."""

    def __init__(self, *actors: Actor) -> None:
        self._actors = actors

    def call(self, name: str, real: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Have the one that calls stop first if it should; sync nothing: nothing crashes here."""
        for actor in self._actors:
            if actor.is_here():
                actor.step(name, arguments)
        return None if name in SYNCS else real(*arguments)


class Life:
    """One journal and the client that it serves."""

    def __init__(self, directory: Path, token: int, client: Client) -> None:
        self._settings = file_settings(directory, journal_min_files=3)
        self._token = token
        self.client = client
        self.journal: DirectJournal | None = None
        self.on_open: Callable[[], None] = lambda: None

    def work(self) -> None:
        """Open the journal, fill and reclaim and compact, and close it."""
        self.journal = journal = DirectJournal(self._settings, self._token)
        self.on_open()
        rolling(journal, self.client)
        journal.keeper.keep()
        self.client.add(journal, 3)
        journal.close()
        self.journal = None


def interleave(
    directory: Path, monkeypatch: pytest.MonkeyPatch, old_stops: int, new_stops: int
) -> tuple[Actor, Actor]:
    """Stop the old writer, let a successor begin, wake the old in its middle, and see it end."""
    clients = Client(), Client()
    lives = [Life(directory, token, client) for token, client in enumerate(clients, 1)]
    old, new = Actor(lives[0].work, old_stops), Actor(lives[1].work, new_stops)
    # One that stops while it is opening is waited for, and not run over.
    lives[0].on_open = lambda: setattr(old, "counts", True)
    new.counts = True
    with observed(Actors(old, new), monkeypatch):
        for actor in (old, new, old, new):
            actor.turn()
        for actor, life in zip((old, new), lives, strict=True):
            if actor.failure is not None:
                raise actor.failure
            if life.journal is not None:
                life.journal.abandon()
        third = DirectJournal(file_settings(directory), token=3)
        found = third.live()
        third.close()
    for client in clients:
        client.check([seq for seq in found if seq in client.known])
    assert set(found) <= clients[0].known | clients[1].known
    return old, new


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Give what runs both once, in a directory of its own; nothing may be in the successor's way.

    It returns the calls of either.
    """
    count = itertools.count()

    def interleaved(old_stops: int, new_stops: int = NEVER) -> tuple[Calls, Calls]:
        directory = tmp_path / str(next(count))
        old, new = interleave(directory, monkeypatch, old_stops, new_stops)
        shutil.rmtree(directory)
        assert new.refused is None
        return old.calls, new.calls

    logging.disable()
    yield interleaved
    logging.disable(logging.NOTSET)


def test_a_writer_that_wakes_up_harms_nothing(run: Run) -> None:
    """Stopped before any step, in the filling of a file too, it spoils nothing confirmed."""
    alone, _ = run(NEVER)
    assert {name for name, *_ in alone} == {*CALLS} - {"mkdir"}
    meetings = []
    for number, (name, *about) in enumerate(alone, 1):
        if name not in SYNCS:  # which do nothing here
            _, calls = run(number)
            if FENCE_FILE not in about:
                same = [at for at, one in enumerate(calls, 1) if {*about} & {*one}]
                meetings += [(number, at + 1) for at in same]
    assert len(meetings) > 50
    for old_stops, new_stops in meetings[::SOME]:
        run(old_stops, new_stops)
