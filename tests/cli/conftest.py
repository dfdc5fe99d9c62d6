"""What the tests of the command line share."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from orthia.broker.cli.app import orthia

Run = Callable[..., Result]
"""Runs ``orthia`` with these arguments in this process."""


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
