"""``server.lock`` on a disk that loses power: a pair that was paused stays so, and tokens grow."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from orthia.nodemanager.locks.lease import State
from orthia.nodemanager.locks.server_lock import ServerLock, SharedState
from tests.file_journal.device import Device, PowerFailure
from tests.file_journal.steps import observed

HOLDER = "live@a.host.of.some.name:12345:4f1c6a1e-6a52-4a7f-9f51-1f8f3e2b9a10/2000/20000"
NODE_ID = "c04a398b-94ea-46fe-95b6-0f6b1d4f2a11"


class Told:
    """What the node that ran before the power failed was told."""

    def __init__(self) -> None:
        self.state = SharedState()

    def work(self, lock: ServerLock) -> None:
        """Be live twice, with a failback between, and stop without failover."""
        self._note(lock.read)
        self._note(lambda: lock.update(node_id=NODE_ID))
        for _ in range(2):
            self._note(lambda: lock.update(state=State.FAILING_BACK))
            lock.next_token(HOLDER, above=0)
            self._note(lock.read)
            self._note(lambda: lock.update(state=State.LIVE))
        self._note(lambda: lock.update(state=State.PAUSED))

    def _note(self, step: Callable[[], SharedState | None]) -> None:
        told = step()
        assert told is not None
        self.state = told


def lose_power(
    base: Path, monkeypatch: pytest.MonkeyPatch, seed: int, *, forgets: str = ""
) -> tuple[SharedState, SharedState]:
    """Return what a node was told before the power failed, and what the next one reads."""
    before, after = base / "before", base / "after"
    before.mkdir(parents=True)
    after.mkdir()
    told = Told()
    device = Device(before, fails_at=1 + seed % 24, forgets=forgets)
    with observed(device, monkeypatch):
        lock = None
        try:
            lock = ServerLock(before)
            told.work(lock)
        except PowerFailure:
            pass
        finally:
            if lock is not None:
                lock.close()
    device.fail(after, Random(seed))
    device.close()
    lock = ServerLock(after)
    try:
        return told.state, lock.read()
    finally:
        lock.close()


def is_kept(told: SharedState, found: SharedState) -> bool:
    """Return whether nothing that was told is forgotten; what was being done may be there."""
    paused = told.state is not State.PAUSED or found.state is State.PAUSED
    return paused and found.token >= told.token and found.node_id in (told.node_id, NODE_ID)


def test_what_the_nodes_agreed_on_survives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was synced last, and whenever the power fails."""
    for seed in range(400):
        told, found = lose_power(tmp_path / str(seed), monkeypatch, seed)
        assert is_kept(told, found), f"seed {seed}: {told}, {found}"


@pytest.mark.parametrize("asked_by", ["_write", "__init__"])
def test_each_of_its_syncs_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked_by: str
) -> None:
    """That of the state, and that of its name: without it a pause, or a token, is forgotten."""
    assert not all(
        is_kept(*lose_power(tmp_path / str(seed), monkeypatch, seed, forgets=asked_by))
        for seed in range(400)
    )
