"""A short run of faults on each DBMS; ``make chaos`` is the long one."""

from pathlib import Path

import pytest

from tests.chaos import report
from tests.chaos.faults import kinds
from tests.chaos.history import read
from tests.chaos.run import Result, Run, choose, named
from tests.conftest import EVERY_DBMS
from tests.support.servers import ServerProcess, SqliteServer, StoreServer

ON_SERVERS = ["kill the live node", "black hole for more than the lease", "kill the database"]
ON_SQLITE = ["kill the live node", "freeze for more than the lease", "disk full", "no memory"]
SEED = 1


def run_and_check(server: StoreServer, dbms: str, faults: list[str], directory: Path) -> None:
    """Run the faults; nothing may be lost, and the report must tell of all of it."""
    (directory / dbms).mkdir()
    result = Run(server, dbms, directory / dbms, SEED)(named(faults))
    assert result.told == []
    assert [fault.kind for fault in result.faults] == faults
    assert result.figures["takeovers"] >= 1
    assert result.figures["messages confirmed"] <= result.figures["deliveries"]
    assert sum(1 for _ in read(directory / dbms / "history.jsonl")) > result.figures["deliveries"]
    result.write(directory / "result.json")
    assert Result.read(directory / "result.json") == result
    page = report.write([result], directory).read_text()
    assert "No violation." in page
    assert all(fault in page for fault in faults)


def test_nothing_is_lost_on_a_server(private_server: ServerProcess, tmp_path: Path) -> None:
    """Nodes killed, cut off and left without a database lose nothing, and never write together."""
    _, dbms, _ = private_server.url("x").split(":", 2)
    run_and_check(private_server, dbms, ON_SERVERS, tmp_path)


def test_nothing_is_lost_on_sqlite(tmp_path: Path) -> None:
    """The same on the embedded database, with frozen nodes, a full disk and no memory."""
    run_and_check(SqliteServer(tmp_path), "sqlite", ON_SQLITE, tmp_path)


@pytest.mark.parametrize("dbms", EVERY_DBMS)
def test_a_seed_chooses_the_same_faults_each_time(dbms: str) -> None:
    """A long run has every kind of fault that can be made with its DBMS."""
    chosen = choose(dbms, 100, seed=3)
    assert chosen == choose(dbms, 100, seed=3)
    assert chosen != choose(dbms, 100, seed=4)
    assert set(chosen) == set(kinds(dbms))
