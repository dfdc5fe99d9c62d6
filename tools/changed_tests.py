"""``python -m tools.changed_tests FILE...`` runs the tests of changed files, in a few minutes.

It runs the tests among the files, the tests that import a changed module themselves, and the tests
of the documents. Tests that start nodes, Spark or a whole simulation take long: unless they
changed, they are left to ``make test``.
"""

import ast
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
LONG = ("chaos", "clients", "hostile", "model", "pipeline", "process", "simulation", "upgrade")
"""Rooms of ``tests`` whose tests take minutes."""
ALWAYS = ("tests/test_imports.py", "tests/test_documents.py")
OF_DOCUMENTS = ("tests/config/test_reference.py", "tests/nodemanager/test_reference.py")
MAX_FILES = 40
"""If more test files than this import a changed module, run ``make test`` instead."""


def to_run(changed: Iterable[str], root: Path = ROOT) -> list[str]:
    """Return the files of the tests of ``changed``, all relative to ``root``."""
    found = {*ALWAYS, *OF_DOCUMENTS}
    modules = set()
    for path in changed:
        if path.startswith("tests/") and Path(path).name.startswith("test_"):
            found.add(path)
        elif path.endswith(".py"):
            place = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            modules.add(place if path.startswith(("tests/", "tools/")) else f"orthia.{place}")
    importing = {
        str(path.relative_to(root))
        for path in (root / "tests").rglob("test_*.py")
        if path.relative_to(root).parts[1] not in LONG and not modules.isdisjoint(_imported(path))
    }
    if len(importing) > MAX_FILES:
        print(f"{len(importing)} files of tests import what changed: run `make test`")
        importing = set()
    return sorted(one for one in found | importing if (root / one).is_file())


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


if __name__ == "__main__":
    import pytest

    raise SystemExit(pytest.main(["--quiet", *to_run(sys.argv[1:])]))
