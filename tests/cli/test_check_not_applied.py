"""What a file asks for and Orthia does not do, as ``check`` and the log of a node tell it."""

import json
from pathlib import Path

import pytest

from orthia import config
from orthia.broker.node.exit_codes import ExitCode
from orthia.broker.node.node import BrokerNode
from tests.cli.conftest import Run

_FILE = """<configuration xmlns="urn:activemq"><core xmlns="urn:activemq:core">
<persistence-enabled>false</persistence-enabled>
<security-enabled>false</security-enabled>
<acceptors><acceptor name="stomp">tcp://127.0.0.1:0?protocols=STOMP</acceptor></acceptors>
<bridges><bridge name="b"/></bridges>
</core></configuration>"""
_TOLD = ":5: bridges: messages stay on this node; nothing sends them on to another broker"


def test_check_tells_what_changes_what_happens(run: Run, tmp_path: Path) -> None:
    """After the settings, with the line, and what happens instead."""
    file = tmp_path / "broker.xml"
    file.write_text(_FILE)

    result = run("check", file)
    assert result.exit_code == 0
    last = result.stderr.rstrip().splitlines()
    assert "is valid, BUT THIS CHANGES WHAT HAPPENS TO YOUR MESSAGES" in last[-2]
    assert last[-1] == f"  {file}{_TOLD}"
    assert json.loads(run("check", file, "--json").stdout)["not_applied"] == [f"{file}{_TOLD}"]


def test_a_node_tells_it_when_it_starts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a line of its own for each, before the other warnings."""
    file = tmp_path / "broker.xml"
    file.write_text(_FILE)
    node = BrokerNode(config.load(file))
    node.request_stop()
    with caplog.at_level("WARNING"):
        assert node.run() == ExitCode.OK

    assert caplog.messages[0] == (
        f"THIS CHANGES WHAT HAPPENS TO YOUR MESSAGES: not applied: {file}{_TOLD}"
    )
