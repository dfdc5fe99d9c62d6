"""The power fails at any moment: whoever was told that something is stored finds it."""

import itertools
import logging
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from config.settings import RoutingType
from journal import MessageLocation, QueueBinding, Unit
from journal.errors import JournalError
from tests.file_journal.device import Device, PowerFailure
from tests.file_journal.steps import observed
from tests.file_journal.support import BODY, DirectJournal, file_settings
from tests.journal.support import QUEUE, payload

State = frozenset[int]
"""Seqs of messages, and ids of bindings as negative numbers."""


@dataclass
class Client:
    """Knows what it was told, and in which states a journal may be that was cut off."""

    told: State = frozenset()
    possible: set[State] = field(default_factory=lambda: {frozenset()})

    def does(self, call: Callable[[], object], *changes: State) -> None:
        """Make a call that makes changes in this order, each whole or not at all.

        A change names what it adds and what it deletes: what is there goes, what is not comes.
        """
        state = self.told
        self.possible = {state, *(state := state ^ change for change in changes)}
        call()
        self.finds(state)

    def finds(self, state: State) -> None:
        """Look what there is."""
        assert state in self.possible
        self.told, self.possible = state, {state}


class Life:
    """A journal, its client, and what both may do."""

    def __init__(self, directory: Path, client: Client, chance: random.Random, token: int) -> None:
        self._settings = file_settings(directory)
        self._client = client
        self._chance = chance
        self._token = token
        self.journal: DirectJournal | None = None

    def open(self) -> DirectJournal:
        """Open the journal: it is what was told, and perhaps what was being done."""
        self.journal = None
        self.journal = journal = DirectJournal(self._settings, self._token)
        bound = {-one.queue_id for one in journal.opened.bound if isinstance(one, QueueBinding)}
        self._client.finds(frozenset(journal.live()) | bound)
        return journal

    def work(self, steps: list[str]) -> None:
        """Open the journal and take the steps."""
        journal = self.open()
        for step in steps:
            if step == "reopen":
                journal.close()
                self._token += 1
                journal = self.open()
            else:
                getattr(self, step)(journal)

    def abandon(self) -> None:
        """Let go of the files, as a machine without power does."""
        if self.journal is not None:
            self.journal.abandon()

    def add(self, journal: DirectJournal) -> None:
        """Send some messages: each counts for itself, in their order."""
        texts = [self._text() for _ in range(self._chance.randrange(1, 8))]
        seqs = range(journal.seq + 1, journal.seq + len(texts) + 1)
        self._client.does(lambda: journal.add(*texts), *(frozenset([seq]) for seq in seqs))

    def delete(self, journal: DirectJournal) -> None:
        """Acknowledge most messages, all at once."""
        seqs = [seq for seq in self._messages() if self._chance.random() < 0.7]
        if seqs:
            self._client.does(lambda: journal.delete(*seqs), frozenset(seqs))

    def transact(self, journal: DirectJournal) -> None:
        """Acknowledge a message and send two at once; perhaps for a queue that is new."""
        unit, first = Unit(), journal.seq + 1
        change = {first, first + 1}
        for _ in range(2):
            unit.add_message([QUEUE], payload(self._text()))
        for seq in self._messages()[:1]:
            unit.delete(MessageLocation(seq))
            change.add(seq)
        if self._chance.random() < 0.6:
            unit.add_binding(QueueBinding(first, "queue", "address", RoutingType.ANYCAST))
            change.add(-first)
        bound = sorted(-number for number in self._client.told if number < 0)
        if bound and self._chance.random() < 0.5:
            unit.delete_binding(bound[0])
            change.add(-bound[0])
        self._client.does(lambda: journal.unit(unit), frozenset(change))

    def keep(self, journal: DirectJournal) -> None:
        """Prepare files, use them again, and compact when it is time."""
        journal.keeper.keep()

    def compact(self, journal: DirectJournal) -> None:
        """Compact whether it is time or not."""
        for files in journal.opened.instances:
            files.compact()

    def _messages(self) -> list[int]:
        return sorted(number for number in self._client.told if number > 0)

    def _text(self) -> str:
        return BODY[: self._chance.randrange(len(BODY))]


STEPS = ("add", "add", "add", "delete", "transact", "keep", "compact", "reopen")
TYPICAL = ["add", "add", "transact", "add", "keep", "delete", "keep", *["add"] * 5, "transact"]
TYPICAL += ["delete", "keep", *["add"] * 4, "delete", "add", "keep", "transact", "compact", "add"]
NEEDED = {
    "a directory that was made": "sync_directory<make_directory<open_files",
    "a line of the fence": "_put<write",
    "a file that was prepared": "create<_create",
    "the name of a file that was prepared": "sync_directory<_create",
    "a batch": "_sync",
    "a seal": "seal<_seal",
    "a seal at a takeover": "seal<seal_files",
    "a compacted file": "seal<finish",
    "the header of a file that is used again": "rewrite_header<_use_again",
    "the name of a compacted file": "sync_directory<_publish",
    "what a compaction replaces": "create<write_control",
}
"""What is lost if the sync of something is left out: who asks for it."""


class Machine:
    """Works until the power fails, and starts again with what is left."""

    def __init__(self, base: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
        self._base = base
        self._monkeypatch = monkeypatch
        self._chance = random.Random(seed)
        self._client = Client()
        self._lives = itertools.count(1)
        self._root = base / "0"
        self._root.mkdir()
        self.syncs: list[str] = []

    def work(self, steps: list[str], fails_at: int, forgets: str = "") -> bool:
        """Open the journal and take the steps; return whether the power failed before the end."""
        number = next(self._lives)
        life = self._life(number)
        device = Device(self._root, fails_at=fails_at, forgets=forgets, syncs=self.syncs)
        failed = True
        with observed(device, self._monkeypatch):
            try:
                life.work(steps)
                failed = False
            except PowerFailure:
                pass
            finally:
                life.abandon()
        self._root = self._base / str(number)
        self._root.mkdir()
        device.fail(self._root, self._chance)
        device.close()
        return failed

    def _life(self, number: int) -> Life:
        directory = self._root / "srv" / "orthia"
        return Life(directory, self._client, self._chance, token=100 * number)

    def check(self) -> None:
        """Start with what is left, go on, stop in good order, and start again."""
        life = self._life(next(self._lives))
        life.work(["add", "reopen"])
        life.abandon()


@pytest.fixture(autouse=True)
def _quietly() -> Iterator[None]:
    """Say nothing of writes that were dropped."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def base(tmp_path: Path) -> Callable[[], Path]:
    """Give what makes directories, of which the last alone is kept."""
    count = itertools.count()

    def next_directory() -> Path:
        shutil.rmtree(tmp_path)
        directory = tmp_path / str(next(count))
        directory.mkdir(parents=True)
        return directory

    return next_directory


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.integers(0, 2**32),
    st.lists(st.sampled_from(STEPS), min_size=4, max_size=25),
    st.integers(1, 300),
    st.lists(st.sampled_from(STEPS), max_size=10),
    st.integers(1, 120),
)
def test_whatever_was_confirmed_survives(
    base: Callable[[], Path],
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    steps: list[str],
    fails_at: int,
    more_steps: list[str],
    fails_again_at: int,
) -> None:
    """After one failure or two the journal is as confirmed, or as it was about to be."""
    machine = Machine(base(), monkeypatch, seed)
    machine.work(steps, fails_at)
    machine.work(more_steps, fails_again_at)
    machine.check()


@pytest.mark.parametrize("what", NEEDED)
def test_each_sync_is_needed(
    base: Callable[[], Path], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Left out, something that was confirmed is lost: these tests would notice."""
    syncs: set[str] = set()
    for attempt in range(2_000):
        machine = Machine(base(), monkeypatch, seed=attempt)
        try:
            machine.work(TYPICAL, 1 + 7 * attempt % 180, NEEDED[what])
            machine.work(["add", "transact", "keep"], 1 + attempt % 70, NEEDED[what])
            machine.check()
        except (AssertionError, JournalError):
            return
        syncs.update(machine.syncs)
    pytest.fail(f"nothing was lost; syncs are asked for by {sorted(syncs)}")
