"""What the tests of the command line share."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from orthia.broker.cli.app import orthia
from orthia.config.loader import load
from orthia.config.security_settings import User
from orthia.config.user_files import read_users

Run = Callable[..., Result]
"""Runs ``orthia`` with these arguments in this process."""
PROGRAM = (sys.executable, "-m", "orthia.broker.cli")


def finished(
    *arguments: str | bytes, given: bytes = b"", cwd: Path | None = None, **environment: str
) -> "subprocess.CompletedProcess[bytes]":
    """Run ``orthia`` as a process, with ``given`` as its input, and return how it ended."""
    return subprocess.run(
        [*PROGRAM, *arguments],
        input=given,
        env={**os.environ, **environment},
        cwd=cwd,
        capture_output=True,
        timeout=120,
        check=False,
    )


def all_commands(
    command: click.Command = orthia, words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield every command with the words it is typed with, the groups too."""
    yield words, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from all_commands(child, (*words, name))


def users_of(file: Path) -> dict[str, User]:
    """Return the users in the files that a broker.xml names."""
    module = load(file).properties_login_module
    assert module is not None
    return {one.name: one for one in read_users(module)}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Give a function that runs ``orthia`` in an empty directory."""
    monkeypatch.chdir(tmp_path)

    def invoke(*arguments: object, environment: dict[str, str] | None = None) -> Result:
        texts = [str(argument) for argument in arguments]
        return CliRunner().invoke(orthia, texts, prog_name="orthia", env=environment)

    return invoke


@pytest.fixture
def sqlite_url(tmp_path: Path, run: Run) -> str:
    """Give the URL of a store that has its schema and nothing else."""
    url = f"sqlite:///{tmp_path / 'orthia.db'}"
    assert run("db", "upgrade", "--url", url).exit_code == 0
    return url
