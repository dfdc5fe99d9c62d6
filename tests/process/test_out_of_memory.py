"""A node that runs out of memory ends with exit code 74, and whoever comes next serves."""

import contextlib
from pathlib import Path

import pytest

from orthia.config.settings import Role
from tests.hostile.node import MIB, LimitedNode, Witness

pytestmark = pytest.mark.extended

SEND = b"SEND\ndestination:/queue/a\ntransaction:t\n\n" + b"x" * 90_000 + b"\0"
UNBOUNDED = {"max_transaction_bytes": 4096 * MIB, "max_client_bytes": 4096 * MIB}


def node_with_wide_limits(directory: Path) -> LimitedNode:
    """Start a node that lets a client take more memory than there will be."""
    url = f"jdbc:sqlite:{directory / 'orthia.db'}"
    node = LimitedNode(Role.LIVE, url, directory, "live", limits=UNBOUNDED)
    node.start().wait_serving()
    return node


def test_a_node_without_memory_ends(tmp_path: Path) -> None:
    """Whatever could not be had: it neither goes on half alive, nor keeps the lease."""
    node = successor = node_with_wide_limits(tmp_path)
    try:
        Witness(node).is_served()
        client = node.connect()
        client.sendall(b"BEGIN\ntransaction:t\n\n\0")
        node.limit_memory(48 * MIB)
        with contextlib.suppress(OSError):
            while node.is_running:
                client.sendall(SEND)
        assert node.exit_code() == 74
        assert "the node ran out of memory" in node.log
        # Its lease ends with its process: the next one serves.
        successor = node_with_wide_limits(tmp_path)
        Witness(successor).is_served()
    finally:
        for one in (node, successor):
            one.sockets.close()
            one.end()
