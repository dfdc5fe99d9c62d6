"""``--follow`` and ``--watch``: commands that go on until Ctrl-C, as real processes."""

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from orthia.config.store_settings import DatabaseStoreSettings
from orthia.config.urls import DatabaseUrl
from orthia.database import Database
from orthia.nodemanager.locks.lease import Lock
from orthia.nodemanager.locks.sql_store import SqlNodeManagerStore
from tests.cli.conftest import PROGRAM, Run
from tests.cli.test_failover_log import entry, insert
from tests.support.waiting import wait_until


@contextmanager
def following(output: Path, *arguments: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Run ``orthia`` with its output in a file; the process ends with the block."""
    with output.open("wb") as file:
        process = subprocess.Popen(
            [*PROGRAM, *arguments],
            stdout=file,
            # Whoever runs the tests in the background ignores Ctrl-C, and children inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def interrupted(process: "subprocess.Popen[bytes]") -> int:
    """Press Ctrl-C and return the exit code."""
    process.send_signal(signal.SIGINT)
    return process.wait(60)


def test_follow_shows_each_event_once_as_it_comes(sqlite_url: str, tmp_path: Path) -> None:
    """New events appear while the command runs, and Ctrl-C is a good end."""
    insert(sqlite_url, entry("a", 1, 0))
    output = tmp_path / "out"
    with following(output, "failover-log", "--url", sqlite_url, "--follow") as process:
        wait_until(lambda: "a says 1" in output.read_text(), what="the first event is shown")
        insert(sqlite_url, entry("b", 1, -60))
        wait_until(lambda: "b says 1" in output.read_text(), what="the second event is shown")
        assert interrupted(process) == 0
    assert [line[-8:] for line in output.read_text().splitlines()] == ["a says 1", "b says 1"]


def test_watch_shows_a_change_of_the_holder(sqlite_url: str, tmp_path: Path) -> None:
    """A watcher sees the lock being taken; each look is one line of JSON."""
    settings = DatabaseStoreSettings(DatabaseUrl.parse(sqlite_url))
    output = tmp_path / "out"
    arguments = ("status", "--url", sqlite_url, "--watch", "--json", "--interval", "0.1")
    with following(output, *arguments) as process:
        wait_until(lambda: '"held": false' in output.read_text(), what="a look is shown")
        database = Database.from_settings(settings)
        store = SqlNodeManagerStore(database, settings, database.engine)
        store.try_acquire(Lock.LIVE, "node-a", 600_000)
        database.dispose()
        wait_until(lambda: '"node-a"' in output.read_text(), what="the holder is shown")
        assert interrupted(process) == 0
    for line in output.read_text().splitlines():
        assert json.loads(line)["live"]["holder_id"] in {None, "node-a"}


@pytest.mark.parametrize("amid", ["_read", "_show"])
def test_ctrl_c_ends_a_watch_well_whatever_it_does_at_the_moment(
    run: Run, sqlite_url: str, monkeypatch: pytest.MonkeyPatch, amid: str
) -> None:
    """While it looks, and while it shows what it saw."""

    def interrupted_amid(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"orthia.broker.cli.status.{amid}", interrupted_amid)
    assert run("status", "--url", sqlite_url, "--watch").exit_code == 0
