"""Jobs beside a real pair whose clients go on, through a takeover."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from sqlalchemy import MetaData, func, select
from typing_extensions import override

from orthia.broker.client.connection import BrokerAddress, Connection, ConnectionLost
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database
from orthia.journal.sql.tables import messages_table
from orthia.pipeline.jobs import audit
from orthia.pipeline.sources.inputs import StoreInputs
from orthia.pipeline.sources.store import StoreReference
from tests.cli.conftest import Run, run
from tests.pipeline.conftest import reference_to
from tests.process.clients import Consumer, Producer, take_all
from tests.process.nodes import Cluster, cluster
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.extended,
    pytest.mark.parametrize("server", ["postgresql"], indirect=True),
]

__all__ = ["run"]

LARGE = b"0123456789abcdef" * 20_000
_PAUSE_SECONDS = 0.1


@pytest.fixture
def nodes(store_url: str, tmp_path: Path) -> Iterator[Cluster]:
    """Give a cluster on a fresh database of each DBMS."""
    with cluster(store_url, tmp_path) as of_nodes:
        yield of_nodes


def opened(port: int) -> Connection:
    """Return a connection that bears a node which is silent: a machine may stand still."""
    address = BrokerAddress("127.0.0.1", port)
    return Connection.open(address, timeout_seconds=60, heart_beat_ms=0)


class Uploads(threading.Thread):
    """Sends large messages, each beside a small one in a transaction, and takes the oldest."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._port = port
        self.stopping = threading.Event()
        self.taken = 0

    def run(self) -> None:
        """Send and take until it is told to stop, or the node is gone."""
        client = opened(self._port)
        with suppress(OSError, ConnectionLost), closing(client):
            headers = {"id": "1", "destination": "/queue/large", "ack": "client-individual"}
            client.send("SUBSCRIBE", headers)
            number = 0
            while not self.stopping.is_set():
                number += 1
                name = {"transaction": f"{number}"}
                client.send("BEGIN", name)
                for destination, body in (("/queue/large", LARGE), ("/queue/small", b"small")):
                    client.send("SEND", name | {"destination": destination}, body)
                client.send("COMMIT", name)
                # What was sent last always waits.
                while self.taken < number - 1:
                    for frame in client.exchange(0.1):
                        client.send("ACK", {"id": frame.headers["ack"]})
                        self.taken += 1
                self.stopping.wait(_PAUSE_SECONDS)


class Midway(StoreInputs):
    """Inputs of which the bindings are read when something has happened.

    The messages were read before, so all that clients did meanwhile looks wrong at first.
    """

    def __init__(
        self, spark: SparkSession, reference: StoreReference, happen: Callable[[], None]
    ) -> None:
        super().__init__(spark, reference)
        self._happen = happen

    @override
    def audited(self, table: str, *, content: bool = True) -> DataFrame:
        if table == "bindings":
            self._happen()
        return super().audited(table, content=content)


def test_an_audit_beside_clients_finds_nothing(
    spark: SparkSession,
    store_settings: DatabaseStoreSettings,
    nodes: Cluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While messages, large ones too, come and go; and again while the live node is killed."""
    reference = reference_to(store_settings, monkeypatch)
    live, backup = nodes.pair()

    def clients_go_on() -> None:
        taken = uploads.taken
        producer.wait_receipts(1)
        wait_until(lambda: uploads.taken > taken, what="something is taken while the audit runs")

    def fail_over() -> None:
        live.kill()
        backup.wait_serving()

    # The audit wants the processor, too.
    ports = [live.port, backup.port]
    with Producer(ports, "/queue/orders", pause_seconds=_PAUSE_SECONDS / 20) as producer:
        uploads = Uploads(live.port)
        uploads.start()
        consumer = Consumer(live.port, "/queue/orders")
        producer.wait_receipts(50)
        wait_until(lambda: uploads.taken > 2, what="large messages come and go")
        found = audit.examined(Midway(spark, reference, clients_go_on))
        assert (found.counts, found.listed) == ({}, [])
        consumer.close()
        producer.wait_receipts(50)
        found = audit.examined(Midway(spark, reference, fail_over))
        assert (found.counts, found.listed) == ({}, [])
        assert sum(epoch["rows"] for epoch in found.epochs) >= 50
        producer.wait_receipts(50)
        producer.finish()
    uploads.stopping.set()
    uploads.join(240)
    assert not uploads.is_alive(), "the uploads do not end"
    backup.terminate()


@pytest.mark.usefixtures("spark")
def test_a_replay_goes_on_at_the_backup(
    run: Run, nodes: Cluster, store_url: str, store_settings: DatabaseStoreSettings, tmp_path: Path
) -> None:
    """From the pair's own store, through the pair whose live node is killed amid: each once."""
    live, backup = nodes.pair()
    total = 120
    client = opened(live.port)
    headers = {"destination": "/queue/DLQ"}
    for number in range(total):
        body = LARGE if number == total // 2 else b"message %d" % number
        client.send("SEND", headers | {"receipt": f"{number}", "number": f"{number}"}, body)
    receipts = 0

    def all_are_stored() -> bool:
        nonlocal receipts
        receipts += len(client.exchange(0.1))
        return receipts == total

    wait_until(all_are_stored, what="the messages are stored")
    client.close()

    def kill_amid() -> None:
        database = Database.from_settings(store_settings)
        table = messages_table(MetaData(), "MESSAGES", database.dialect)

        def some_are_sent() -> bool:
            with database.engine.connect() as connection:
                rows = connection.execute(select(func.count()).select_from(table)).scalar_one()
            return rows > total + 20

        try:
            wait_until(some_are_sent, timeout_seconds=120, what="some are sent")
            live.kill()
        finally:
            database.dispose()

    killer = threading.Thread(target=kill_amid)
    killer.start()
    arguments: list[Any] = ["--url", store_url, "--queue", "DLQ", "--to", "/queue/again"]
    arguments += ["--send", "--name", "again", "--checkpoint", tmp_path / "again.secret"]
    arguments += ["--chunk", "10", "--rate", "60", "--json", "-q"]
    for node in (live, backup):
        arguments += ["--broker", f"127.0.0.1:{node.port}"]
    result = run("pipeline", "replay", *arguments)
    killer.join(120)
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["messages"] == total
    assert not live.is_running
    # It was all sent before the node was killed if that came late.
    backup.wait_serving()
    frames = take_all(backup.port, "/queue/again")
    assert [int(frame.headers["number"]) for frame in frames] == list(range(total))
    assert [len(frame.body) for frame in frames if len(frame.body) > 100] == [len(LARGE)]
    again = run("pipeline", "replay", *arguments)
    assert json.loads(again.stdout)["sent"]["sent"] == 0, again.stdout
    backup.terminate()
