"""The options of a client's socket."""

import socket

_KEEP_ALIVE = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))
"""Detects clients that are gone, and agreed on no heart-beats, in two minutes, not two hours."""


def set_options(client: socket.socket) -> None:
    """Send frames without delay, and detect clients that are gone."""
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE:
        if hasattr(socket, name):  # not every system has them
            client.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
