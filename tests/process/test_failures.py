"""Scenes of the table "Failure by failure" that no other test plays; see ``failure_rows``."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import pytest

from orthia.broker.client.connection import BrokerAddress, BrokerRefused, Connection
from orthia.config.settings import Role
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.config.urls import DatabaseUrl
from orthia.database import Database
from orthia.nodemanager.activation import GRACE_PERIODS
from orthia.nodemanager.failover_log import log_file_name
from orthia.nodemanager.locks.sql_store import SqlNodeManagerStore
from tests.chaos.network import Link, Network
from tests.chaos.nodes import FULL_DEVICE, SteppedClock
from tests.conftest import Servers
from tests.process.clients import QUEUE, Producer, receive_all, served_through_it
from tests.process.nodes import LAPSING, Cluster, NodeProcess, accepts, cluster
from tests.support.leases import wait_renewals
from tests.support.servers import (
    ServerProcess,
    url_with_password,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.extended

HOUR_SECONDS = 3_600
MANY_RENEWALS = 5


class Renewal(NamedTuple):
    """What a renewal of the live lock sets."""

    token: int
    expires: datetime


class Pair:
    """A live node and a backup, and the store that they share."""

    def __init__(
        self, nodes: Cluster, settings: DatabaseStoreSettings, *, server: ServerProcess | None
    ) -> None:
        self.nodes = nodes
        self.settings = settings
        self.server = server
        self.database_name = str(settings.jdbc_connection_url.sqlalchemy_url.database)
        self.database = Database.from_settings(settings)
        self.store = SqlNodeManagerStore(self.database, settings, self.database.engine)

    def wait_renewals(self) -> None:
        """Wait until the live lease was renewed some times."""
        wait_renewals(self.settings, MANY_RENEWALS)

    def renewed(self, before: Renewal | None = None) -> Renewal:
        """Return the next renewal of the live lock, by whoever has it then."""
        seen: list[Renewal] = []

        def has_come() -> bool:
            live = self.store.status().live
            assert live.expiration_time is not None
            seen.append(Renewal(live.token, live.expiration_time))
            return seen[-1] != (before or seen[0])

        wait_until(has_come, what="a renewal")
        return seen[-1]


@pytest.fixture
def on_sqlite(tmp_path: Path) -> Iterator[Pair]:
    """Give a store of SQLite; no node runs yet."""
    url = f"sqlite:///{tmp_path / 'store.db'}"
    with cluster(url, tmp_path) as nodes:
        pair = Pair(nodes, DatabaseStoreSettings(DatabaseUrl.parse(url)), server=None)
        yield pair
        pair.database.dispose()


@pytest.fixture
def on_postgresql(shared_servers: Servers, tmp_path: Path) -> Iterator[Pair]:
    """Give a store of PostgreSQL; no node runs yet."""
    server = shared_servers("postgresql")
    settings = server.settings(server.create_database())
    with cluster(url_with_password(settings), tmp_path) as nodes:
        pair = Pair(nodes, settings, server=server)
        yield pair
        pair.database.dispose()


@pytest.fixture
def network() -> Iterator[Network]:
    """Give what links go through."""
    made = Network()
    yield made
    made.close()


def behind_a_link(pair: Pair, network: Network) -> tuple[NodeProcess, Link]:
    """Start a live node whose way to the database can be cut, and wait until it serves."""
    assert pair.server is not None
    link = network.link(pair.server.port)
    live = pair.nodes.node(Role.LIVE, "live", **LAPSING)
    live.url = live.url.replace(f":{pair.server.port}/", f":{link.port}/")
    return live.start().wait_serving(), link


@pytest.mark.parametrize("is_lost", [True, False], ids=["lost host", "cut off"])
def test_a_live_node_that_the_database_does_not_hear_is_replaced(
    on_postgresql: Pair, network: Network, *, is_lost: bool
) -> None:
    """Of a lost host nobody tells the database: the lease decides. One cut off ends with 74."""
    live, link = behind_a_link(on_postgresql, network)
    backup = on_postgresql.nodes.backup("backup", **LAPSING).wait_log("AMQ221031")
    with served_through_it(live, backup):
        link.silence("requests", "answers")
        if is_lost:
            live.kill()
        else:
            assert live.exit_code() == 74
        backup.wait_serving()
    assert "ORT100019" not in backup.log or not is_lost  # a crash was noticed


def test_a_lost_presence_session_alone_disturbs_nobody(on_postgresql: Pair) -> None:
    """The backup sees its holder renew and waits on; the live node asks for the lock again."""
    # For now the backup has the lock, and looks whether the live node renews.
    period = timedelta(seconds=8)
    live, backup = on_postgresql.nodes.pair(
        jdbc_lock_expiration=60_000, jdbc_lock_renew_period=period // timedelta(milliseconds=1)
    )
    assert on_postgresql.server is not None
    with Producer([live.port, backup.port], QUEUE) as producer:
        producer.wait_receipts(20)
        first = last = on_postgresql.renewed()
        ended = on_postgresql.server.execute(
            "SELECT pg_terminate_backend(l.pid) FROM pg_locks l JOIN pg_database d"
            " ON d.oid = l.database WHERE l.locktype = 'advisory' AND l.granted"
            f" AND d.datname = '{on_postgresql.database_name}'"
        )
        assert ended == [(True,)]
        for _ in range(2):
            before, last = last, on_postgresql.renewed(last)
            if last.token != first.token:
                # On a machine that stood still a renewal came more than a quarter of a period late.
                assert last.expires - before.expires > GRACE_PERIODS * period
                assert live.exit_code() == 74
                backup.wait_serving()
                return
        live.wait_log("ORT100018")
        producer.wait_receipts(20)
        producer.finish()
    assert on_postgresql.store.status().live.token == first.token
    assert accepts(live.port)
    assert not accepts(backup.port)


def test_a_killed_backup_is_followed_by_the_next(on_sqlite: Pair) -> None:
    """Clients see nothing of it, and the next takes over when the live node goes too."""
    live, backup = on_sqlite.nodes.pair(**LAPSING)
    other = on_sqlite.nodes.backup("other", **LAPSING).wait_log("AMQ221032")
    with served_through_it(live, other) as producer:
        backup.kill()
        other.wait_log("AMQ221031")
        producer.wait_receipts(20)
        assert accepts(live.port)
        live.kill()
        other.wait_serving()


@contextmanager
def refusing(pair: Pair, word: str, code: str) -> Iterator[None]:
    """Have PostgreSQL refuse rows of MESSAGES whose record has ``word`` in it."""
    with pair.database.engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE FUNCTION refuse() RETURNS trigger AS $$ BEGIN"
            f" IF position('{word}'::bytea IN NEW.record) > 0 THEN"
            f" RAISE EXCEPTION 'refused' USING ERRCODE = '{code}'; END IF; RETURN NEW;"
            " END $$ LANGUAGE plpgsql"
        )
        connection.exec_driver_sql(
            "CREATE TRIGGER refuse BEFORE INSERT ON messages FOR EACH ROW EXECUTE FUNCTION refuse()"
        )
    yield
    with pair.database.engine.begin() as connection:
        connection.exec_driver_sql("DROP TRIGGER refuse ON messages")


def test_receipts_wait_while_the_database_has_no_room(on_postgresql: Pair) -> None:
    """The node says so and keeps its lease; when somebody has made room, all is stored."""
    live = on_postgresql.nodes.live(jdbc_lock_expiration=60_000).wait_serving()
    with Producer([live.port], QUEUE) as producer:
        producer.wait_receipts(20)
        with refusing(on_postgresql, "message", "53100"):
            before = len(live.log)
            wait_until(
                lambda: "refused" in live.log[before:], what=f"the node tells of it: {live.log}"
            )
            on_postgresql.wait_renewals()
            seen = len(producer.receipted)
            on_postgresql.wait_renewals()
            assert len(producer.receipted) == seen
            assert live.is_running
        producer.wait_receipts(20)
        receipted = producer.finish()
    received = receive_all(live.port, QUEUE, receipted)
    assert max(received.received.values()) == 1


def test_a_message_that_is_not_stored_ends_its_sender_alone(on_postgresql: Pair) -> None:
    """An ERROR that names its receipt, to that client; the others are served meanwhile."""
    live = on_postgresql.nodes.live(jdbc_lock_expiration=60_000).wait_serving()
    with Producer([live.port], QUEUE) as producer:
        producer.wait_receipts(20)
        with refusing(on_postgresql, "poison", "P0001"):
            address = BrokerAddress("127.0.0.1", live.port)
            client = Connection.open(address, timeout_seconds=120, heart_beat_ms=0)
            client.send("SEND", {"destination": QUEUE, "receipt": "mine"}, b"poison")
            with pytest.raises(BrokerRefused, match="nothing of it is stored"):
                wait_until(lambda: client.exchange(0.1), what="an answer")
            client.close()
            producer.wait_receipts(20)
        receipted = producer.finish()
    receive_all(live.port, QUEUE, receipted)


def stepped(pair: Pair, clock: SteppedClock, role: Role) -> NodeProcess:
    """Return a node with a clock that the test steps; not started."""
    node = pair.nodes.node(role, role.value)
    node.environment = clock.environment
    return node


needs_a_compiler = pytest.mark.skipif(
    shutil.which("cc") is None, reason="no C compiler to step a clock with"
)


@needs_a_compiler
def test_a_step_of_a_wall_clock_disturbs_nobody(on_postgresql: Pair, tmp_path: Path) -> None:
    """An hour to and fro: the same lease goes on, and so do the clients."""
    clock = SteppedClock.built(tmp_path)
    live = stepped(on_postgresql, clock, Role.LIVE).start().wait_serving()
    backup = on_postgresql.nodes.backup().wait_log("AMQ221031")
    token = on_postgresql.store.status().live.token
    with Producer([live.port], QUEUE) as producer:
        for seconds in (HOUR_SECONDS, -HOUR_SECONDS, 0):
            clock.step(seconds)
            on_postgresql.wait_renewals()
            producer.wait_receipts(20)
        producer.finish()
    assert on_postgresql.store.status().live.token == token
    assert not accepts(backup.port)


def pair_of_one_clock(pair: Pair, directory: Path) -> tuple[NodeProcess, NodeProcess, SteppedClock]:
    """Start a pair on SQLite, whose database's clock is that of the nodes, and can be stepped."""
    clock = SteppedClock.built(directory)
    live = stepped(pair, clock, Role.LIVE).start().wait_serving()
    backup = stepped(pair, clock, Role.BACKUP).start().wait_log("AMQ221031")
    return live, backup, clock


@needs_a_compiler
def test_a_step_back_of_the_databases_clock_disturbs_nobody(
    on_sqlite: Pair, tmp_path: Path
) -> None:
    """A renewal sets the expiry anew, and the live node serves on under its token."""
    live, backup, clock = pair_of_one_clock(on_sqlite, tmp_path)
    token = on_sqlite.store.status().live.token
    with Producer([live.port], QUEUE) as producer:
        producer.wait_receipts(20)
        clock.step(-HOUR_SECONDS)
        on_sqlite.wait_renewals()
        producer.wait_receipts(20)
        producer.finish()
    assert on_sqlite.store.status().live.token == token
    assert not accepts(backup.port)


@needs_a_compiler
def test_after_a_step_forward_of_the_databases_clock_one_serves(
    on_sqlite: Pair, tmp_path: Path
) -> None:
    """The lease may end early; then the older node is fenced, and nothing is lost."""
    live, backup, clock = pair_of_one_clock(on_sqlite, tmp_path)
    with served_through_it(live, backup) as producer:
        clock.step(HOUR_SECONDS)
        producer.wait_receipts(50)
        on_sqlite.wait_renewals()
        wait_until(lambda: accepts(live.port) is not accepts(backup.port), what="one serves alone")


def test_a_live_node_that_dies_while_failing_back_is_replaced(on_sqlite: Pair) -> None:
    """The backup had handed over, or was about to: it serves again, and has everything."""
    live, backup = on_sqlite.nodes.pair(**LAPSING)
    with served_through_it(live, backup) as producer:
        live.kill()
        backup.wait_serving()
        producer.wait_receipts(20)
        live.start()
        backup.wait_log("ORT100011")  # failback requested
        live.kill()
        wait_until(lambda: backup.log.count("AMQ221010") == 2, what=f"a takeover: {backup.log}")
        backup.wait_serving()


@pytest.mark.skipif(not FULL_DEVICE.exists(), reason="no device that is always full")
def test_a_failover_log_without_room_disturbs_nobody(on_sqlite: Pair, tmp_path: Path) -> None:
    """It is warned of once, and the events are in the database."""
    log_file = tmp_path / "live" / "log" / log_file_name("live")
    log_file.parent.mkdir(parents=True)
    log_file.symlink_to(FULL_DEVICE)
    live, backup = on_sqlite.nodes.pair()
    with Producer([live.port, backup.port], QUEUE) as producer:
        producer.wait_receipts(20)
        receipted = producer.finish()
    receive_all(live.port, QUEUE, receipted)
    assert live.log.count(f"failover log file {log_file} cannot be written") == 1
    assert "AMQ221035" in on_sqlite.nodes.codes("AMQ221007")
    assert live.terminate() == 0
