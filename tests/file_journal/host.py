"""A machine whose processes come and go, with one page cache, until it loses power."""

import random
from pathlib import Path

import pytest

from orthia.config.store_settings import JournalType
from orthia.database import StoreError
from orthia.journal.errors import JournalIOError
from tests.file_journal.device import NEVER, Device, Killed, PowerFailure
from tests.file_journal.lives import Client, Life
from tests.file_journal.steps import observed


class Host:
    """One node after the other works in the same directories."""

    def __init__(
        self,
        base: Path,
        monkeypatch: pytest.MonkeyPatch,
        seed: int,
        journal_type: JournalType,
        forgets: str = "",
        *,
        closes: bool = True,
    ) -> None:
        """Leave out a sync made for ``forgets``; no node stops in order unless it ``closes``."""
        self._closes = closes
        self._base = base
        self._monkeypatch = monkeypatch
        self._chance = random.Random(seed)
        self._journal_type = journal_type
        self._client = Client()
        self._lives = 0
        self._forgets = forgets
        self.met = False
        """Whether a node got as far as to where it was to be killed, or to meet an error."""
        self._root = base / "0"
        self._root.mkdir()
        self.device = Device(self._root, fails_at=NEVER, forgets=self._forgets)

    def work(
        self,
        steps: list[str],
        *,
        dies_at: int = 0,
        errs_at: int = 0,
        fails_at: int = NEVER,
    ) -> bool:
        """Open the journal, take the steps and stop in good order; return whether that came to be.

        The node is killed at a change, or meets one error and then does what a node does, or the
        power fails.
        """
        self._lives += 1
        life = Life(
            self._root / "srv" / "orthia",
            self._client,
            self._chance,
            token=100 * self._lives,
            journal_type=self._journal_type,
        )
        self.device.process(self._chance, dies_at=dies_at, errs_at=errs_at, fails_at=fails_at)
        with observed(self.device, self._monkeypatch):
            try:
                life.work(steps)
                if self._closes:
                    life.close()
            except (Killed, PowerFailure):
                return False
            except (JournalIOError, StoreError):
                if not errs_at:
                    raise
                return False
            finally:
                life.abandon()
                self.met |= 0 < (dies_at or errs_at) <= len(self.device.made)
        return True

    def lose_power(self) -> None:
        """Go on with what the disk has kept."""
        device = self.device
        self._lives += 1
        self._root = self._base / str(self._lives)
        self._root.mkdir()
        device.fail(self._root, self._chance)
        device.close()
        self.device = Device(self._root, fails_at=NEVER, forgets=self._forgets)

    def check(self) -> None:
        """Start with what is there, go on, stop in good order, and start again."""
        self.work(["add", "reopen"])
        self.device.close()
