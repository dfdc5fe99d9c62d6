"""A node with TLS, and clients that speak it."""

import ssl
from dataclasses import dataclass

from tests.hostile.node import CONNECT, LimitedNode, Witness
from tests.websocket.client import WebSocketClient
from tests.websocket.test_upgrade import head


@dataclass
class TlsNode:
    """A node with TLS, and who trusts it."""

    node: LimitedNode
    context: ssl.SSLContext

    def open(self) -> ssl.SSLSocket:
        """Open a socket and do the handshake."""
        client = self.context.wrap_socket(self.node.open(), server_hostname="localhost")
        return self.node.sockets.enter_context(client)

    def connect(self) -> ssl.SSLSocket:
        """Log in by STOMP."""
        client = self.open()
        client.sendall(CONNECT)
        assert client.recv(4096).startswith(b"CONNECTED")
        return client

    @property
    def log(self) -> str:
        """What the node has logged."""
        return self.node.log

    def upgraded(self) -> ssl.SSLSocket:
        """Begin a WebSocket, and go on with what is below it."""
        client = self.open()
        client.sendall(head())
        assert client.recv(4096).startswith(b"HTTP/1.1 101 ")
        return client

    def logged_in(self) -> ssl.SSLSocket:
        """Log in by a WebSocket."""
        client = self.open()
        WebSocketClient(client).connect()
        return client

    def witness(self) -> Witness:
        """Return an ordinary client."""
        return Witness(self)
