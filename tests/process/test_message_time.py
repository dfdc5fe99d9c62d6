"""What messages expire by, and are stamped with: the database's clock."""

import shutil
import struct
import time
from pathlib import Path

import pytest

from orthia.broker.client.connection import BrokerAddress, Connection, ServerFrame
from orthia.config.settings import Role
from tests.chaos.nodes import build_stepped_clock
from tests.conftest import Servers
from tests.process.nodes import cluster
from tests.support.servers import SERVER_NAMES, url_with_password
from tests.support.waiting import wait_until

pytestmark = pytest.mark.extended

HOUR_NS = 3_600_000_000_000


def messages(client: Connection, count: int) -> dict[bytes, ServerFrame]:
    """Return the next MESSAGEs by their bodies, however many come at once."""
    found: dict[bytes, ServerFrame] = {}

    def has_all() -> bool:
        found.update(
            (frame.body, frame) for frame in client.exchange(0.1) if frame.command == "MESSAGE"
        )
        return len(found) >= count

    wait_until(has_all, what=f"{count} MESSAGEs come")
    return found


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler to step a clock with")
@pytest.mark.parametrize("dbms", SERVER_NAMES)
@pytest.mark.parametrize("hours", [1, -1])
def test_a_node_whose_clock_is_wrong_expires_messages_in_time(
    dbms: str, hours: int, shared_servers: Servers, tmp_path: Path
) -> None:
    """An hour ahead it keeps what has a minute to live; an hour behind it delivers nothing old."""
    server = shared_servers(dbms)
    settings = server.settings(server.create_database())
    step = tmp_path / "step"
    step.write_bytes(struct.pack("=q", hours * HOUR_NS))
    with cluster(url_with_password(settings), tmp_path) as nodes:
        node = nodes.node(Role.LIVE, "live")
        node.environment = {
            "LD_PRELOAD": str(build_stepped_clock(tmp_path)),
            "ORTHIA_CHAOS_CLOCK": str(step),
        }
        node.start().wait_serving()
        address = BrokerAddress("127.0.0.1", node.port)
        client = Connection.open(address, timeout_seconds=120, heart_beat_ms=0)
        now_ms = time.time_ns() // 1_000_000
        for text, left_ms in (("old", -60_000), ("fresh", 600_000)):
            headers = {"destination": "/queue/a", "expires": str(now_ms + left_ms)}
            client.send("SEND", headers, text.encode())
        for number, queue in enumerate(("a", "ExpiryQueue")):
            headers = {"id": str(number), "destination": f"/queue/{queue}", "ack": "auto"}
            client.send("SUBSCRIBE", headers)
        found = messages(client, 2)
        client.close()
    assert found[b"old"].headers["_AMQ_ORIG_QUEUE"] == "a"
    assert "_AMQ_ORIG_QUEUE" not in found[b"fresh"].headers
    assert abs(int(found[b"fresh"].headers["timestamp"]) - now_ms) < 300_000
