"""Large messages over WebSocket, with a real node: sent as they are read from the store."""

from pathlib import Path

from tests.hostile.node import live_node
from tests.websocket.client import WebSocketClient


def test_a_large_message_is_one_message_of_the_websocket(tmp_path: Path) -> None:
    """Binary also to a client of text, since its first part leaves before the rest is read."""
    body = b"all of it is text " * 30_000
    # Before either says CONNECT both are opened.
    with live_node(tmp_path, connect_timeout=600_000) as node:
        client, other = (WebSocketClient(node.open()) for _ in range(2))
        client.connect()
        other.connect()
        send = f"SEND\ndestination:/queue/a\nreceipt:r\ncontent-length:{len(body)}\n\n"
        other.send(send.encode(), is_last=False)
        for start in range(0, len(body), 60_000):
            other.send(body[start : start + 60_000], is_last=False)
        other.send(b"\0")
        assert other.text() == "RECEIPT\nreceipt-id:r\n\n\0"
        client.send("SUBSCRIBE\nid:1\ndestination:/queue/a\n\n\0")
        message = client.message()
        assert isinstance(message, bytes)
        assert message.startswith(b"MESSAGE\n")
        assert message.endswith(b"\n\n" + body + b"\0")
        client.send("DISCONNECT\nreceipt:bye\n\n\0")
        assert client.text() == "RECEIPT\nreceipt-id:bye\n\n\0"
