"""The rooms of ARCHITECTURE.md, and which of them may know which."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[1]
_KNOWS = {
    "config": set[str](),
    "database": {"config"},
    "migrations": {"config", "database"},
    "nodemanager": {"config", "database"},
    "journal": {"config", "database"},
    "pipeline": {"config", "database", "migrations", "nodemanager", "journal"},
    # The sink sends as the broker's own client does.
    "pipeline/sink": {"config", "pipeline", "broker"},
    "broker": {"config", "database", "migrations", "nodemanager", "journal"},
    "broker/cli/pipeline": {"config", "database", "nodemanager", "journal", "pipeline", "broker"},
}


def _room(path: Path) -> str:
    """Return the room a module is in."""
    place = path.relative_to(_ROOT).as_posix()
    return max((room for room in _KNOWS if place.startswith(f"{room}/")), key=len)


def _imported(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            yield node.lineno, node.module or ""


@pytest.mark.parametrize("top", [room for room in _KNOWS if "/" not in room])
def test_imports_point_one_way(top: str) -> None:
    """No room imports what ARCHITECTURE.md says it does not know."""
    strange = []
    for path in (_ROOT / top).rglob("*.py"):
        room = _room(path)
        for line, name in _imported(path):
            known = name.partition(".")[0]
            if known in _KNOWS and known != top and known not in _KNOWS[room]:
                strange.append(f"{path.relative_to(_ROOT)}:{line}: {room} imports {name}")
    assert not strange, "\n".join(strange)
