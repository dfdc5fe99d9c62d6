"""The control file of a compaction: what replaces what, and carrying that out.

Only its name says whether the compaction happened. Once it exists, the old and the new files are
handled as it says, by any node and after any number of failures; nothing else may be done to them
before, or the control file would no longer be true.
"""

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orthia.journal.errors import JournalDamaged
from orthia.journal.file import disk
from orthia.journal.file.format import Kind

UNFINISHED: Final = ".tmp"
COMPACTED: Final = ".cmp"
CONTROL: Final = ".ctr"


def under_way(path: Path, generation: int, suffix: str) -> Path:
    """Return what a file is called before it is ``path``.

    Each generation has names of its own: a stopped process that goes on with a step meets neither
    the files of its successor's steps nor their names.
    """
    return path.with_name(f"{path.name}.{generation}{suffix}")


@dataclass(frozen=True)
class Control:
    """What a compaction that is being published replaces with what."""

    path: Path
    generation: int
    new: list[int]
    old: list[int]

    def unfinished(self, path: Path) -> Path:
        """Return what a compacted file is called before it is ``path``."""
        return under_way(path, self.generation, COMPACTED)


def control_path(directory: Path, kind: Kind, generation: int, file_id: int) -> Path:
    """Return where a compaction is published; ``file_id`` tells it from others."""
    return under_way(directory / f"{kind.prefix}-{file_id}", generation, CONTROL)


def write_control(path: Path, control: Control) -> None:
    """Publish a compaction: from here on it is carried out, whoever does it. Raises OSError.

    It may be published though this raises, if the file is there.
    """
    text = json.dumps(
        {"generation": control.generation, "new": control.new, "old": control.old}
    ).encode()
    unfinished = path.with_name(path.name + UNFINISHED)
    disk.create(unfinished, 0, text)
    try:
        disk.rename(unfinished, path)
    except OSError:
        disk.remove(unfinished)
        raise


def read_control(path: Path) -> Control:
    """Read a control file; raises JournalDamaged, or FileNotFoundError if it is gone."""
    try:
        document = json.loads(path.read_bytes())
        return Control(path, document["generation"], document["new"], document["old"])
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise JournalDamaged(f"the control file {path} of a compaction is damaged") from error


def read_controls(directory: Path, kind: Kind, complete: int) -> list[Control]:
    """Return what the writer of the ``complete`` generation has published; raises JournalDamaged.

    A control file of an earlier writer was published after its successor had begun: it is void.
    """
    controls = []
    for path in sorted(directory.glob(f"{kind.prefix}-*{CONTROL}")):
        # A file that has vanished was carried out meanwhile.
        with contextlib.suppress(FileNotFoundError):
            controls.append(read_control(path))
    return [control for control in controls if control.generation == complete]


def publish_outputs(directory: Path, kind: Kind, control: Control) -> None:
    """Give the compacted files their names; raises OSError, and may be repeated then."""
    # The publication must be durable before anything relies on it.
    disk.sync_directory(directory)
    for file_id in control.new:
        path = directory / kind.file_name(file_id)
        unfinished = control.unfinished(path)
        if unfinished.exists():
            disk.rename(unfinished, path)
    disk.sync_directory(directory)


def retire_replaced(directory: Path, kind: Kind, control: Control) -> None:
    """Remove what was compacted, and at last the control file; raises OSError.

    It may be repeated then.
    """
    for file_id in control.old:
        disk.remove(directory / kind.file_name(file_id))
    disk.sync_directory(directory)
    disk.remove(control.path)
    disk.sync_directory(directory)


def missing_outputs(directory: Path, kind: Kind, control: Control) -> list[Path]:
    """Return the compacted files that are there under neither of their names."""
    paths = [directory / kind.file_name(file_id) for file_id in control.new]
    return [one for one in paths if not one.exists() and not control.unfinished(one).exists()]


def finish_compactions(directory: Path, kind: Kind, controls: Sequence[Control]) -> None:
    """Carry out what was published; raises OSError.

    Raises JournalDamaged if what was compacted is gone: what it replaces is kept.
    """
    for control in controls:
        for lost in missing_outputs(directory, kind, control):
            raise JournalDamaged(
                f"{control.path} says that {lost.name} replaces other files, and there is no"
                f" {lost.name}; restore it, or have `orthia data recover` set"
                f" {control.path.name} aside, and keep what is left of the others"
            )
        publish_outputs(directory, kind, control)
        retire_replaced(directory, kind, control)
