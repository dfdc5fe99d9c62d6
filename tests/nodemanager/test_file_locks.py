"""The node manager of a shared directory."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orthia.database import PermanentStoreError
from orthia.nodemanager import LockAcquisitionTimeout, LockLost, NotHeld, State
from orthia.nodemanager import file_lock_manager as module
from orthia.nodemanager.events import BackupAnnounced, Event, LeaseLost, StaleFailback
from orthia.nodemanager.file_lock_manager import FileLockNodeManager
from orthia.nodemanager.locks.server_lock import STATE_FILE, ServerLock, SharedState, decode, encode
from tests.nodemanager.nodes import Node
from tests.support.waiting import wait_until

Make = Callable[..., Node[FileLockNodeManager]]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Give what makes nodes of one directory."""
    made: list[Node[FileLockNodeManager]] = []

    def node(name: str, **given: Any) -> Node[FileLockNodeManager]:
        events: list[Event] = []
        manager = FileLockNodeManager(tmp_path, name=name, listener=events.append, **given)
        made.append(Node(manager, events))
        return made[-1]

    yield node
    for one in made:
        one.close()


def still_waits(becomes_live: "Future[int]") -> bool:
    """Return whether a backup is not live after some looks."""
    return not wait([becomes_live], 5 * module.POLL_SECONDS).done


def test_a_lock_that_a_live_node_is_about_to_take_is_left_to_it(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It wrote F, and has its place back before any backup; the log names who had which lock."""
    monkeypatch.setattr(module, "ON_ITS_WAY_MS", 600_000)
    backup, first = make("b"), make("a")
    first.go_live()
    taken = backup.wait_next()
    backup.wait_for(BackupAnnounced)
    first.manager.crash_live_server()
    taken.result(120)
    back, third = make("a"), make("c")
    coming_back = back.soon(back.go_live)
    wait_until(backup.manager.is_awaiting_failback, what="failback is asked for")
    backup.manager.release_backup()
    waiting = third.wait_next()
    third.wait_for(BackupAnnounced)
    assert not coming_back.done()
    backup.manager.crash_live_server()
    assert coming_back.result(120) == 3
    assert still_waits(waiting)
    said = [event.message for node in (backup, third) for event in node.events]
    assert [line for line in said if "backup" in line] == [
        "waiting to become backup node",
        "got backup lock under token 1",
        "backup server started, waiting for the live node to fail",
        f"backup announced; live is {first.manager.holder_id}",
        "backup lock released, token 1",
        "waiting to become backup node",
        "got backup lock under token 2",
        "backup server started, waiting for the live node to fail",
        f"backup announced; live is {backup.manager.holder_id}",
    ]


def test_a_live_node_on_its_way_that_died_is_not_waited_for(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """State F and a lock that nobody takes: after a while the backup serves, and says why."""
    monkeypatch.setattr(module, "ON_ITS_WAY_MS", 300)
    backup, live = make("b"), make("a")
    live.manager.start()
    live.manager.start_live_node()
    waiting = backup.wait_next()
    live.vanish()
    waiting.result(120)
    assert backup.said(StaleFailback)


def test_a_live_node_gives_up_in_time_and_withdraws(make: Make) -> None:
    """Beside a live node that does not hand over, the second ends, and leaves state L."""
    live = make("a")
    live.go_live()
    with pytest.raises(LockAcquisitionTimeout, match="journal-lock-acquisition-timeout 50 ms"):
        make("b", acquisition_timeout_ms=50).go_live()
    assert live.manager.status().state is State.LIVE


@pytest.mark.parametrize("name", ["serverlock.1", STATE_FILE])
def test_a_lock_whose_file_is_gone_is_lost(make: Make, tmp_path: Path, name: str) -> None:
    """A removed lock file locks nobody out, so the node is told that it is not live any more."""
    live = make("a")
    live.go_live()
    (tmp_path / name).unlink()
    wait_until(lambda: live.lost, what="the loss is told")
    assert name in live.lost[0]
    live.wait_for(LeaseLost)
    with pytest.raises(LockLost):
        live.manager.write_live_state(State.LIVE)
    with pytest.raises(NotHeld):
        _ = live.manager.fencing_token


def test_a_pair_whose_state_was_lost_is_taken_for_paused(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As its own error advises: moved away, and no backup ends a pause that nobody can see now."""
    live = make("a", newest_token=lambda: 41)
    assert live.go_live() == 42
    live.manager.pause_live_server()
    live.vanish()
    (tmp_path / STATE_FILE).rename(tmp_path / "server.lock.damaged")
    backup = make("b", newest_token=lambda: 42)
    waiting = backup.wait_next()
    assert backup.manager.status().state is State.PAUSED
    assert "start the live node" in caplog.text
    assert still_waits(waiting)
    again = make("a", newest_token=lambda: 42)
    assert again.go_live() == 43
    again.manager.crash_live_server()
    waiting.result(120)


def test_a_backup_that_runs_heeds_the_state_that_replaced_a_lost_one(
    make: Make, tmp_path: Path
) -> None:
    """Not what the file says that it opened: that is nobody's any more, and never says paused."""
    live, backup = make("a", newest_token=lambda: 41), make("b", newest_token=lambda: 42)
    live.go_live()
    waiting = backup.wait_next()
    (tmp_path / STATE_FILE).rename(tmp_path / "server.lock.away")
    wait_until(lambda: live.lost, what="the loss is told")
    live.vanish()
    again = make("a", newest_token=lambda: 42)
    again.go_live()
    wait_until(again.manager.is_backup_live, what="the backup is next in line again")
    again.manager.pause_live_server()
    assert backup.manager.status().state is State.PAUSED
    assert still_waits(waiting)
    third = make("a", newest_token=lambda: 43)
    third.go_live()
    third.manager.crash_live_server()
    assert waiting.result(120) == 45
    assert third.manager.status().state is State.LIVE


def test_a_spoiled_state_is_named(tmp_path: Path) -> None:
    """What cannot be read is not guessed at."""
    files = ServerLock(tmp_path)
    files.update(state=State.LIVE)
    (tmp_path / STATE_FILE).write_bytes(b"{}\n00000000\n")
    with pytest.raises(PermanentStoreError, match=r"server\.lock cannot be read.* move it away"):
        files.read()
    files.close()


def test_the_state_is_a_line_a_person_can_read(tmp_path: Path) -> None:
    """server.lock says state, token and holders in words."""
    files = ServerLock(tmp_path)
    files.update(state=State.PAUSED, node_id="11-22")
    assert (tmp_path / STATE_FILE).read_text().startswith('{"state": "P", "node_id": "11-22"')
    files.close()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.sampled_from(State), st.none() | st.text(max_size=40), st.integers(0, 2**62), st.text())
def test_a_state_comes_back(state: State, node_id: str | None, token: int, holder: str) -> None:
    """Whatever is written is read, and a flipped byte is noticed."""
    shared = SharedState(state, node_id, token, holder[:100], None)
    data = encode(shared)
    assert decode(data) == shared
    spoiled = bytearray(data)
    spoiled[3] ^= 1
    with pytest.raises(ValueError):
        decode(bytes(spoiled))
