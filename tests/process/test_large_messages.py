"""Large messages through real nodes: in little memory, and whole whoever dies when."""

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from sqlalchemy import MetaData, func, select

from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database
from orthia.journal.file.bodies import list_bodies
from orthia.journal.sql.tables import large_messages_table
from tests.conftest import Servers
from tests.process.file_nodes import file_cluster
from tests.process.large_clients import MIB, LargeClient, body, digest
from tests.process.nodes import NodeProcess, cluster
from tests.process.takeover_pairs import new_database
from tests.support.servers import SERVER_NAMES, url_with_password
from tests.support.waiting import wait_until

pytestmark = pytest.mark.extended

QUEUE = "/queue/large"


class StoredPair:
    """A live node, a backup, and a look at what is stored of bodies."""

    def __init__(
        self, live: NodeProcess, backup: NodeProcess | None, bodies: Callable[[], int]
    ) -> None:
        self.live = live
        self.backup = backup
        self.bodies = bodies
        """How many bodies there is anything of."""

    def take_over(self) -> NodeProcess:
        """Kill the live node and return the one that serves then."""
        assert self.backup is not None
        self.live.kill()
        return self.backup.wait_serving()

    def wait_bodies(self, count: int) -> None:
        """Wait until there are ``count`` bodies."""
        wait_until(lambda: self.bodies() == count, what=f"{count} bodies are stored")


@contextmanager
def running(
    store: str, directory: Path, servers: Servers, *, backup: bool = True
) -> Iterator[StoredPair]:
    """Run nodes on a fresh store."""
    with ExitStack() as ending:
        if store == "files":
            files = ending.enter_context(file_cluster(directory))
            stored = files.store / "large-messages"
            live, other = files.pair() if backup else (files.alone(), None)
            yield StoredPair(live, other, lambda: len(list_bodies(stored)))
            return
        settings = new_database(store, servers, directory)
        nodes = ending.enter_context(cluster(url_with_password(settings), directory))
        database = Database.from_settings(settings)
        ending.callback(database.dispose)
        live = nodes.live().wait_serving()
        other = nodes.backup().wait_log("AMQ221031") if backup else None
        yield StoredPair(live, other, lambda: _bodies(database, settings))


def _bodies(database: Database, s: DatabaseStoreSettings) -> int:
    table = large_messages_table(MetaData(), s.large_message_table_name, database.dialect)
    with database.engine.connect() as connection:
        ask = select(func.count(table.c.id.distinct()))
        return int(connection.execute(ask).scalar_one())


@pytest.mark.parametrize("store", ["files", "postgresql"])
def test_a_message_of_64_mib_needs_little_memory(
    store: str, tmp_path: Path, shared_servers: Servers
) -> None:
    """In and out of a node that may have 40 MiB more than it has at rest."""
    size = 64 * MIB
    with running(store, tmp_path, shared_servers, backup=False) as pair:
        with LargeClient(pair.live.port) as warm:
            warm.send_and_wait("/queue/other", MIB)
        pair.live.limit_memory(40 * MIB)
        with LargeClient(pair.live.port) as producer, LargeClient(pair.live.port) as consumer:
            producer.send_and_wait(QUEUE, size)
            consumer.subscribe(QUEUE)
            message = consumer.message()
            assert (message.size, message.sha256) == (size, digest(size))
            consumer.acknowledge(message)
        pair.wait_bodies(1)


@pytest.mark.parametrize("store", ["files", *SERVER_NAMES])
def test_a_takeover_amid_an_upload_and_a_delivery(
    store: str, tmp_path: Path, shared_servers: Servers
) -> None:
    """kill -9: what had its receipt is delivered whole, half an upload leaves nothing."""
    size = 12 * MIB
    with running(store, tmp_path, shared_servers) as pair:
        uploading = LargeClient(pair.live.port)
        with LargeClient(pair.live.port) as producer:
            producer.send_and_wait(QUEUE, size)
        uploading.begin(QUEUE, 2 * size, receipt="never")
        for part in body(size):
            uploading.socket.sendall(part)
        pair.wait_bodies(2)
        taking = LargeClient(pair.live.port)
        taking.subscribe(QUEUE)
        assert taking.read_head()[0] == "MESSAGE"
        successor = pair.take_over()
        uploading.close()
        taking.close()
        pair.wait_bodies(1)
        with LargeClient(successor.port) as consumer:
            consumer.subscribe(QUEUE)
            message = consumer.message()
            assert message.sha256 == digest(size)
            assert message.headers["redelivered"] == "true"
            consumer.acknowledge(message)
        pair.wait_bodies(0)


def test_a_client_that_takes_its_time_holds_nobody_up(
    tmp_path: Path, shared_servers: Servers
) -> None:
    """One reads nothing of its large message; small ones come and go, and others get theirs."""
    size = 32 * MIB
    with running("files", tmp_path, shared_servers, backup=False) as pair:
        slow, port = LargeClient(pair.live.port), pair.live.port
        with LargeClient(port) as producer:
            producer.send_and_wait(QUEUE, size)
            slow.subscribe(QUEUE)
            assert slow.read_head()[0] == "MESSAGE"
            producer.send_and_wait(QUEUE, size)
            with LargeClient(port) as other:
                other.subscribe(QUEUE)
                other.acknowledge(other.message())
            producer.write("SEND", "small", destination="/queue/small", receipt="sent")
            assert producer.receipt() == "sent"
        slow.close()
        with LargeClient(port) as again:
            again.subscribe(QUEUE)
            assert again.message().sha256 == digest(size)


def test_uploads_that_stall_are_bounded_together(tmp_path: Path, shared_servers: Servers) -> None:
    """Forty clients with half a message each: the memory stays small, and all is removed."""
    with running("files", tmp_path, shared_servers, backup=False) as pair:
        clients = [LargeClient(pair.live.port) for _ in range(40)]
        before = _resident(pair.live)
        for client in clients:
            client.begin(QUEUE, 64 * MIB)
            client.socket.sendall(next(iter(body(MIB))) * 2)
        pair.wait_bodies(40)
        with LargeClient(pair.live.port) as other:
            other.send_and_wait(QUEUE, MIB)
        assert _resident(pair.live) - before < 48 * MIB
        for client in clients:
            client.close()
        pair.wait_bodies(1)
        pair.live.signal(signal.SIGTERM)
        assert pair.live.exit_code() == 0


def _resident(node: NodeProcess) -> int:
    assert node.process is not None
    for line in Path(f"/proc/{node.process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the process is gone")


def test_without_persistence_a_message_is_held_in_memory(tmp_path: Path) -> None:
    """There are no large messages then: max-body-bytes holds, and no file is made."""
    with file_cluster(tmp_path, "<persistence-enabled>false</persistence-enabled>") as nodes:
        node = nodes.alone()
        with LargeClient(node.port) as client:
            client.send_and_wait(QUEUE, 2 * MIB)
            client.subscribe(QUEUE)
            assert client.message().sha256 == digest(2 * MIB)
        with LargeClient(node.port) as client:
            client.begin(QUEUE, 20 * MIB)
            assert "max-body-bytes" in client.error()
        assert not nodes.store.exists()
