"""What a node says and leaves when its activation ends in an error."""

import sqlite3
import threading
from pathlib import Path

import pytest

from orthia import config
from orthia.broker.node.exit_codes import ExitCode
from orthia.broker.node.node import BrokerNode
from orthia.config.errors import OrthiaError
from orthia.database import PermanentStoreError


def _node(directory: Path) -> BrokerNode:
    path = directory / "broker.xml"
    path.write_text(
        '<configuration xmlns="urn:activemq"><core xmlns="urn:activemq:core"><name>a</name>'
        f"<store><database-store><jdbc-connection-url>jdbc:sqlite:{directory / 'store.db'}"
        "</jdbc-connection-url></database-store></store>"
        "<security-enabled>false</security-enabled><acceptors>"
        "<acceptor>tcp://127.0.0.1:0</acceptor></acceptors></core></configuration>"
    )
    return BrokerNode(config.load(path))


def test_a_live_node_that_cannot_open_is_on_its_way_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """State L and no holder: a backup takes over at once, instead of after an expiration."""

    def refuse(*_: object) -> None:
        raise OrthiaError("it cannot be opened")

    node = _node(tmp_path)
    monkeypatch.setattr(node._shell, "_load", refuse)
    assert node.run() == ExitCode.SOFTWARE
    assert "failed to start server: it cannot be opened" in caplog.messages
    with sqlite3.connect(tmp_path / "store.db") as store:
        rows = dict(store.execute("SELECT id, coalesce(state, holder_id) FROM NODE_MANAGER_STORE"))
    store.close()
    assert rows[0] == "L"
    assert rows[1] is None


def test_a_node_that_serves_does_not_fail_to_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A row of its store that somebody deletes is a critical error of a node that serves."""

    def serve(*_: object, **__: object) -> None:
        raise PermanentStoreError("row 4 is gone")

    node = _node(tmp_path)
    monkeypatch.setattr(node._shell, "_serve", serve)
    ended = threading.Event()
    monkeypatch.setattr(node._shell, "end_process", ended.set)
    monkeypatch.setattr(node, "_end_process", lambda: None)
    assert node.run() == ExitCode.IO_ERROR
    assert "critical IO error, shutting down the server: row 4 is gone" in caplog.messages
    assert not [one for one in caplog.messages if "failed to start" in one]
    assert ended.wait(60), "its end, which is patched here, comes a moment later"
