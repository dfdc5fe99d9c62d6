"""A queue as a stream: each message once, and acknowledged once it is written."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from orthia.broker.client.connection import BrokerRefused
from orthia.broker.client.management import ManagementAddress, ManagementRefused
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.pipeline.errors import BadOption, StreamDetached
from orthia.pipeline.sources.store import StoreReference
from orthia.pipeline.subscription.node import NodeReference
from orthia.pipeline.subscription.reader import Offset, SubscriptionReader
from orthia.pipeline.subscription.source import SubscriptionSource
from tests.pipeline.subscription_trial import VICTIMS, run_rounds, trial
from tests.pipeline.support import ALL_AVAILABLE
from tests.process.clients import Client
from tests.process.nodes import NodeProcess, cluster, orthia, told
from tests.support.servers import free_port

pytestmark = pytest.mark.extended


@contextmanager
def served(directory: Path) -> Iterator[tuple[NodeProcess, str, str]]:
    """Give a live node, the URL of its store and that of its API."""
    url, port = f"sqlite:///{directory / 'orthia.db'}", free_port()
    with cluster(url, directory) as nodes:
        node = nodes.live(health=f"127.0.0.1:{port}").wait_serving()
        yield node, url, f"http://127.0.0.1:{port}"


def reader(
    url: str, api: str, *, fail_on_detached: bool = True, max_body: int = 0
) -> SubscriptionReader:
    """Return a reader of the queue ``orders``, as the data source makes it."""
    node = NodeReference((ManagementAddress.parse(api),), None, "NO_PASSWORD", 20)
    columns = ["seq", "body"]
    return SubscriptionReader(
        StoreReference(url=url),
        node,
        "orders",
        columns,
        fail_on_detached=fail_on_detached,
        max_body=max_body,
    )


def micro_batch(one: SubscriptionReader, start: Offset) -> tuple[list[bytes], Offset]:
    """Read what there is as Spark does; return the bodies, and where that ends."""
    end = one.latestOffset(start, ALL_AVAILABLE)
    parts = one.partitions(start, end)
    rows = [row for part in parts for batch in one.read(part) for row in batch.to_pylist()]
    return [row["body"] for row in rows], end


def test_a_stream_is_the_one_consumer_of_its_queue(tmp_path: Path) -> None:
    """Refused while others consume; then it alone reads, and what it wrote is acknowledged."""
    with (
        served(tmp_path) as (node, url, api),
        closing(Client(node)) as client,
        closing(Client(node)) as sender,
    ):
        client.send("orders", "one", "two")
        client.send("orders", "memory only", persistent="false")
        client.holds(3, "orders")
        stream = reader(url, api)
        start = stream.initialOffset()
        with pytest.raises(ManagementRefused, match="has 1 consumers and 3 messages that consumer"):
            micro_batch(stream, start)
        client.do("UNSUBSCRIBE", id="orders")
        bodies, place = micro_batch(stream, start)
        assert bodies == [b"one", b"two"]
        # Spark asks again for what it has not written.
        again = reader(url, api)
        assert micro_batch(again, start | {"stream": start["stream"]})[0] == bodies
        with pytest.raises(ManagementRefused, match="is read by stream"):
            micro_batch(other := reader(url, api), other.initialOffset())
        with pytest.raises(BrokerRefused, match="is read by stream"):
            client.holds(1, "orders")
        sender.send("orders", "three")
        told_by = stream.reportLatestOffset()
        assert told_by is not None
        assert told_by["messages"] == 4
        # Planning the next one acknowledges the one before it, though nobody said so.
        bodies, place = micro_batch(again, place)
        assert bodies == [b"three"]
        again.commit(place)
        assert told("queue", "show", "orders", "--management", api)["messages"] == 1
        orthia("queue", "detach", "orders", "--management", api)
        with pytest.raises(StreamDetached, match="is not read by the stream"):
            reader(url, api).latestOffset(place, ALL_AVAILABLE)
        went_on = reader(url, api, fail_on_detached=False)
        assert micro_batch(went_on, place) == ([], place)


def test_priorities_and_large_bodies_come_in_the_order_of_seq(tmp_path: Path) -> None:
    """A message of high priority does not overtake, a large body is whole; all is acknowledged."""
    large = "large body £ " * 40_000
    with served(tmp_path) as (node, url, api), closing(Client(node)) as client:
        client.send("orders", "first")
        client.send("orders", "urgent", priority="9")
        client.send("orders", large)
        client.send("orders", "patient", priority="0")
        stream = reader(url, api, max_body=2**24)
        bodies, place = micro_batch(stream, stream.initialOffset())
        assert bodies == [b"first", b"urgent", large.encode(), b"patient"]
        stream.commit(place)
        assert told("queue", "show", "orders", "--management", api)["messages"] == 0
        # A large body is NULL unless it is asked for.
        client.send("orders", large, "last", priority="9")
        assert micro_batch(reader(url, api), place)[0] == [None, b"last"]


def test_an_option_that_is_missing_or_makes_no_sense_is_refused() -> None:
    """By its name, before anything is asked."""
    given = {"url": "sqlite:///none.db", "queue": "orders", "api": "http://a:8161"}
    SubscriptionSource(given)
    for change, said in (
        ({"queue": ""}, "option queue"),
        ({"api": ""}, "option api: say where"),
        ({"api": "ftp://a"}, "is not http://HOST:PORT"),
        ({"ondetached": "maybe"}, "neither fail nor continue"),
        ({"startingtimestamp": "0"}, "reads all before it"),
        ({"since": "2026-01-01"}, "unknown option since"),
    ):
        with pytest.raises(BadOption, match=said):
            SubscriptionSource(given | change)


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("server", ["postgresql"], indirect=True)
def test_each_message_is_written_once_whoever_is_killed(
    store_settings: DatabaseStoreSettings, tmp_path: Path
) -> None:
    """Kill -9 of the live node, of the driver and of its executor, each amid the stream."""
    with trial(store_settings, tmp_path) as one:
        counted = run_rounds(one, list(VICTIMS))
    assert counted["messages"] >= counted["receipted"] > 0
