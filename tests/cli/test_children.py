"""Child processes of ``pair`` and ``demo``: relayed, told apart when they die, and ended."""

import os

import pytest

from orthia.broker.cli.children import Child, children, how_it_ended, store_arguments
from orthia.config.settings import Role
from orthia.config.urls import DatabaseUrl
from tests.support.waiting import wait_until


class Watcher(Child):
    """A child that runs until it is ended: not a node, but a process of the same program."""

    lines: list[str]

    @property
    def command(self) -> list[str]:
        """Watch a store."""
        return ["status", *self.options, "--watch", "--json"]


def watcher(role: Role, sqlite_url: str) -> Watcher:
    """Return a child that was not started yet."""
    lines: list[str] = []
    child = Watcher(role, 0, ["--url", sqlite_url], lambda _, line: lines.append(line))
    child.lines = lines
    return child


def started(*nodes: Watcher) -> None:
    """Start children and wait until each has printed something."""
    for node in nodes:
        node.start()
    for node in nodes:
        wait_until(lambda node=node: bool(node.lines), what="the child prints a line")  # type: ignore[misc]


def test_children_end_with_the_block_whatever_happens(sqlite_url: str) -> None:
    """No node outlives the command that started it, also when that fails."""
    nodes = [watcher(role, sqlite_url) for role in Role]

    def fail_midway() -> None:
        with children(*nodes):
            started(*nodes)
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        fail_midway()
    for node in nodes:
        assert node.exit_code is not None
        with pytest.raises(ProcessLookupError):
            os.kill(node.running.pid, 0)


def test_a_password_does_not_stand_in_a_command_line() -> None:
    """A child gets the database's password in its environment."""
    options, environment = store_arguments(DatabaseUrl.parse("postgresql://u:hunter2@h/d"))
    assert options[0] == "--url"
    assert "hunter2" not in " ".join(options)
    assert environment == {"ORTHIA_JDBC_PASSWORD": "hunter2"}


@pytest.mark.parametrize(("code", "text"), [(74, "exited with 74"), (-9, "was killed by signal 9")])
def test_an_end_in_words(code: int, text: str) -> None:
    """An exit code and a signal are told apart."""
    assert how_it_ended(code) == text
