"""Joram's conformance suite of JMS 1.1, run by qpid-jms at a node; of it a slice in test-all."""

from pathlib import Path
from typing import Final

import pytest

from tests.clients.jms.java import RUNS_ALL, Program, missing, reason
from tests.process.file_nodes import file_cluster

pytestmark = [
    pytest.mark.extended,
    pytest.mark.timeout(900),
    pytest.mark.skipif(missing("joram"), reason=reason("setup-test-all")),
]
SLICE: Final = {"MessageTypeTest": 14, "QueueSessionTest": 5, "SelectorTest": 14}
"""Classes of the suite, and how many tests they have."""
WHOLE: Final = 196


def test_the_conformance_suite_passes(tmp_path: Path) -> None:
    """Each of its tests passes: messages, selectors, sessions, transactions, temporary nodes."""
    classes = [] if RUNS_ALL else list(SLICE)
    suite = Program("joram", tmp_path)
    with file_cluster(tmp_path) as cluster:
        suite.start("Conformance", f"amqp://127.0.0.1:{cluster.alone().port}", *classes)
        lines = suite.end(600)
    failed = [line.replace("|", "\n") for line in lines if line.startswith("failed ")]
    assert not failed, "\n".join(failed)
    passed = [line for line in lines if line.startswith("passed ")]
    assert len(passed) == (WHOLE if RUNS_ALL else sum(SLICE.values())), lines
