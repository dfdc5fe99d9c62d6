"""The worlds that chaos knows: where messages and locks are, and what can be struck there."""

import ctypes
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.chaos.replication import ReplicatedServer
from tests.support.servers import (
    SERVER_PROCESSES,
    PostgresqlServer,
    ServerProcess,
    SqliteServer,
    StoreServer,
)

SMALL_DISK_BYTES = 1536 * 1024**2
"""More than the history of an hour takes; it is memory, all of it when the disk is filled."""
_POSTGRESQL_OPTIONS = ["-c", "max_wal_size=128MB", "-c", "min_wal_size=32MB"]
_PAGE_BYTES = 4_096
_CLONE_NEWNS = 0x00020000
_MS_REC, _MS_PRIVATE = 0x4000, 0x40000
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class World:
    """One of them."""

    name: str
    server: str
    """The DBMS that is started; "" if there is none."""
    has: frozenset[str]
    """What faults may strike, and which clients there are: ``server``, a process that can be
    killed, with a ``link`` to it; ``leases`` in it; ``sql``, messages in a database; ``files``,
    messages in files; ``sqlite``; a ``standby`` of the database, which is ``synchronous`` or not;
    ``disk``, a file system of their own that can be filled."""


def _world(name: str, server: str, has: str) -> World:
    return World(name, server, frozenset(has.split()))


WORLDS = {
    world.name: world
    for world in (
        _world("postgresql", "postgresql", "server link leases sql"),
        _world("mariadb", "mariadb", "server link leases sql"),
        _world("mysql", "mysql", "server link leases sql"),
        _world("sqlite", "", "sqlite leases sql"),
        _world("files", "", "files"),
        _world("files-and-leases", "postgresql", "server link leases files"),
        _world("synchronous-standby", "postgresql", "server link leases sql standby synchronous"),
        _world("asynchronous-standby", "postgresql", "server link leases sql standby"),
    )
    if world.server in ("", *SERVER_PROCESSES)
}


@dataclass(frozen=True)
class Disk:
    """A small file system of a run's own."""

    path: Path

    def fill(self) -> None:
        """Leave no room on it."""
        with self._filler.open("wb") as file:
            size, pages = 0, os.statvfs(self.path).f_bavail
            while pages:
                try:
                    os.posix_fallocate(file.fileno(), size, pages * _PAGE_BYTES)
                except OSError:  # somebody else has taken some of it in between
                    pages //= 2
                else:
                    size += pages * _PAGE_BYTES

    def free(self) -> None:
        """Give the room back."""
        self._filler.unlink(missing_ok=True)

    @property
    def _filler(self) -> Path:
        return self.path / "filler"


@dataclass(frozen=True)
class Site:
    """A world that runs: what its nodes share."""

    world: World
    server: StoreServer | None
    directory: Path
    """For whatever is kept in files."""
    disk: Disk | None

    @property
    def has(self) -> frozenset[str]:
        """What the world has, and what this machine adds to it."""
        return self.world.has | ({"disk"} if self.disk is not None else frozenset())


@contextmanager
def started(world: World) -> Iterator[Site]:
    """Run a world's servers, on a disk of their own if this process may mount one."""
    with ExitStack() as ending:
        directory = Path(ending.enter_context(tempfile.TemporaryDirectory(prefix="orthia-chaos-")))
        directory.chmod(0o755)  # servers have accounts of their own
        disk = None
        if may_mount():
            _mount("tmpfs", directory, f"size={SMALL_DISK_BYTES},mode=755")
            ending.callback(_libc.umount2, bytes(directory), 2)
            disk = Disk(directory)
        before, tempfile.tempdir = tempfile.tempdir, str(directory)
        try:
            server = _server(world, directory)
        finally:
            tempfile.tempdir = before
        if isinstance(server, ServerProcess | ReplicatedServer):
            ending.enter_context(server)
        yield Site(world, server, directory, disk)


def _server(world: World, directory: Path) -> StoreServer | None:
    if "standby" in world.has:
        return ReplicatedServer(directory, synchronous="synchronous" in world.has)
    if "sqlite" in world.has:
        return SqliteServer(directory)
    if not world.server:
        return None
    server = SERVER_PROCESSES[world.server]()
    if isinstance(server, PostgresqlServer):
        server.options += _POSTGRESQL_OPTIONS
    return server


@cache
def may_mount() -> bool:
    """Enter a mount namespace of this process's own, so that nothing it mounts outlives it."""
    if os.geteuid() != 0 or _libc.unshare(_CLONE_NEWNS) != 0:
        return False
    return bool(_libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None) == 0)


def _mount(kind: str, path: Path, options: str) -> None:
    if _libc.mount(kind.encode(), bytes(path), kind.encode(), 0, options.encode()) != 0:
        raise OSError(ctypes.get_errno(), f"cannot mount {kind} on {path}")
