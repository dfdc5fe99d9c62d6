"""What messages expire by, and are stamped with: the database's clock."""

import shutil
import time
from pathlib import Path

import pytest

from orthia.config.settings import Role
from tests.chaos.nodes import SteppedClock
from tests.conftest import Servers
from tests.process.clients import Client
from tests.process.nodes import cluster
from tests.support.servers import SERVER_NAMES, url_with_password

pytestmark = pytest.mark.extended

HOUR_SECONDS = 3_600


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler to step a clock with")
@pytest.mark.parametrize(
    ("dbms", "hours"), [(dbms, (-1) ** number) for number, dbms in enumerate(SERVER_NAMES)]
)
def test_a_node_whose_clock_is_wrong_expires_messages_in_time(
    dbms: str, hours: int, shared_servers: Servers, tmp_path: Path
) -> None:
    """An hour ahead it keeps what has a minute to live; an hour behind it delivers nothing old."""
    server = shared_servers(dbms)
    settings = server.settings(server.create_database())
    clock = SteppedClock.built(tmp_path)
    clock.step(hours * HOUR_SECONDS)
    with cluster(url_with_password(settings), tmp_path) as nodes:
        node = nodes.node(Role.LIVE, "live")
        node.environment = clock.environment
        node.start().wait_serving()
        now_ms = time.time_ns() // 1_000_000
        client = Client(node)
        for text, left_ms in (("old", -60_000), ("fresh", 600_000)):
            client.send("a", text, expires=str(now_ms + left_ms))
        client.subscribe("a")
        client.subscribe("ExpiryQueue")
        found = {frame.body: frame for frame in client.waits(2)}
        client.close()
    assert found[b"old"].headers["_AMQ_ORIG_QUEUE"] == "a"
    assert "_AMQ_ORIG_QUEUE" not in found[b"fresh"].headers
    assert abs(int(found[b"fresh"].headers["timestamp"]) - now_ms) < 300_000
