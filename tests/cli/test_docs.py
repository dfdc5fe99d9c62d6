"""``docs``: the documentation from the command line."""

from pathlib import Path

import pytest

from orthia.broker.cli import docs as module
from tests.cli.conftest import Run

_ROOT = Path(__file__).parents[2]


def test_the_pages_are_listed_with_their_titles(run: Run) -> None:
    """Every page has one."""
    lines = run("docs").stdout.splitlines()[1:]
    titles = dict(line.split(maxsplit=1) for line in lines)
    assert titles["systemd"] == "Running under systemd"
    assert {path.stem for path in (_ROOT / "docs").glob("*.md")} <= titles.keys()


def test_a_page_is_shown_as_it_is(run: Run) -> None:
    """With or without its suffix."""
    text = (_ROOT / "docs" / "cli.md").read_text()
    assert run("docs", "cli").stdout == run("docs", "cli.md").stdout == text


def test_a_page_that_is_not_there_is_named(run: Run) -> None:
    """The error says where to look."""
    result = run("docs", "nothing")
    assert result.exit_code == 64
    assert "there is no page 'nothing'; `orthia docs` lists them" in result.stderr


def test_without_pages_it_is_told_how_to_have_them(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The modules alone are no installation."""
    monkeypatch.setattr(module, "__file__", str(tmp_path / "a" / "b" / "docs.py"))
    monkeypatch.setattr(module, "files", lambda _: None)
    result = run("docs")
    assert result.exit_code == 69
    assert "install Orthia from its wheel or a checkout" in result.stderr
