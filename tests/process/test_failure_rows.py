"""The table "Failure by failure" and the scenes that show it agree."""

import ast
import re
from pathlib import Path

from tests.process.failure_rows import SCENES

TESTS = Path(__file__).parent.parent
DOCUMENT = TESTS.parent / "docs" / "high-availability.md"


def rows() -> list[str]:
    """Return the first cell of each row of the table."""
    section = DOCUMENT.read_text().split("## Failure by failure", 1)[1].split("\n## ", 1)[0]
    cells = re.findall(r"^\| (.*?) \|", section, flags=re.MULTILINE)
    assert cells[0] == "What happens"
    return cells[1:]


def functions(path: Path) -> set[str]:
    """Return the names of a module's functions."""
    tree = ast.parse(path.read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def named_by(row: str) -> list[str]:
    """Return the names under which a row's scenes are listed: the longest beginnings."""
    fitting = [name for name in SCENES if row.startswith(name)]
    longest = max(map(len, fitting), default=0)
    return [name for name in fitting if len(name) == longest]


def test_every_row_has_its_scenes() -> None:
    """One entry for each row, in its order, and none for a row that is gone."""
    assert [named_by(row) for row in rows()] == [[name] for name in SCENES]


def test_every_scene_is_there() -> None:
    """A scene that is renamed or removed is missed here."""
    for scene in sorted({scene for scenes in SCENES.values() for scene in scenes}):
        path, _, name = scene.partition("::")
        assert name in functions(TESTS / path), scene
