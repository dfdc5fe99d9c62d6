"""A node ends, and what it wrote is in memory only: whoever comes next relies on nothing of that.

A kill or an error ends the first node at any of its changes. The second finds in the page cache
what the first has written, serves it, and confirms more. Then the power fails.
"""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from orthia.config.store_settings import JournalType
from orthia.journal.errors import JournalError
from tests.file_journal.device import NEVER
from tests.file_journal.host import Host

pytestmark = [pytest.mark.extended, pytest.mark.usefixtures("quietly")]
COMPACTING = [*["add"] * 3, "delete", "compact", "add", "keep", "transact", "delete", "keep"] * 2
FIRST = ["add", "add", "transact", "add", "delete", "add", "reopen", "upload", "add", "add"]
SECOND = ["add", "transact"]


@pytest.fixture
def host(base: Callable[[], Path], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Host]:
    """Give what makes machines, of which the last alone is kept."""

    def next_host(
        seed: int, journal_type: JournalType = JournalType.NIO, forgets: str = ""
    ) -> Host:
        return Host(base(), monkeypatch, seed, journal_type, forgets)

    return next_host


@pytest.mark.parametrize("forgets", ["_seal_at_end", "seal<_seal_at_end", "_sync_seal"])
def test_each_sync_of_a_takeover_is_needed(host: Callable[..., Host], forgets: str) -> None:
    """Left out, something that was confirmed is lost: these tests would notice."""
    moments = (NEVER, *range(7, 13))  # the second seals what it has found there
    for seed, fails_at, change in itertools.product(range(20), moments, range(38, 47)):
        machine = host(100 * seed + change, forgets=forgets)
        try:
            machine.work(["add", "add"], **{"dies_at" if seed % 2 else "errs_at": change})
            machine.work(["add"], fails_at=fails_at)
            machine.lose_power()
            machine.check()
        except (AssertionError, JournalError):
            return
    pytest.fail("nothing was lost")


@pytest.mark.parametrize("journal_type", JournalType)
@pytest.mark.parametrize("ends", ["dies_at", "errs_at"])
def test_what_a_successor_has_served_survives_a_power_failure(
    host: Callable[..., Host], ends: str, journal_type: JournalType
) -> None:
    """Whatever the first node left unsynced, and whenever the power fails in the second."""
    for change in itertools.count(1):
        machine = host(change, journal_type)
        machine.work(FIRST, **{ends: change})
        # Sometimes amid the takeover, sometimes once more was confirmed.
        machine.work(SECOND, fails_at=NEVER if change % 3 else 1 + change % 41)
        machine.lose_power()
        machine.check()
        if not machine.met:
            break
    assert change > 100


def test_a_directory_that_a_dead_node_made_is_synced(host: Callable[..., Host]) -> None:
    """Killed between making a directory and syncing its name, the next node sees to that."""
    for change in range(1, 12):
        for seed in range(8):
            machine = host(seed)
            machine.work(["add"], dies_at=change)
            machine.work(["add"])
            machine.lose_power()
            machine.check()


@pytest.mark.parametrize("loses_power", [False, True])
@pytest.mark.parametrize("ends", ["dies_at", "errs_at"])
def test_an_end_amid_compaction_costs_nothing(
    host: Callable[..., Host], ends: str, loses_power: bool
) -> None:
    """Whatever call is the last or fails, those that go on have what was confirmed.

    The first of these may be killed as well, as it opens the journal.
    """
    for change in itertools.count(1):
        machine = host(change)
        machine.work(COMPACTING, **{ends: change})
        has_met = machine.met
        machine.work(SECOND, dies_at=0 if change % 2 else 1 + change % 41)
        if loses_power:
            machine.lose_power()
        machine.check()
        if not has_met:
            break
    assert change > 100
