"""@stomp/stompjs in Node, with a real node of Orthia."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orthia.config.settings import Role
from tests.hostile.node import LimitedNode, live_node
from tests.websocket.javascript_clients import NodeClient, needs_node

pytestmark = [pytest.mark.extended, needs_node]
SIZES = [10, 20_000, 400_000]
"""Characters of two bytes: in one frame of either side, in several to the client, a large one."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LimitedNode]:
    """Give a node that takes long frames."""
    directory = tmp_path_factory.mktemp("node")
    with live_node(directory, parameters=";webSocketMaxFramePayloadLength=1000000") as running:
        yield running


def options(node: LimitedNode, **client: Any) -> dict[str, Any]:
    """Return what a client is to do."""
    url = f"ws://127.0.0.1:{node.port}/stomp"
    return {"url": url, "queue": "/queue/js", "sizes": SIZES, "client": client}


@pytest.mark.parametrize(
    "client", [{}, {"forceBinaryWSFrames": True}, {"appendMissingNULLonIncoming": True}]
)
def test_it_sends_gets_and_acknowledges(node: LimitedNode, client: dict[str, Any]) -> None:
    """Texts short and long, and bytes that are no text, with heart-beats agreed on both ways."""
    with NodeClient(options(node, **client)) as running:
        seen = running.seen()
    assert seen.errors == []
    assert seen.messages == [["bytes", 256, True], *(["text", 2 * one, True] for one in SIZES)]
    assert (seen.version, seen.subprotocol) == ("1.2", "v12.stomp")
    assert seen.heartbeat == "60000,60000"
    assert seen.extensions == "", "compression was agreed on"
    assert seen.closes == [1000]


def test_it_may_split_its_frames(node: LimitedNode) -> None:
    """One frame of STOMP in many messages of WebSocket, as it does for brokers that want it so."""
    with NodeClient(options(node, splitLargeFrames=True, maxWebSocketChunkSize=1_000)) as running:
        seen = running.seen()
    assert [one[2] for one in seen.messages] == [True] * 4
    assert seen.errors == []


def test_it_is_told_to_go_elsewhere_when_the_node_stops(tmp_path: Path) -> None:
    """With 1001, as a page that is left tells a broker."""
    stopping = LimitedNode(
        Role.LIVE,
        f"jdbc:sqlite:{tmp_path / 'orthia.db'}",
        tmp_path,
        "live",
        parameters=";webSocketMaxFramePayloadLength=1000000",
    )
    try:
        stopping.start().wait_serving()
        with NodeClient({**options(stopping), "stays": True}) as running:
            running.is_ready()
            stopping.terminate()
            assert running.seen().closes == [1001]
    finally:
        stopping.end()
