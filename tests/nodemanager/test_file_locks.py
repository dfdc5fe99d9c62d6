"""The node manager of a shared directory."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orthia.database import PermanentStoreError
from orthia.nodemanager import (
    ActivateCallback,
    Interrupted,
    LockAcquisitionTimeout,
    LockLost,
    NotHeld,
    State,
)
from orthia.nodemanager import file_lock_manager as module
from orthia.nodemanager.events import Event, LeaseLost, StaleFailback
from orthia.nodemanager.file_lock_manager import FileLockNodeManager
from orthia.nodemanager.locks.server_lock import STATE_FILE, ServerLock, SharedState, decode, encode
from tests.support.waiting import wait_until

Make = Callable[..., FileLockNodeManager]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Give what makes started node managers of one directory, which are stopped at the end."""
    made: list[FileLockNodeManager] = []

    def manager(name: str, **given: object) -> FileLockNodeManager:
        one = FileLockNodeManager(tmp_path, name=name, **given)  # type: ignore[arg-type]
        made.append(one)
        one.start()
        return one

    yield manager
    for one in made:
        one.stop()


class Waiting:
    """A backup that waits on a thread of its own."""

    def __init__(self, manager: FileLockNodeManager) -> None:
        self.manager = manager
        self.activations: list[ActivateCallback] = []
        self.is_next = threading.Event()
        self._thread = threading.Thread(target=self._wait, daemon=True)
        self._thread.start()

    def _wait(self) -> None:
        try:
            self.manager.start_backup()
            self.is_next.set()
            self.activations.append(self.manager.await_live_node())
        except Interrupted:
            return

    def wait_next(self) -> "Waiting":
        """Wait until it is next in line."""
        assert self.is_next.wait(60)
        return self

    def wait_live(self) -> ActivateCallback:
        """Wait until it may be live."""
        wait_until(lambda: self.activations, what="the backup is live")
        return self.activations[0]

    def still_waits(self) -> bool:
        """Return whether it is not live after some looks."""
        self._thread.join(5 * module.POLL_SECONDS)
        return not self.activations


def test_a_backup_takes_over_from_a_live_node_that_is_gone(make: Make) -> None:
    """The lock that a process leaves behind is taken at once, under the next token."""
    live, backup = make("a"), make("b")
    live.start_live_node().activation_complete()
    assert (live.fencing_token, live.is_lease_valid(), live.may_deliver()) == (1, True, True)
    waiting = Waiting(backup).wait_next()
    assert waiting.still_waits()
    assert not backup.is_lease_valid()
    live.stop()
    waiting.wait_live().activation_complete()
    assert backup.fencing_token == 2
    assert backup.read_node_id() == live.read_node_id()
    status = backup.status()
    assert (status.state, status.live.holder_id) == (State.LIVE, backup.holder_id)
    backup.release_backup()
    assert not backup.is_backup_live()


def test_a_pause_keeps_the_backup_passive(make: Make) -> None:
    """After an orderly stop without failover nobody takes over until a live node is back."""
    live, backup = make("a"), make("b")
    live.start_live_node().activation_complete()
    waiting = Waiting(backup).wait_next()
    live.pause_live_server()
    assert waiting.still_waits()
    assert backup.status().state is State.PAUSED
    again = make("a")
    again.start_live_node().activation_complete()
    assert again.fencing_token == 2
    again.crash_live_server()
    waiting.wait_live()


def test_a_live_node_asks_for_its_place_and_gets_it(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The returning live node writes F and takes the lock when the backup lets it go."""
    monkeypatch.setattr(module, "ON_ITS_WAY_MS", 600_000)
    backup = make("b")
    first = make("a")
    first.start_live_node().activation_complete()
    waiting = Waiting(backup).wait_next()
    first.crash_live_server()
    waiting.wait_live().activation_complete()
    back = make("a")
    got: list[ActivateCallback] = []
    thread = threading.Thread(target=lambda: got.append(back.start_live_node()), daemon=True)
    thread.start()
    wait_until(backup.is_awaiting_failback, what="failback is asked for")
    third = Waiting(make("c"))
    backup.release_backup()
    third.wait_next()
    assert not got
    backup.crash_live_server()
    thread.join(120)
    assert [back.fencing_token] == [3]
    assert third.still_waits(), "a lock that a live node is about to take is left to it"


def test_a_live_node_that_still_waits_asks_again(make: Make) -> None:
    """A backup that put it off finds out that it is there still."""
    serving, returning = make("b"), make("a")
    serving.start_live_node().activation_complete()

    def come_back() -> None:
        with contextlib.suppress(Interrupted):
            returning.start_live_node()

    coming_back = threading.Thread(target=come_back, daemon=True)
    coming_back.start()
    for _ in range(2):
        wait_until(serving.is_awaiting_failback, what="failback is asked for")
        serving.ask_who_waits()
    wait_until(serving.is_awaiting_failback, what="failback is asked for again")
    returning.interrupt()
    coming_back.join(120)
    assert serving.status().state is State.LIVE


def test_the_log_of_a_failback_names_who_holds_which_lock(make: Make) -> None:
    """A node that handed over reads the other's name, and a backup lock has tokens of its own."""
    events: list[Event] = []
    backup, live = make("b", listener=events.append), make("a")
    live.start_live_node().activation_complete()
    waiting = Waiting(backup).wait_next()
    live.crash_live_server()
    waiting.wait_live().activation_complete()
    backup.release_backup()
    back = make("a")
    thread = threading.Thread(target=back.start_live_node, daemon=True)
    thread.start()
    wait_until(backup.is_awaiting_failback, what="failback is asked for")
    backup.crash_live_server()
    wait_until(lambda: back.status().live.is_held, what="the place is taken back")
    assert back.status().live.holder_id == back.holder_id
    thread.join(120)
    Waiting(make("c", listener=events.append)).wait_next()
    said = [event.message for event in events]
    assert [line for line in said if "backup" in line] == [
        "waiting to become backup node",
        "got backup lock under token 1",
        "backup server started, waiting for the live node to fail",
        f"backup announced; live is {live.holder_id}",
        "backup lock released, token 1",
        "waiting to become backup node",
        "got backup lock under token 2",
        "backup server started, waiting for the live node to fail",
        f"backup announced; live is {back.holder_id}",
    ]


def test_a_live_node_on_its_way_that_died_is_not_waited_for(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """State F and a lock that nobody takes: after a while the backup serves, and says why."""
    monkeypatch.setattr(module, "ON_ITS_WAY_MS", 300)
    events: list[Event] = []
    backup = make("b", listener=events.append)
    live = make("a")
    live.start_live_node()
    waiting = Waiting(backup).wait_next()
    live.stop()
    waiting.wait_live()
    assert any(isinstance(event, StaleFailback) for event in events)


def test_a_live_node_gives_up_in_time_and_withdraws(make: Make) -> None:
    """Beside a live node that does not hand over, the second ends, and leaves state L."""
    live = make("a")
    live.start_live_node().activation_complete()
    with pytest.raises(LockAcquisitionTimeout, match="journal-lock-acquisition-timeout 50 ms"):
        make("b", acquisition_timeout_ms=50).start_live_node()
    assert live.status().state is State.LIVE


def test_a_token_is_above_the_journals(make: Make, tmp_path: Path) -> None:
    """Even when server.lock was lost the next token is one the journal accepts."""
    live = make("a", newest_token=lambda: 41)
    live.start_live_node()
    assert live.fencing_token == 42
    live.stop()
    (tmp_path / STATE_FILE).unlink()
    again = make("a", newest_token=lambda: 42)
    again.start_live_node()
    assert again.fencing_token == 43


@pytest.mark.parametrize("name", ["serverlock.1", STATE_FILE])
def test_a_lock_whose_file_is_gone_is_lost(make: Make, tmp_path: Path, name: str) -> None:
    """A removed lock file locks nobody out, so the node is told that it is not live any more."""
    events: list[Event] = []
    live = make("a", listener=events.append)
    lost: list[str] = []
    live.register_lock_listener(lost.append)
    live.start_live_node().activation_complete()
    (tmp_path / name).unlink()
    wait_until(lambda: lost, what="the loss is told")
    assert name in lost[0]
    assert not live.is_lease_valid()
    wait_until(
        lambda: any(isinstance(event, LeaseLost) for event in events), what="the event is written"
    )
    with pytest.raises(LockLost):
        live.write_live_state(State.LIVE)
    with pytest.raises(NotHeld):
        _ = live.fencing_token


def test_a_waiting_node_can_be_interrupted(make: Make) -> None:
    """A stop ends every wait."""
    make("a").start_live_node()
    waiting = make("b")
    threading.Timer(0.1, waiting.interrupt).start()
    with pytest.raises(Interrupted):
        waiting.start_live_node()


def test_a_spoiled_state_is_named(tmp_path: Path) -> None:
    """What cannot be read is not guessed at."""
    files = ServerLock(tmp_path)
    files.update(state=State.LIVE)
    (tmp_path / STATE_FILE).write_bytes(b"{}\n00000000\n")
    with pytest.raises(PermanentStoreError, match=r"server\.lock cannot be read.* move it away"):
        files.read()
    files.close()


def test_a_pair_whose_state_was_lost_is_taken_for_paused(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As its own error advises: moved away, and no backup ends a pause that nobody can see now."""
    live = make("a", newest_token=lambda: 41)
    live.start_live_node().activation_complete()
    live.pause_live_server()
    live.stop()
    (tmp_path / STATE_FILE).rename(tmp_path / "server.lock.damaged")
    backup = make("b", newest_token=lambda: 42)
    assert backup.status().state is State.PAUSED
    assert "start the live node" in caplog.text
    waiting = Waiting(backup).wait_next()
    assert waiting.still_waits()
    again = make("a", newest_token=lambda: 42)
    again.start_live_node().activation_complete()
    assert again.status().state is State.LIVE
    again.crash_live_server()
    waiting.wait_live()


def test_a_backup_that_runs_heeds_the_state_that_replaced_a_lost_one(
    make: Make, tmp_path: Path
) -> None:
    """Not what the file says that it opened: that is nobody's any more, and never says paused."""
    live, backup = make("a", newest_token=lambda: 41), make("b", newest_token=lambda: 42)
    live.start_live_node().activation_complete()
    waiting = Waiting(backup).wait_next()
    lost: list[str] = []
    live.register_lock_listener(lost.append)
    (tmp_path / STATE_FILE).rename(tmp_path / "server.lock.away")
    wait_until(lambda: lost, what="the loss is told")
    live.stop()
    again = make("a", newest_token=lambda: 42)
    again.start_live_node().activation_complete()
    wait_until(again.is_backup_live, what="the backup is next in line again")
    again.pause_live_server()
    assert backup.status().state is State.PAUSED
    assert waiting.still_waits()
    third = make("a", newest_token=lambda: 43)
    third.start_live_node().activation_complete()
    third.crash_live_server()
    waiting.wait_live().activation_complete()
    assert third.status().state is State.LIVE
    assert backup.fencing_token == 45


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
