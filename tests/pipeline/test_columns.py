"""Columns that a version has written are there in all later ones, of the same type."""

import json
from pathlib import Path

import pytest

from tests.pipeline.freeze_columns import FROZEN, columns

VERSIONS = sorted(FROZEN.glob("*.json"))


def test_there_is_a_version_to_compare_with() -> None:
    """The files are found where the script writes them."""
    assert [path.stem for path in VERSIONS] == ["0.1.0"]


@pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.stem)
def test_columns_are_only_ever_added(version: Path) -> None:
    """Whoever reads exports and streams by name and type goes on after an upgrade.

    A column that is missing here was removed, renamed or has another type: give it back. The file
    is what was released; do not change it.
    """
    now = columns()
    for table, frozen in json.loads(version.read_text(encoding="utf-8")).items():
        kept = {name: now[table].get(name) for name in frozen}
        assert kept == frozen, f"{table}: columns of {version.stem} are not what they were"
