"""The manifest of an export: ``_orthia.json``, the last file written into it.

It tells a later version what it reads, and the next incremental run where to begin. A reader may
rely on this:

- ``format`` grows when an older reader would misread an export; such a reader refuses it. An export
  without a manifest is of format 1.
- Within a format columns are only ever added. None is renamed, and none changes its type or what it
  means. A column that an export does not have is NULL; one that a reader does not know is left out.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final

from orthia.pipeline.errors import WrongInput

NAME: Final = "_orthia.json"
FORMAT: Final = 1
_RUN: Final = re.compile(r"seq-\d{19}-\d{19}")


@dataclass(frozen=True)
class Manifest:
    """An export, as its manifest describes it."""

    messages: int
    """The number of messages; one of several queues counts in each."""
    corrupt: int
    """How many of them cannot be read; the column ``corrupt`` says why."""
    after_seq: int = 0
    """The highest ``seq`` of an earlier run; 0 if this is no incremental run."""
    through_seq: int | None = None
    """The highest ``seq`` of this run; None if it is no incremental one."""
    node_id: str | None = None
    """Of the pair."""
    queues: Sequence[str] = ()
    """Only these queues, if there are any."""
    since: str | None = None
    until: str | None = None
    taken_at: str | None = None
    """The database's time when the export began, in ISO 8601; None in one of an older Orthia."""
    version: str | None = None
    """Of Orthia."""
    format: int = FORMAT
    contents: Mapping[str, Any] | None = None
    """What an import needs, see ``contents``; None if the export cannot be imported."""

    def to_json(self) -> str:
        """Return the text of the manifest."""
        return json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str, where: str) -> "Manifest":
        """Read a manifest of this version or an older one; raises WrongInput."""
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if not isinstance(found, dict) or not isinstance(found.get("format"), int):
            raise WrongInput(f"{where} is not what an export writes; export again")
        if found["format"] > FORMAT:
            raise WrongInput(
                f"{where}: the export is of format {found['format']}, of Orthia"
                f" {found.get('version')}, and this Orthia reads up to {FORMAT}: read it with that"
            )
        known = _known(found)
        wrong = sorted(name for name, fits in _FIELDS.items() if not fits(known.get(name)))
        if wrong:
            raise WrongInput(
                f"{where}: what it says of {', '.join(wrong)} is nothing that an export writes: it"
                " was changed by hand; bring back the file, or export again"
            )
        return cls(**known)


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_text_or_nothing(value: object) -> bool:
    return value is None or isinstance(value, str)


def _is_moment_or_nothing(value: object) -> bool:
    if value is None:
        return True
    try:
        return isinstance(value, str) and datetime.fromisoformat(value).tzinfo is not None
    except ValueError:
        return False


def _is_names(value: object) -> bool:
    return value is None or (
        isinstance(value, list) and all(isinstance(name, str) for name in value)
    )


_FIELDS: Final[Mapping[str, Callable[[object], bool]]] = {
    "messages": _is_number,
    "corrupt": _is_number,
    "after_seq": _is_number,
    "through_seq": lambda value: value is None or _is_number(value),
    "queues": _is_names,
    "contents": lambda value: value is None or isinstance(value, dict),
    "taken_at": _is_moment_or_nothing,
    **dict.fromkeys(("node_id", "since", "until", "version"), _is_text_or_nothing),
}
"""Tests whether a field has a value that an export writes."""


def _known(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields this version knows, without those of a later version."""
    known = {name: found[name] for name in Manifest.__dataclass_fields__ if name in found}
    return {"messages": 0, "corrupt": 0, "after_seq": 0} | known


def run_name(after: int, through: int) -> str:
    """Return the directory of the incremental run that took ``after < seq <= through``."""
    return f"seq-{after + 1:019d}-{through:019d}"


def run_names(names: Iterable[str]) -> list[str]:
    """Return the directory names of incremental runs, the oldest first."""
    return sorted(name for name in names if _RUN.fullmatch(name))
