"""What docs/upgrading.md says of old and new nodes, tried with a checkout of an older version."""

import signal
from contextlib import closing

import pytest

from tests.process.clients import Producer, receive_all, take_all
from tests.process.nodes import accepts
from tests.support.amqp import AmqpConnection, send_all
from tests.support.servers import SERVER_NAMES
from tests.support.waiting import wait_until
from tests.upgrade.pair import DOES_NOT_KNOW, EITHER_FIRST, QUEUE, Pair, other
from tests.upgrade.versions import HAVE_ONE_RECORD, HAVE_ONE_SCHEMA, Version, newest_record
from tests.upgrade.work import at_work


# Not on SQLite: a process frozen in the middle of a batch has its file until it ends.
@pytest.mark.parametrize("server", SERVER_NAMES, indirect=True)
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


@pytest.mark.skipif(
    not HAVE_ONE_SCHEMA, reason="the older version does not know the newer one's schema"
)
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


@pytest.mark.skipif(
    not HAVE_ONE_SCHEMA or HAVE_ONE_RECORD,
    reason="the older version refuses the schema, or reads every message of the newer one",
)
def test_an_older_backup_refuses_messages_that_it_cannot_read(pair: Pair) -> None:
    """It says of which record version they are and ends with 74; a newer node has them all."""
    pair.start(Version.NEWER, Version.OLDER)
    texts = [f"text {number}" for number in range(20)]
    connection = AmqpConnection.open(pair.live.port, "upgrade")
    with closing(connection):
        send_all(connection, QUEUE.removeprefix("/queue/"), texts)
    pair.live.kill()
    assert pair.backup.exit_code() == 74
    newest = newest_record(Version.OLDER)
    assert f"messages are stored in record version {newest + 1} and this node" in pair.backup.log
    assert f"reads 1 to {newest}" in pair.backup.log
    Version.NEWER.of(pair.backup).start().wait_serving()
    assert [one.body.decode() for one in take_all(pair.backup.port, QUEUE)] == texts
