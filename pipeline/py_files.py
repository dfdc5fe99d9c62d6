"""The archive by which executors get Orthia with a job: ``--py-files`` of spark-submit."""

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).parent.parent
"""The package ``orthia``."""
_KINDS: Final = frozenset({".py", ".xsd", ".xml", ".properties", ".mako", ".java"})
"""Of files that modules import or read; machine code cannot be loaded from an archive."""
_SOURCES: Final = "pyspark_orthia_*.py"


def write_archive(path: Path) -> int:
    """Write Orthia and its registrations with Spark into ``path``; return the number of files.

    Raises OSError.
    """
    count = 0
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, name in _files():
            archive.write(file, name)
            count += 1
    return count


def _files() -> Iterator[tuple[Path, str]]:
    # In a checkout the rooms are links, which rglob does not follow.
    for room in sorted(_ROOT.iterdir()):
        found = sorted(room.rglob("*")) if room.is_dir() else [room]
        for file in found:
            if file.suffix in _KINDS:
                yield file, f"orthia/{file.relative_to(_ROOT)}"
    for file in sorted(_ROOT.parent.glob(_SOURCES)):
        yield file, file.name
