"""What an export says of itself: ``_orthia.json``, the last file that is written into it.

It is how the next version knows what it reads, and how the next incremental run knows where it
begins. Of the schema a reader may rely on this:

- ``format`` is raised when an older reader could not read an export rightly; such an export is
  refused. An export without a manifest is of format 1.
- Within a format columns are only ever added. None is renamed, and none changes its type or what it
  means. A column that an export does not have is NULL; one that a reader does not know is left out.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from orthia.pipeline.errors import WrongInput

NAME: Final = "_orthia.json"
FORMAT: Final = 1
_RUN: Final = re.compile(r"seq-\d{19}-\d{19}")


@dataclass(frozen=True)
class Manifest:
    """An export, as its manifest tells of it."""

    messages: int
    """Rows of messages, as many as there are queues' shares."""
    corrupt: int
    """How many of them cannot be read, which the column ``corrupt`` explains."""
    after_seq: int = 0
    """The highest ``seq`` of which an earlier run took care; 0 if this is no incremental run."""
    through_seq: int | None = None
    """The highest ``seq`` of which this run took care; None if it is no incremental one."""
    node_id: str | None = None
    """Of the pair."""
    queues: Sequence[str] = ()
    """Only these queues, if there are any."""
    since: str | None = None
    until: str | None = None
    version: str | None = None
    """Of Orthia."""
    format: int = FORMAT
    contents: Mapping[str, Any] | None = None
    """What it takes to bring it back: see ``contents``; None if it cannot be."""

    def to_json(self) -> str:
        """Return what is written."""
        return json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str, where: str) -> "Manifest":
        """Read what an export of this version or an older one says; raises WrongInput."""
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
    **dict.fromkeys(("node_id", "since", "until", "version"), _is_text_or_nothing),
}
"""What tells that a field has what an export writes there; None is what it has if it is missing."""


def _known(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields this version knows; a later one may have added others."""
    known = {name: found[name] for name in Manifest.__dataclass_fields__ if name in found}
    return {"messages": 0, "corrupt": 0, "after_seq": 0} | known


def run_name(after: int, through: int) -> str:
    """Return the directory of the incremental run that took ``after < seq <= through``."""
    return f"seq-{after + 1:019d}-{through:019d}"


def run_names(names: Iterable[str]) -> list[str]:
    """Return those names of directories that are incremental runs', the oldest first."""
    return sorted(name for name in names if _RUN.fullmatch(name))
