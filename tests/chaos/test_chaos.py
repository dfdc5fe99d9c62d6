"""A short run of faults in each world; ``make chaos`` is the long one."""

from pathlib import Path

import pytest

from tests.chaos import report
from tests.chaos.faults import FAULTS, kinds
from tests.chaos.history import read
from tests.chaos.run import Result, Run, choose, named
from tests.chaos.worlds import WORLDS, Site
from tests.conftest import EVERY_DBMS
from tests.support.servers import ServerProcess, SqliteServer, StoreServer

pytestmark = pytest.mark.extended

ON_SERVERS = ["kill the live node", "lose the host in a batch", "kill the database"]
ON_SQLITE = ["kill the live node", "freeze for more than the lease", "no memory"]
ON_FILES = ["kill the live node", "freeze in a batch, then kill"]
SEED = 1


def site_of(world: str, server: StoreServer | None, directory: Path) -> Site:
    """Return a world on a server that runs."""
    return Site(WORLDS[world], server, directory, None)


def run_and_check(site: Site, faults: list[str], directory: Path) -> None:
    """Run the faults; nothing may be lost, and the report must tell of all of it."""
    directory.mkdir()
    result = Run(site, directory, SEED)(named(faults))
    assert result.told == []
    assert [fault.kind for fault in result.faults] == faults
    assert result.figures["ends of nodes"] >= 1
    assert result.figures["messages confirmed"] <= result.figures["deliveries"]
    assert result.figures["accepted by AMQP"] > 0
    if "sql" in site.has:
        assert result.figures["sent by SQL"] > 0
        assert result.figures["rolled back"] > 0
    if {"sql", "server"} <= site.has:
        processed = result.figures["processed with orthia_ack"]
        assert processed == result.figures["counted with orthia_ack"]
        assert processed == result.figures["sent by SQL"]
    assert sum(1 for _ in read(directory / "history.jsonl")) > result.figures["deliveries"]
    result.write(directory / "result.json")
    assert Result.read(directory / "result.json") == result
    page = report.write([result], directory).read_text()
    assert "No violation." in page
    assert all(fault in page for fault in faults)


def test_nothing_is_lost_on_a_server(private_server: ServerProcess, tmp_path: Path) -> None:
    """Nodes killed, cut off and left without a database lose nothing, and never write together."""
    _, dbms, _ = private_server.url("x").split(":", 2)
    run_and_check(site_of(dbms, private_server, tmp_path), ON_SERVERS, tmp_path / "run")


def test_nothing_is_lost_on_sqlite(tmp_path: Path) -> None:
    """The same on the embedded database, with frozen nodes and no memory."""
    run_and_check(site_of("sqlite", SqliteServer(tmp_path), tmp_path), ON_SQLITE, tmp_path / "run")


def test_nothing_is_lost_on_files(tmp_path: Path) -> None:
    """The same on files, with a node that stands still amid a batch until it is killed."""
    run_and_check(site_of("files", None, tmp_path), ON_FILES, tmp_path / "run")


@pytest.mark.parametrize("world", ["files", "synchronous-standby", *EVERY_DBMS])
def test_a_seed_chooses_the_same_faults_each_time(world: str, tmp_path: Path) -> None:
    """A long run has every kind of fault that can be made in its world."""
    site = site_of(world, None, tmp_path)
    chosen = choose(site, 100, seed=3)
    assert chosen == choose(site, 100, seed=3)
    assert chosen != choose(site, 100, seed=4)
    assert set(chosen) == set(kinds(site.has))


def test_every_fault_is_possible_somewhere() -> None:
    """Each fault can be made in a world there is."""
    possible = {
        fault.name
        for world in WORLDS.values()
        for has in (world.has, world.has | {"disk"})
        for fault in kinds(has)
    }
    assert possible == set(FAULTS)
