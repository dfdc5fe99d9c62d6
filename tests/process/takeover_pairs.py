"""Pairs of real processes on each store, for what lasts through a takeover."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from orthia.config.store_settings import DatabaseStoreSettings
from tests.conftest import EVERY_DBMS, Servers
from tests.process.file_nodes import file_cluster
from tests.process.locker_stores import store
from tests.process.nodes import NodeProcess
from tests.support.servers import SqliteServer, StoreServer

STORES = [*EVERY_DBMS, "files"]
PAGED = "<max-size-messages>2</max-size-messages>"
"""Settings of addresses with which what is beyond two messages of a queue is in the store alone."""
Pair = tuple[NodeProcess, NodeProcess]


def new_database(dbms: str, servers: Servers | None, directory: Path) -> DatabaseStoreSettings:
    """Return settings of an empty database: of a server that tests share, or a file of SQLite."""
    if dbms == "sqlite":
        server: StoreServer = SqliteServer(directory)
    else:
        assert servers is not None
        server = servers(dbms)
    return server.settings(server.create_database())


def stored(place: str, servers: Servers | None, directory: Path) -> str:
    """Return the elements of a broker.xml with which messages are on one of ``STORES``."""
    if place == "files":
        return "<journal-type>NIO</journal-type>"
    return store(directory, new_database(place, servers, directory), "lease")


@contextlib.contextmanager
def pair_on(place: str, core: str, servers: Servers, directory: Path) -> Iterator[Pair]:
    """Give a live node that serves and its backup, on one of ``STORES``."""
    with file_cluster(directory, stored(place, servers, directory) + core) as nodes:
        yield nodes.pair()
