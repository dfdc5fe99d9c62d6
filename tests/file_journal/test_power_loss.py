"""The power fails at any moment: whoever was told that something is stored finds it."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orthia.config.store_settings import JournalType
from orthia.journal.errors import JournalError
from tests.file_journal.host import Host

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
    host = Host(base(), monkeypatch, seed, journal_type, closes=False)
    host.work(steps, fails_at=fails_at)
    host.lose_power()
    host.work(more_steps, fails_at=fails_again_at)
    host.lose_power()
    host.check()


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
    steps = WITH_BODIES if what in OF_BODIES else TYPICAL
    for attempt in range(2_000):
        host = Host(base(), monkeypatch, attempt, journal_type, NEEDED[what], closes=False)
        try:
            host.work(steps, fails_at=1 + 7 * attempt % 180)
            host.lose_power()
            host.work(["add", "transact", "keep"], fails_at=1 + attempt % 70)
            host.lose_power()
            host.check()
        except (AssertionError, JournalError):
            return
    pytest.fail(f"nothing was lost; syncs are asked for by {sorted(set(host.device.syncs))}")
