"""``orthia queue delete`` and a pair of real processes."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from orthia.broker.cli.app import orthia
from tests.conftest import Servers
from tests.process.clients import Consumer, Producer, receive_all
from tests.process.takeover_pairs import Pair, pair_on

pytestmark = pytest.mark.extended


@pytest.fixture(params=["files", "sqlite"])
def pair(request: pytest.FixtureRequest, shared_servers: Servers, tmp_path: Path) -> Iterator[Pair]:
    """Give a live node that serves and its backup."""
    with pair_on(request.param, "", shared_servers, tmp_path) as nodes:
        yield nodes


def arguments(pair: Pair, *more: str) -> list[str]:
    """Return the command's arguments for both nodes, as an operator gives them."""
    brokers = [option for node in pair for option in ("--broker", f"127.0.0.1:{node.port}")]
    return ["queue", "delete", *brokers, "--json", *more]


def delete(pair: Pair, *more: str) -> Result:
    """Run the command."""
    return CliRunner().invoke(orthia, arguments(pair, *more))


def test_queues_are_deleted_from_a_running_pair(pair: Pair) -> None:
    """What is used stays unless it is forced; what is gone stays gone after a takeover."""
    live, backup = pair
    with Producer([live.port], "/queue/doomed") as producer:
        producer.wait_receipts(1_200)
        doomed = producer.finish()
    with Producer([live.port], "/queue/kept") as producer:
        producer.wait_receipts(100)
        kept = producer.finish()
    Consumer(live.port, "/queue/empty").close()
    found = delete(pair, "doomed", "empty", "never")
    assert found.exit_code == 1
    said = json.loads(found.stdout)
    assert said["deleted"] == {"empty": 0}
    assert f"has {len(doomed)} messages" in said["refused"]["doomed"]
    assert "no queue 'never'" in said["refused"]["never"]
    found = delete(pair, "--force", "doomed")
    assert found.exit_code == 0
    assert json.loads(found.stdout)["deleted"] == {"doomed": len(doomed)}
    live.kill()
    backup.wait_serving()
    found = delete(pair, "doomed", "empty")
    assert list(json.loads(found.stdout)["refused"]) == ["doomed", "empty"]
    receive_all(backup.port, "/queue/kept", kept)
    with Producer([backup.port], "/queue/doomed") as producer:
        producer.wait_receipts(10)
        receive_all(backup.port, "/queue/doomed", producer.finish())
    assert backup.is_running


def test_a_deletion_that_a_takeover_interrupts_is_done_by_the_next_node(pair: Pair) -> None:
    """Whenever the live node dies, the command asks the other, and nothing comes back."""
    live, backup = pair
    with Producer([live.port], "/queue/doomed") as producer:
        producer.wait_receipts(3_000)
        producer.finish()
    command = [sys.executable, "-m", "orthia.broker.cli", *arguments(pair, "--force", "doomed")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as deleting:
        assert deleting.stderr is not None
        assert deleting.stdout is not None
        assert any("connected to" in line for line in iter(deleting.stderr.readline, ""))
        live.kill()
        said = json.loads(deleting.stdout.read())
        told = deleting.stderr.read()
    assert (deleting.returncode, said["refused"]) == (0, {}), told
    backup.wait_serving()
    assert "doomed" in json.loads(delete(pair, "doomed").stdout)["refused"]
    consumer = Consumer(backup.port, "/queue/doomed")
    with Producer([backup.port], "/queue/doomed") as producer:
        producer.wait_receipts(1)
        sent = producer.finish()
    consumer.wait_for(lambda one: len(one.order) == len(sent), "what was sent since")
    consumer.close()
