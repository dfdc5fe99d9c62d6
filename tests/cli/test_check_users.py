"""What ``check`` and a node say where no client can log in."""

import json
from pathlib import Path

import pytest

from orthia.broker.node.exit_codes import ExitCode
from tests.cli.conftest import Run

_FILE = """<configuration xmlns="urn:activemq"><core xmlns="urn:activemq:core">
<acceptors><acceptor name="stomp">tcp://127.0.0.1:0?protocols=STOMP</acceptor></acceptors>{core}
</core></configuration>"""
_LINE = '<login-modules xmlns="urn:orthia"><properties-login-module/></login-modules>'


def _write(directory: Path, core: str = "") -> Path:
    file = directory / "broker.xml"
    file.write_text(_FILE.format(core=core))
    return file


def test_check_fails_where_nobody_could_log_in(run: Run, tmp_path: Path) -> None:
    """And says which line to add; with it, and a user, it is content."""
    file = _write(tmp_path)
    result = run("check", file)
    assert result.exit_code == ExitCode.CONFIGURATION
    last = result.stderr.rstrip().splitlines()[-1]
    assert last.startswith(f"{file}: no client can log in: security is enabled, and there are")
    assert _LINE in last
    found = json.loads(run("check", file, "--json").stdout)
    assert not found["valid"]
    assert found["problems"][0].startswith("no client can log in")

    _write(tmp_path, _LINE)
    added = run(
        *("user", "add", "alice", "--role", "amq", "--config", file),
        environment={"ORTHIA_PASSWORD": "s3cret"},
    )
    assert added.exit_code == 0, added.output
    result = run("check", file)
    assert result.exit_code == 0, result.stderr
    assert "no client can log in" not in result.stderr


@pytest.mark.parametrize(
    "core", ["", "<security-enabled>false</security-enabled>", "guest", "empty"]
)
def test_check_knows_who_could_log_in(run: Run, tmp_path: Path, core: str) -> None:
    """By files of Artemis that have a user, or by none where everybody may; guests count."""
    file = _write(tmp_path, core if core.startswith("<") else "")
    if not core.startswith("<"):
        (tmp_path / "artemis-users.properties").write_text("" if core == "empty" else "a = b\n")
        (tmp_path / "artemis-roles.properties").write_text("")
    if core == "guest":
        (tmp_path / "artemis-users.properties").write_text("")
        (tmp_path / "login.config").write_text(
            "activemq { org.apache.activemq.artemis.spi.core.security.jaas.GuestLoginModule"
            " required; };"
        )
    result = run("check", file)
    if core != "empty":
        assert result.exit_code == 0, result.stderr
        return
    assert result.exit_code == ExitCode.CONFIGURATION
    assert f"{tmp_path / 'artemis-users.properties'} has no user that could" in result.stderr


def test_check_knows_for_whom_rows_of_the_outbox_are_sent(run: Run, tmp_path: Path) -> None:
    """A node waits for that user; a check says by line and element that there is none."""
    store = (
        '<store><database-store xmlns="urn:activemq:core"><jdbc-connection-url>sqlite:///x.db'
        "</jdbc-connection-url></database-store></store>"
    )
    outbox = '\n<outbox xmlns="urn:orthia">\n  <user>applications</user>\n</outbox>'
    file = _write(tmp_path, _LINE + store + outbox)

    def add(name: str) -> None:
        added = run(
            *("user", "add", name, "--role", "amq", "--config", file),
            environment={"ORTHIA_PASSWORD": "s3cret"},
        )
        assert added.exit_code == 0, added.output

    add("alice")
    result = run("check", file)
    assert result.exit_code == ExitCode.CONFIGURATION
    said = f"{file}:4: <user>: is 'applications', and there is no user of this name"
    assert said in result.stderr
    assert json.loads(run("check", file, "--json").stdout)["problems"][0].startswith(said)
    add("applications")
    assert run("check", file).exit_code == 0
    off = "<security-enabled>false</security-enabled>"
    _write(tmp_path, off + store + outbox.replace("applications", "anybody"))
    assert run("check", file).exit_code == 0
