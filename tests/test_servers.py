"""What throw-away servers leave on the machine."""

from pathlib import Path

from tests.conftest import Servers
from tests.support.servers import PostgresqlServer


def segments() -> set[str]:
    """Return the ids of the shared memory of System V."""
    return {line.split()[1] for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]}


def test_a_killed_server_leaves_no_shared_memory(templates: Servers) -> None:
    """Linux has room for 4096 segments: after so many no PostgreSQL would start any more."""
    with PostgresqlServer(template=templates("postgresql")) as server:
        segment = (server.data / "postmaster.pid").read_text().splitlines()[6].split()[1]
        assert segment in segments()
        (told,) = server.execute("SHOW dynamic_shared_memory_type")
        assert told == ("mmap",), "which is in its data"
    assert not server.directory.exists()
    assert segment not in segments()
