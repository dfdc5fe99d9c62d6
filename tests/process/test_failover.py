"""A pair of real processes on a real database, and what becomes of its clients' messages."""

import http.client
import json
import re
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from orthia.config.secrets import Secret
from orthia.config.settings import Role
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database
from orthia.nodemanager import State
from orthia.nodemanager.locks.sql_store import SqlNodeManagerStore
from tests.process.clients import QUEUE, Consumer, Producer, receive_all, served_through_it
from tests.process.nodes import (
    LAPSING,
    RENEW_PERIOD_MS,
    Cluster,
    NodeProcess,
    accepts,
    cluster,
    status_of,
    wait_any_serving,
)
from tests.support.servers import ServerProcess, free_port, url_with_password
from tests.support.waiting import wait_until

pytestmark = pytest.mark.extended


ON_SQLITE = pytest.mark.parametrize("server", ["sqlite"], indirect=True)
ON_POSTGRESQL = pytest.mark.parametrize("private_server", ["postgresql"], indirect=True)


@pytest.fixture
def pair_on(store_url: str, tmp_path: Path) -> Iterator[Cluster]:
    """Give a cluster on a fresh database of each DBMS."""
    with cluster(store_url, tmp_path) as nodes:
        yield nodes


@ON_SQLITE
def test_graceful_stop_without_failover_keeps_the_backup_passive(
    pair_on: Cluster, database: Database, store_settings: DatabaseStoreSettings
) -> None:
    """SIGTERM without failover-on-shutdown pauses the pair; the restarted live node serves on."""
    live, backup = pair_on.pair(failover_on_shutdown=False)
    with Producer([live.port], QUEUE) as producer:
        producer.wait_receipts(50)
        receipted = producer.finish()
    assert live.terminate() == 0
    store = SqlNodeManagerStore(database, store_settings, database.engine)
    assert store.status().state is State.PAUSED
    live.start().wait_serving()
    assert not accepts(backup.port)
    receive_all(live.port, QUEUE, receipted)


def freeze(live: NodeProcess, store: DatabaseStoreSettings) -> None:
    """Stop the node with SIGSTOP; on SQLite not amid a transaction, which locks all others out."""
    live.signal(signal.SIGSTOP)
    file = store.jdbc_connection_url.sqlite_path
    while file is not None and not _takes_a_writer(file):
        live.signal(signal.SIGCONT)
        wait_until(partial(_takes_a_writer, file), what="the end of the node's transaction")
        live.signal(signal.SIGSTOP)


def _takes_a_writer(file: Path) -> bool:
    with closing(sqlite3.connect(file, timeout=1, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        return True


def freeze_with_sends_in_its_sockets(
    live: NodeProcess, store: DatabaseStoreSettings, count: int
) -> list[socket.socket]:
    """Connect clients, freeze the node, then put SENDs with receipts into its sockets."""
    clients = []
    for number in range(count):
        client = socket.create_connection(("127.0.0.1", live.port), timeout=120)
        client.sendall(b"CONNECT\naccept-version:1.2\nhost:test\n\n\0")
        assert b"CONNECTED" in client.recv(4096), f"client {number} is not connected"
        clients.append(client)
    freeze(live, store)
    for number, client in enumerate(clients):
        client.sendall(
            b"SEND\ndestination:/queue/orders\npersistent:true\nreceipt:stale\n\n"
            b"message %d\0" % (900_000 + number)
        )
    return clients


def read_to_end(client: socket.socket) -> bytes:
    """Read what the node still says until it closes the connection."""
    said = b""
    try:
        while chunk := client.recv(65_536):
            said += chunk
    except ConnectionError:
        pass
    finally:
        client.close()
    return said


def test_a_frozen_node_that_wakes_up_writes_nothing(
    pair_on: Cluster, store_settings: DatabaseStoreSettings
) -> None:
    """SIGSTOP beyond the lease, then SIGCONT: no row, no receipt, exit 74; the successor is whole.

    This is the trial in which the models of Orthia have two writers.
    """
    live, backup = pair_on.pair(**LAPSING)
    with Producer([live.port], QUEUE) as producer:
        producer.wait_receipts(20)
        receipted = producer.finish()
    clients = freeze_with_sends_in_its_sockets(live, store_settings, 8)
    backup.wait_serving()
    (told,) = re.findall(r"ORT100037 backup backup: (.*)", backup.log)
    assert re.match(
        r"live@\S+ has not renewed its lease for [0-9.]+ ms, and it ended [0-9.]+ ms ago"
        r" \(presence lock: held\); backup@\S+ takes the live lock$",
        told,
    )
    pair_on.codes("ORT100037")
    with Producer([backup.port], QUEUE, first=100_000) as producer:
        producer.wait_receipts(50)
        live.signal(signal.SIGCONT)
        assert live.exit_code() == 74
        producer.wait_receipts(50)
        producer.finish()
    assert not any(b"RECEIPT" in read_to_end(client) for client in clients)
    received = Consumer(backup.port, QUEUE)
    expected = receipted | producer.receipted
    received.wait_for(lambda c: expected <= c.received.keys(), "the successor delivers all")
    received.close()
    assert not [number for number in received.received if number >= 900_000]
    assert received.errors == []


@ON_SQLITE
def test_three_backups_take_over_one_after_the_other(pair_on: Cluster) -> None:
    """With three backups, each kill of the live node finds exactly one successor."""
    live = pair_on.live().wait_serving()
    waiting = [pair_on.backup(f"backup-{number}") for number in range(3)]
    with Producer([live.port, *(node.port for node in waiting)], QUEUE) as producer:
        serving = live
        while waiting:
            producer.wait_receipts(30)
            serving.kill()
            serving = wait_any_serving(waiting)
            waiting.remove(serving)
            assert not any(accepts(node.port) for node in waiting)
        producer.wait_receipts(30)
        receipted = producer.finish()
    receive_all(serving.port, QUEUE, receipted)


def test_ten_nodes_start_at_once_on_an_empty_database(pair_on: Cluster) -> None:
    """Ten nodes starting together make one schema and one node id, and one of them serves."""
    # A backup takes a lock that nobody took for one expiration: longer than a busy machine starts.
    patience_ms = 60_000
    live = pair_on.live(jdbc_lock_expiration=patience_ms)
    backups = [
        pair_on.backup(f"backup-{number}", jdbc_lock_expiration=patience_ms) for number in range(9)
    ]
    live.wait_serving()
    for backup in backups:
        backup.wait_log("AMQ221032")
    assert all(node.is_running for node in (live, *backups))
    assert not any(accepts(backup.port) for backup in backups)
    node_ids = {event["node_id"] for event in pair_on.events() if event["node_id"]}
    assert len(node_ids) == 1
    assert pair_on.codes("ORT100038").count("ORT100038") == 1, "one of them migrated"


@ON_SQLITE
def test_two_live_nodes_never_serve_together(pair_on: Cluster) -> None:
    """A second live node waits for the lock and gives up with exit code 75."""
    live = pair_on.live("live-1").wait_serving()
    other = pair_on.live("live-2", jdbc_lock_acquisition_timeout=1_500)
    assert other.exit_code() == 75
    assert accepts(live.port)
    assert not accepts(other.port)


@pytest.fixture
def pair_on_private(private_server: ServerProcess, tmp_path: Path) -> Iterator[Cluster]:
    """Give a cluster on a server of its own, which the test may kill and pause."""
    settings = private_server.settings(private_server.create_database())
    with cluster(url_with_password(settings), tmp_path) as nodes:
        yield nodes


@pytest.mark.parametrize("how", ["killed", "hangs", "hangs, and no memory"])
def test_a_database_that_is_gone_is_survived(
    pair_on_private: Cluster, private_server: ServerProcess, how: str
) -> None:
    """The live node exits 74 while it is, without a new thread too; then the backup serves all."""
    live, backup = pair_on_private.pair(**LAPSING)
    with served_through_it(live, backup):
        if "no memory" in how:
            live.limit_memory(0)
        (private_server.kill if how == "killed" else private_server.pause)()
        assert live.exit_code() == 74
        assert backup.is_running
        (private_server.start if how == "killed" else private_server.resume)()
        backup.wait_serving()


def test_a_node_whose_thread_cannot_begin_ends(tmp_path: Path) -> None:
    """A thread that dies before its first line, for want of memory, does not leave a node hanging.

    Who started it waits for ever; the node held the live lock and served nobody.
    """
    program = """if True:
        import sys, threading
        begin = threading.Thread._bootstrap
        def cannot_begin(thread):
            if thread.name == "journal-writer":
                raise MemoryError
            begin(thread)
        threading.Thread._bootstrap = cannot_begin
        from orthia.broker.cli import main
        sys.argv = ["orthia", "live", "--port", "0", "--data-dir", sys.argv[1]]
        main()
    """
    ended = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 74
    assert b"a thread could not begin: MemoryError" in ended.stdout + ended.stderr


@ON_POSTGRESQL
def test_nodes_started_without_a_database_wait_for_it(
    pair_on_private: Cluster, private_server: ServerProcess
) -> None:
    """Both nodes are started while the database is down; when it comes up, one serves."""
    private_server.stop()
    live, backup = pair_on_private.live(), pair_on_private.backup()
    live.wait_log("the database does not answer")
    backup.wait_log("the database does not answer")
    live.wait_log("the database has not answered for")
    private_server.start()
    live.wait_serving()
    backup.wait_log("AMQ221031")


@ON_SQLITE
@pytest.mark.parametrize("is_gone", [False, True])
def test_a_live_node_that_does_not_last_is_not_handed_back_to_at_once(
    pair_on: Cluster, database: Database, store_settings: DatabaseStoreSettings, *, is_gone: bool
) -> None:
    """After a crash soon after its failback it waits; and it gets nothing if it is gone by then.

    Nobody would serve for a whole lease, because of a request of half a minute ago.
    """
    live, backup = pair_on.pair()
    live.kill()
    backup.wait_serving()
    live.start().wait_serving()
    wait_until(lambda: not accepts(backup.port), what="the backup is passive again")
    live.kill()
    backup.wait_serving()
    live.start()
    backup.wait_log("ORT100027")
    live.wait_log("AMQ221034")
    assert accepts(backup.port)
    assert backup.log.count("ORT100011") == 1
    if is_gone:
        live.kill()
        store = SqlNodeManagerStore(database, store_settings, database.engine)
        wait_until(
            lambda: store.status().state is State.LIVE or not accepts(backup.port),
            180,
            what="the backup's decision",
        )
        assert accepts(backup.port)
        assert backup.log.count("ORT100011") == 1
    else:
        wait_until(
            lambda: status_of(pair_on.url)["failback_put_off_until"] is not None,
            what="the status says until when failback is put off",
        )
        live.wait_serving()
        assert backup.log.count("ORT100027") == 1


@contextmanager
def _taken(port: int) -> Iterator[None]:
    """Listen on a port as another process does."""
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port))
        taken.listen()
        yield


@ON_SQLITE
def test_a_live_node_whose_port_is_taken_asks_nobody_to_hand_over(pair_on: Cluster) -> None:
    """It says so, ends with 75 to be started again, and the backup goes on serving."""
    live, backup = pair_on.pair()
    live.kill()
    backup.wait_serving()
    with _taken(live.port):
        # The backup is on this host, too: as it were elsewhere.
        live.environment = {"PYTHONPATH": str(_elsewhere(pair_on.directory))}
        assert live.start().exit_code() == 75
        assert f"cannot listen on 127.0.0.1:{live.port}" in live.log
    assert "ORT100011" not in pair_on.codes("ORT100026")  # failback requested
    live.start().wait_serving()


def _elsewhere(directory: Path) -> Path:
    """Return a directory of modules with which a process believes to be on another host."""
    modules = directory / "elsewhere"
    modules.mkdir()
    text = "import socket\nsocket.gethostname = lambda: 'elsewhere'\n"
    (modules / "sitecustomize.py").write_text(text)
    return modules


@ON_SQLITE
def test_a_backup_says_when_it_starts_that_its_port_is_taken(pair_on: Cluster) -> None:
    """At its takeover it waits for the port, holding the live lock, and then serves."""
    pair_on.live().wait_serving()
    backup = pair_on.node(Role.BACKUP, "backup")
    # For longer than the ten seconds after which it gives up, which this process may stand still.
    backup.program = "tests.process.patient_node"
    backup.environment = {"PYTHONPATH": str(Path(__file__).parents[2])}
    with _taken(backup.port):
        backup.start().wait_log("ORT100026")
        backup.wait_log("AMQ221031")
        assert "a takeover would have to wait for that" in backup.log
        pair_on.nodes[0].kill()
        backup.wait_log("has the live lock and serves nobody")
    backup.wait_log("AMQ221010").wait_serving()


@ON_SQLITE
def test_a_backup_that_never_gets_its_port_leaves_the_lock_to_another(pair_on: Cluster) -> None:
    """It ends with 75, to be started again, and the next in line serves."""
    live = pair_on.live().wait_serving()
    backup = pair_on.node(Role.BACKUP, "backup")
    with _taken(backup.port):
        backup.start().wait_log("AMQ221031")
        other = pair_on.backup("other").wait_log("AMQ221032")
        live.kill()
        assert backup.exit_code() == 75
        other.wait_log("AMQ221010").wait_serving()
        pair_on.codes("AMQ224097")


@ON_SQLITE
def test_a_port_that_nobody_may_have_is_a_failed_start(pair_on: Cluster) -> None:
    """What does not pass by itself is told before anything else is done: exit 78."""
    no_name = 64 * "x"
    backup = pair_on.node(Role.BACKUP, "backup", host=no_name, allow_anonymous=True)
    assert backup.start().exit_code() == 78
    assert f"acceptor 'stomp' cannot listen on {no_name}:" in backup.log
    assert "AMQ221032" not in backup.log


@ON_POSTGRESQL
def test_a_wrong_password_is_a_failed_start(private_server: ServerProcess, tmp_path: Path) -> None:
    """A database that refuses the node's password is not waited for: exit 78, and why."""
    settings = private_server.settings(private_server.create_database())
    wrong = replace(settings, jdbc_password=Secret("wrong"))
    with cluster(url_with_password(wrong), tmp_path) as nodes:
        node = nodes.live()
        assert node.exit_code() == 78
        assert "AMQ224097" in node.log or "failed to start server" in node.log
        assert "wrong" not in node.log


@ON_POSTGRESQL
def test_a_stop_is_bounded_when_the_database_hangs(
    pair_on_private: Cluster, private_server: ServerProcess
) -> None:
    """SIGTERM while the database hangs ends the node, without any answer from the database."""
    # What bounds it is a query's time-out, which is waited for.
    live, backup = pair_on_private.pair(jdbc_lock_expiration=30_000, jdbc_network_timeout=20_000)
    private_server.pause()
    live.signal(signal.SIGTERM)
    backup.signal(signal.SIGTERM)
    assert live.exit_code() in (0, 74)
    assert backup.exit_code() == 0
    private_server.resume()


@ON_SQLITE
def test_the_nodes_of_one_data_directory_log_in_files_of_their_own(pair_on: Cluster) -> None:
    """The failover log's file carries the node's name, and its entries the role at the time."""
    live, backup = pair_on.pair()
    live.kill()
    backup.wait_serving().wait_log("ORT100008")
    path = backup.directory / "backup" / "log" / "failover-backup.jsonl"

    def whole_lines() -> str:
        """Return what is written, without the line that is not at its end yet."""
        return path.read_text().rpartition("\n")[0]

    wait_until(lambda: '"TakeoverTimings"' in whole_lines(), what="the last event of a takeover")
    roles = {entry["event"]: entry["role"] for entry in map(json.loads, whole_lines().splitlines())}
    assert roles["BackupAnnounced"] == "backup"
    assert roles["BackupActive"] == "live"
    assert re.search(r"AMQ221010 backup live: ", backup.log)


def test_a_crash_is_noticed_before_the_lease_runs_out(pair_on: Cluster) -> None:
    """kill -9 with a lease of an hour: the backup takes over all the same, and loses nothing."""
    live, backup = pair_on.pair(jdbc_lock_expiration=3_600_000)
    with served_through_it(live, backup):
        live.kill()
        backup.wait_serving()
    pair_on.codes("ORT100019")


def test_a_paused_live_node_keeps_its_whole_lease(
    pair_on: Cluster, database: Database, store_settings: DatabaseStoreSettings
) -> None:
    """Stopped for many renew periods and then resumed, it is live as before."""
    live, backup = pair_on.pair(jdbc_lock_expiration=60_000)
    store = SqlNodeManagerStore(database, store_settings, database.engine)
    token = store.status().live.token
    live.signal(signal.SIGSTOP)
    wait_until(
        lambda: (store.status().live.expires_in_seconds or 0) < 60 - 10 * RENEW_PERIOD_MS / 1000,
        what="ten renew periods without a renewal",
    )
    live.signal(signal.SIGCONT)
    with Producer([live.port], QUEUE) as producer:
        producer.wait_receipts(20)
        receipted = producer.finish()
    receive_all(live.port, QUEUE, receipted)
    assert store.status().live.token == token
    assert not accepts(backup.port)


@ON_SQLITE
def test_crash_detection_can_be_switched_off(pair_on: Cluster) -> None:
    """Then a crash is noticed when the lease has run out, and only then."""
    live, backup = pair_on.pair(crash_detection=False, **LAPSING)
    live.kill()
    backup.wait_serving()
    assert "ORT100019" not in pair_on.codes("AMQ221010")


@ON_SQLITE
def test_probes_tell_the_live_node_from_the_backup(pair_on: Cluster) -> None:
    """Both are alive, only the live one is ready; after the takeover it is the other one."""
    ports = free_port(), free_port()
    live = pair_on.live("live", health=f"127.0.0.1:{ports[0]}").wait_serving()
    backup = pair_on.backup("backup", health=f"127.0.0.1:{ports[1]}").wait_log("AMQ221031")
    wait_until(lambda: probe(ports[0], "/ready") == 200, what="the live node is ready")
    assert [probe(port, "/live") for port in ports] == [200, 200]
    assert [probe(port, "/ready") for port in ports] == [200, 503]
    live.kill()
    backup.wait_serving()
    wait_until(lambda: probe(ports[1], "/ready") == 200, what="the backup is ready")


def probe(port: int, path: str) -> int:
    """Return the status of a GET."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()
