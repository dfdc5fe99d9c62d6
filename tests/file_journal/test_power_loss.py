"""The power fails at any moment: whoever was told that something is stored finds it."""

import itertools
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orthia.config.store_settings import JournalType
from orthia.journal.errors import JournalError
from tests.file_journal.device import Device, PowerFailure
from tests.file_journal.lives import Client, Life
from tests.file_journal.steps import observed

pytestmark = [pytest.mark.extended, pytest.mark.usefixtures("quietly")]

STEPS = [*["add"] * 3, "delete", "transact", "keep", "compact", "reopen", "upload", "consume"]
TYPICAL = ["add", "add", "transact", "add", "keep", "delete", "keep", *["add"] * 5, "transact"]
TYPICAL += ["delete", "keep", *["add"] * 4, "delete", "add", "keep", "transact", "compact", "add"]
WITH_BODIES = ["upload", "add", "upload", "consume", "upload", "reopen", "upload", "consume"]
NEEDED = {
    "a directory that was made": "sync_directory<make_directory<open_files",
    "a line of the fence": "_put<write",
    "a file that was prepared": "create<_create",
    "the name of a file that was prepared": "sync_directory<_give_name",
    "a batch": "_sync",
    "a seal": "seal<_seal",
    "a seal at a takeover": "seal<_seal_at_end",
    "a compacted file": "seal<finish",
    "the header of a file that is used again": "rewrite_header<use_again",
    "the name of a compacted file": "sync_directory<publish",
    "what a compaction replaces": "create<write_control",
    "that a compaction is published": "sync_directory<publish_outputs",
    "a large body": "finish",
    "the name of a large body": "sync_directory<finish",
    "the directory of large bodies": "sync_directory<make_directory<__init__",
}
"""What is lost if the sync of something is left out: who asks for it."""
OF_BODIES = {what for what in NEEDED if "large bod" in what}


class Machine:
    """Works until the power fails, and starts again with what is left."""

    def __init__(
        self,
        base: Path,
        monkeypatch: pytest.MonkeyPatch,
        seed: int,
        journal_type: JournalType = JournalType.NIO,
    ) -> None:
        self._journal_type = journal_type
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
        return Life(
            directory,
            self._client,
            self._chance,
            token=100 * number,
            journal_type=self._journal_type,
        )

    def check(self) -> None:
        """Start with what is left, go on, stop in good order, and start again."""
        life = self._life(next(self._lives))
        life.work(["add", "reopen"])
        life.abandon()


@pytest.mark.parametrize("journal_type", JournalType)
@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.integers(0, 2**32),
    st.lists(st.sampled_from(STEPS), min_size=4, max_size=25),
    st.integers(1, 300),
    st.lists(st.sampled_from(STEPS), max_size=10),
    st.integers(1, 120),
)
def test_whatever_was_confirmed_survives(
    journal_type: JournalType,
    base: Callable[[], Path],
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    steps: list[str],
    fails_at: int,
    more_steps: list[str],
    fails_again_at: int,
) -> None:
    """After one failure or two the journal is as confirmed, or as it was about to be."""
    machine = Machine(base(), monkeypatch, seed, journal_type)
    machine.work(steps, fails_at)
    machine.work(more_steps, fails_again_at)
    machine.check()


@pytest.mark.parametrize(
    ("what", "journal_type"),
    [
        *((what, JournalType.NIO) for what in NEEDED),
        ("a batch", JournalType.MAPPED),
        ("a batch", JournalType.ASYNCIO),
    ],
)
def test_each_sync_is_needed(
    base: Callable[[], Path],
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    journal_type: JournalType,
) -> None:
    """Left out, something that was confirmed is lost: these tests would notice."""
    syncs: set[str] = set()
    steps = WITH_BODIES if what in OF_BODIES else TYPICAL
    for attempt in range(2_000):
        machine = Machine(base(), monkeypatch, attempt, journal_type)
        try:
            machine.work(steps, 1 + 7 * attempt % 180, NEEDED[what])
            machine.work(["add", "transact", "keep"], 1 + attempt % 70, NEEDED[what])
            machine.check()
        except (AssertionError, JournalError):
            return
        syncs.update(machine.syncs)
    pytest.fail(f"nothing was lost; syncs are asked for by {sorted(syncs)}")
