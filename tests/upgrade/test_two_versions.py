"""A pair whose nodes change their version one after the other while clients work.

What docs/upgrading.md says of old and new nodes, tried with a checkout of an older version.
"""

import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from config.settings import DatabaseStoreSettings, Role
from tests.process.clients import Producer, receive_all
from tests.process.nodes import LAPSING, Cluster, NodeProcess, Option, accepts, cluster
from tests.support.servers import url_with_password
from tests.support.waiting import wait_until
from tests.upgrade.versions import HAVE_ONE_SCHEMA, IS_OF_TWO_VERSIONS, Version
from tests.upgrade.work import at_work

QUEUE = "/queue/kept"
"""Not one of those that the clients at work consume."""
DOES_NOT_KNOW = "which this version of Orthia does not know"
EITHER_FIRST = list(Version) if IS_OF_TWO_VERSIONS and HAVE_ONE_SCHEMA else [Version.OLDER]

older_can_start = pytest.mark.skipif(
    not HAVE_ONE_SCHEMA, reason="the older version does not know the newer one's schema"
)


@dataclass
class Pair:
    """A live node and its backup, on one empty database."""

    live: NodeProcess
    backup: NodeProcess
    settings: DatabaseStoreSettings
    directory: Path

    @property
    def ports(self) -> list[int]:
        """Where clients may find a node."""
        return [self.live.port, self.backup.port]

    def start(self, live: Version, backup: Version) -> None:
        """Start the live node, then the backup; return when one serves and the other waits."""
        live.of(self.live).start().wait_serving()
        backup.of(self.backup).start().wait_log("AMQ221031")


def other(version: Version) -> Version:
    """Return the version that is not this one."""
    return Version.NEWER if version is Version.OLDER else Version.OLDER


def make_pair(nodes: Cluster, settings: DatabaseStoreSettings, **options: Option) -> Pair:
    """Make the nodes, none started."""
    live, backup = (
        nodes.node(role, role.value, failover_on_shutdown=True, **options)
        for role in (Role.LIVE, Role.BACKUP)
    )
    return Pair(live, backup, settings, nodes.directory)


@pytest.fixture
def pair(store_settings: DatabaseStoreSettings, tmp_path: Path) -> Iterator[Pair]:
    """Give a pair."""
    with cluster(url_with_password(store_settings), tmp_path) as nodes:
        yield make_pair(nodes, store_settings)


@pytest.fixture
def lapsing_pair(store_settings: DatabaseStoreSettings, tmp_path: Path) -> Iterator[Pair]:
    """Give a pair whose lease is to end by itself."""
    with cluster(url_with_password(store_settings), tmp_path) as nodes:
        yield make_pair(nodes, store_settings, **LAPSING)


@pytest.mark.parametrize("first", EITHER_FIRST)
def test_a_node_is_replaced_by_one_of_the_other_version(lapsing_pair: Pair, first: Version) -> None:
    """Kill -9 under load: the other version takes over, hands back, and takes over again."""
    pair = lapsing_pair
    pair.start(first, other(first))
    with (
        at_work(pair.ports, pair.directory, pair.settings) as work,
        Producer(pair.ports, QUEUE) as producer,
    ):
        producer.wait_receipts(200)
        pair.live.kill()
        pair.backup.wait_serving()
        work.goes_on()
        if not HAVE_ONE_SCHEMA:
            assert pair.live.start().exit_code() == 78
            assert DOES_NOT_KNOW in pair.live.log
            Version.NEWER.of(pair.live)
        pair.live.start().wait_serving()
        wait_until(lambda: not accepts(pair.backup.port), what="the backup is passive again")
        work.goes_on()
        assert pair.live.terminate() == 0
        pair.backup.wait_serving()
        work.goes_on()
        producer.wait_receipts(200)
        receive_all(pair.backup.port, QUEUE, producer.finish())


@pytest.mark.parametrize("first", EITHER_FIRST)
def test_a_frozen_node_writes_nothing_beside_one_of_the_other_version(
    lapsing_pair: Pair, first: Version
) -> None:
    """Stopped under load until its lease is over, it wakes up, writes nothing and ends with 74."""
    pair = lapsing_pair
    pair.start(first, other(first))
    with at_work(pair.ports, pair.directory, pair.settings) as work:
        pair.live.signal(signal.SIGSTOP)
        pair.backup.wait_serving()
        # Whoever is connected to the frozen node learns of it by its heart-beats.
        work.goes_on()
        pair.live.signal(signal.SIGCONT)
        assert pair.live.exit_code() == 74
        work.goes_on()


def test_a_pair_is_upgraded_while_it_serves(pair: Pair) -> None:
    """The backup first, then the live node, each stopped in order, as the page says."""
    pair.start(Version.OLDER, Version.OLDER)
    assert Version.NEWER.run("db", "upgrade", "--url", pair.live.url).returncode == 0
    with at_work(pair.ports, pair.directory, pair.settings) as work:
        assert pair.backup.terminate() == 0
        Version.NEWER.of(pair.backup).start()
        wait_until(lambda: pair.backup.log.count("AMQ221031") == 2, what="the backup is announced")
        work.goes_on()
        assert pair.live.terminate() == 0
        pair.backup.wait_serving()
        work.goes_on()
        Version.NEWER.of(pair.live).start().wait_serving()
        wait_until(lambda: not accepts(pair.backup.port), what="the backup is passive again")
        work.goes_on()
    assert pair.live.is_running
    assert pair.backup.is_running


@older_can_start
def test_a_pair_goes_back_to_the_older_version_while_it_serves(pair: Pair) -> None:
    """Where the schema is the same, the backup goes back first, then the live node."""
    pair.start(Version.NEWER, Version.NEWER)
    with at_work(pair.ports, pair.directory, pair.settings) as work:
        assert pair.backup.terminate() == 0
        Version.OLDER.of(pair.backup).start()
        wait_until(lambda: pair.backup.log.count("AMQ221031") == 2, what="the backup is announced")
        work.goes_on()
        assert pair.live.terminate() == 0
        pair.backup.wait_serving()
        work.goes_on()
        Version.OLDER.of(pair.live).start().wait_serving()
        wait_until(lambda: not accepts(pair.backup.port), what="the backup is passive again")
        work.goes_on()


@pytest.mark.skipif(HAVE_ONE_SCHEMA, reason="the older version knows the newer one's schema")
def test_an_older_node_does_not_start_on_a_newer_schema(pair: Pair) -> None:
    """It says why and ends with 78, so that nothing starts it again."""
    assert Version.NEWER.run("db", "upgrade", "--url", pair.live.url).returncode == 0
    assert Version.OLDER.of(pair.live).start().exit_code() == 78
    assert DOES_NOT_KNOW in pair.live.log


def test_the_schema_is_upgraded_beside_an_older_node_at_work(pair: Pair) -> None:
    """An older node goes on to serve; a newer one takes over from it later and delivers all."""
    Version.OLDER.of(pair.live).start().wait_serving()
    url = pair.live.url
    with Producer(pair.ports, QUEUE) as producer:
        producer.wait_receipts(100)
        assert Version.NEWER.run("db", "current", "--url", url).returncode == (not HAVE_ONE_SCHEMA)
        upgraded = Version.NEWER.run("db", "upgrade", "--url", url)
        assert upgraded.returncode == 0, upgraded.stderr
        assert Version.NEWER.run("db", "current", "--url", url).returncode == 0
        producer.wait_receipts(100)
        Version.NEWER.of(pair.backup).start().wait_log("AMQ221031")
        producer.wait_receipts(100)
        assert pair.live.terminate() == 0
        pair.backup.wait_serving()
        producer.wait_receipts(100)
        receive_all(pair.backup.port, QUEUE, producer.finish())
