"""What a stream's checkpoint belongs to, and whether it can go on from it.

Spark numbers micro-batches in three places: ``offsets`` and ``commits`` of the checkpoint, and the
log of the output. It goes on from any of them as they are: with an output that is gone or another
it writes nothing of what was written before, with one that is ahead it leaves micro-batches out,
and with other options it reads on as if they had always been set. All of that is refused here.
"""

import json
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from pyspark.sql import SparkSession

from orthia.pipeline.errors import BadOption, WrongInput
from orthia.pipeline.jobs.outputs import Files

_NOTE: Final = "orthia.json"
"""The file of a checkpoint's directory that says what it is of."""
_PARQUETS_LOG: Final = "_spark_metadata"
_DELTAS_LOG: Final = "_delta_log"
_SCHEMA: Final = "orthia"
"""Of a stream that an older version began."""
_ANEW: Final = "another --checkpoint with another --to"


@dataclass(frozen=True)
class Purpose:
    """What a checkpoint is of."""

    table: str
    queues: tuple[str, ...]
    """None are all."""
    to: str
    form: str
    schema: str = _SCHEMA

    def described(self, field: str) -> str:
        """Return what a person calls the value of a field."""
        if field == "queues":
            return ", ".join(self.queues) or "all queues"
        return str(getattr(self, field))


_OPTIONS: Final = {
    "table": "--table",
    "queues": "--queue",
    "to": "--to",
    "form": "--format",
    "schema": "--schema",
}


def claim(spark: SparkSession, checkpoint: str, purpose: Purpose) -> None:
    """Record what a checkpoint is of, if it is new; else check that it is of this.

    Raises BadOption if it is of something else, or if its output is gone or is another's;
    WrongInput if a file of it is empty.
    """
    checkpoint = checkpoint.rstrip("/")
    files, output = Files(spark, checkpoint), Files(spark, purpose.to)
    purpose = replace(
        purpose, queues=tuple(sorted(purpose.queues)), to=output.whole_name(purpose.to)
    )
    note = f"{checkpoint}/{_NOTE}"
    begun = _newest(files, f"{checkpoint}/offsets")
    if files.exists(note):
        known = _read(files.read_text(note), note)
        _compare(checkpoint, note, known, purpose)
    elif begun is not None:
        # An older version streamed all queues, and wrote no such file.
        _compare(checkpoint, note, {"queues": [], "schema": _SCHEMA}, purpose)
    _look_at_output(files, output, checkpoint, purpose)
    files.write_text(note, json.dumps(asdict(purpose)))


def _read(text: str, note: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
        list(found["queues"])
    except (ValueError, KeyError, TypeError):
        raise WrongInput(f"{note} is not what a stream writes; give {_ANEW}") from None
    return {"schema": _SCHEMA, **found}


def _compare(checkpoint: str, note: str, known: dict[str, Any], purpose: Purpose) -> None:
    for field, option in _OPTIONS.items():
        # An older version noted the queues only.
        if field not in known:
            continue
        before = tuple(known[field]) if field == "queues" else known[field]
        if before == getattr(purpose, field):
            continue
        was = ", ".join(before) or "all queues" if field == "queues" else before
        moved = f'; if it was moved, say so in the field "to" of {note}' if field == "to" else ""
        raise BadOption(
            f"the checkpoint {checkpoint} is of {was}, and not of {purpose.described(field)}: give"
            f" the same {option}, or {_ANEW}{moved}"
        )


def _look_at_output(files: Files, output: Files, checkpoint: str, purpose: Purpose) -> None:
    """Raise if the micro-batches of the checkpoint are not those of the output."""
    begun = _newest(files, f"{checkpoint}/offsets")
    ended = _newest(files, f"{checkpoint}/commits")
    if purpose.form != "parquet":
        if ended is not None and not output.exists(f"{purpose.to}/{_DELTAS_LOG}"):
            raise _gone(checkpoint, purpose)
        _refuse_empty(files, output, checkpoint, None)
        return
    log = f"{purpose.to}/{_PARQUETS_LOG}"
    written = _newest(output, log)
    _refuse_empty(files, output, checkpoint, log)
    if ended is not None and (written is None or written < ended):
        raise _gone(checkpoint, purpose)
    if written is not None and (begun is None or written > begun):
        raise BadOption(
            f"{purpose.to} has what a stream with another checkpoint wrote, or an older copy of"
            f" {checkpoint}: new rows would be left out. Give the checkpoint it was written with,"
            f" or {_ANEW}"
        )


def _gone(checkpoint: str, purpose: Purpose) -> BadOption:
    return BadOption(
        f"the checkpoint {checkpoint} is of rows that are written already, and {purpose.to} does"
        f" not have them: bring it back, or give {_ANEW} to write all rows again"
    )


def _refuse_empty(files: Files, output: Files, checkpoint: str, log: str | None) -> None:
    """Raise WrongInput if the last file of a log is empty, as after a power failure."""
    logs = [(files, f"{checkpoint}/offsets"), (files, f"{checkpoint}/commits")]
    logs += [] if log is None else [(output, log)]
    for where, directory in logs:
        last = _newest_name(where, directory)
        if last is None or where.size(f"{directory}/{last}"):
            continue
        raise WrongInput(
            f"{directory}/{last} is empty: the machine stopped while Spark wrote it."
            f" {_remedy(files, output, checkpoint, log, directory, last)}"
        )


def _remedy(
    files: Files, output: Files, checkpoint: str, log: str | None, directory: str, last: str
) -> str:
    """Return what makes Spark do the micro-batch ``last`` again, from where the one before ended.

    Spark passes over one that the output has as written, so that has to go, too.
    """
    offsets, commits = f"{checkpoint}/offsets", f"{checkpoint}/commits"
    number = last.partition(".")[0]
    gone = [f"{commits}/{number}"] if files.exists(f"{commits}/{number}") else []
    if directory == offsets:
        gone.insert(0, f"{offsets}/{number}")
        if log is None:
            return f"Give {_ANEW}"
    if log is not None and directory in (offsets, log):
        names = [name for name in output.names(log) if name.partition(".")[0] == number]
        # The one with such an ending has all before it, too.
        if any(name != number for name in names):
            return f"Bring it back, or give {_ANEW}"
        gone += [f"{log}/{name}" for name in names]
    return (
        f"Remove {', '.join(gone)}, each with the file .NAME.crc beside it, and run this again:"
        " the stream then writes the rows of that micro-batch anew"
    )


def _newest(files: Files, directory: str) -> int | None:
    name = _newest_name(files, directory)
    return None if name is None else int(name.partition(".")[0])


def _newest_name(files: Files, directory: str) -> str | None:
    """Return the file of the last micro-batch in a log of Spark: N, or N.compact."""
    found = [
        (int(number), name)
        for name in files.names(directory)
        for number, _, kind in [name.partition(".")]
        if number.isdigit() and kind in ("", "compact")
    ]
    return max(found)[1] if found else None
