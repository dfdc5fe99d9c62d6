"""What the tests of TLS share: the command line, and an authority."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from orthia.broker.cli.app import orthia
from tests.support.certificates import Authority

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
def authority(tmp_path: Path) -> Authority:
    """Give one whose certificate is in ``ca.pem``."""
    return Authority(tmp_path / "ca.pem")
