"""A peer that breaks the rules of AMQP, by the test driver of protonj2, which has its own codec."""

from pathlib import Path
from typing import Final

import pytest

from tests.clients.jms.java import RUNS_ALL, Program, missing, reason
from tests.process.file_nodes import file_cluster

pytestmark = [
    pytest.mark.extended,
    pytest.mark.timeout(900),
    pytest.mark.skipif(missing("driver") or not RUNS_ALL, reason=reason("test-amqp")),
]
SEQUENCES: Final = 25


def test_each_breach_is_answered_by_its_error_and_the_node_goes_on(tmp_path: Path) -> None:
    """Of connections, sessions, links, deliveries and transactions; nothing is in the log of it."""
    peer = Program("driver", tmp_path)
    with file_cluster(tmp_path) as cluster:
        node = cluster.alone()
        peer.start("Hostile", str(node.port))
        lines = peer.end(600)
        assert "Traceback" not in node.log, node.log
    assert not [line for line in lines if line.startswith("failed ")], "\n".join(lines)
    assert len([line for line in lines if line.startswith("passed ")]) == SEQUENCES, lines
