"""The watermark of incremental exports: the next run begins exactly where the last one ended.

A run takes the rows with ``after < seq <= through``. One fenced writer gives out ``seq`` in the
order of its commits, and a successor's are above all of its predecessor's: no row ever appears at
or below a ``through`` that was committed when it was read. So consecutive runs have each row once,
through crashes and takeovers.

Each run is a directory of its own in the export's, named after its range, and appears whole or not
at all: the rows and the watermark are always in step. The file ``_watermark.json`` has the same
watermark, in case the runs are moved elsewhere.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

from orthia.config.store_settings import DatabaseStoreSettings, FileStoreSettings
from orthia.journal.model.records import ID_COUNTER_SEQ
from orthia.pipeline.errors import BadOption, WrongInput
from orthia.pipeline.jobs.export import of_queues
from orthia.pipeline.jobs.manifest import NAME, Manifest, run_name, run_names
from orthia.pipeline.jobs.outputs import Files
from orthia.pipeline.sources.fetching import Source, open_source
from orthia.pipeline.sources.inputs import Inputs
from orthia.pipeline.sources.journal_rows import first_seq_since, last_seq

FILE: Final = "_watermark.json"
_NODE_ID_ROW: Final = 3


@dataclass(frozen=True)
class Selection:
    """The messages to export."""

    queues: tuple[str, ...] = ()
    """These queues; all if none is given."""
    since: datetime | None = None
    """The earliest time of writing, by the database's clock."""
    until: datetime | None = None
    """Written before."""

    def options(self) -> dict[str, str]:
        """Return the selection as options of ``orthia.journal``."""
        times = {"since": _text(self.since), "until": _text(self.until)}
        return of_queues(self.queues) | {name: text for name, text in times.items() if text}


@dataclass(frozen=True)
class IncrementalRun:
    """The range of an incremental run: rows with ``after < seq <= through``."""

    after: int
    through: int
    node_id: str | None

    @property
    def name(self) -> str:
        """Its directory."""
        return run_name(self.after, self.through)

    def options(self) -> dict[str, str]:
        """Return its range as options of ``orthia.journal``."""
        return {"minSeq": str(self.after + 1), "maxSeq": str(self.through)}


def previous(files: Files, directory: str) -> Manifest | None:
    """Return the manifest of the last run; None before the first. Raises WrongInput."""
    places = [f"{name}/{NAME}" for name in run_names(files.names(directory))[-1:]]
    if places and not files.exists(f"{directory}/{places[0]}"):
        raise WrongInput(
            f"{directory}/{places[0]} is gone, which says how far the last run came: bring it back,"
            " or remove its directory if that run is to be done again"
        )
    if files.exists(f"{directory}/{FILE}"):
        places.append(FILE)
    found = [
        Manifest.from_json(files.read_text(f"{directory}/{place}"), f"{directory}/{place}")
        for place in places
    ]
    return max(found, key=lambda one: one.through_seq or 0, default=None)


def next_run(
    inputs: Inputs,
    settings: DatabaseStoreSettings | FileStoreSettings,
    last: Manifest | None,
    wanted: Selection,
) -> IncrementalRun:
    """Return the range of the run after ``last``, up to the store's present end.

    Raises BadOption if this run selects other messages than the last one, or is of another pair;
    StoreError, JournalError.
    """
    after = 0 if last is None else last.through_seq or 0
    if isinstance(settings, FileStoreSettings):
        if wanted.until is not None:
            raise BadOption("--until: a file journal has no time of each record")
        newest = inputs.messages(["seq"]).agg(F.max("seq")).first()
        through, node_id = int(newest[0] or 0) if newest else 0, None
    else:
        with open_source(settings) as source:
            node_id = _node_id(source, settings)
            through = last_seq(source, settings)
            _refuse_ahead(after, source, settings)
            if wanted.until is not None:
                left_out = first_seq_since(source, settings, wanted.until, after=after)
                through = through if left_out is None else min(through, left_out - 1)
    if last is not None:
        _refuse_another(last, wanted, node_id)
    # Acknowledged rows are gone: the highest seq may have been higher before.
    return IncrementalRun(after, max(after, through), node_id)


def _refuse_ahead(after: int, source: Source, settings: DatabaseStoreSettings) -> None:
    """Raise BadOption if ``after`` was never given out: nothing would be exported for long."""
    table = source.table(settings.bindings_table_name)
    found = source.rows(f"SELECT MAX(id) FROM {table} WHERE seq = {ID_COUNTER_SEQ:d}")  # noqa: S608
    reserved = found[0][0] if found else None
    if reserved is not None and after > reserved:
        raise BadOption(
            f"the runs before this one came to seq {after}, and this store has given out none"
            f" above {reserved}: it was restored from a backup, or {FILE} was changed by hand; give"
            " another --to"
        )


def _refuse_another(last: Manifest, wanted: Selection, node_id: str | None) -> None:
    if sorted(last.queues) != sorted(wanted.queues):
        before = ", ".join(last.queues) or "all queues"
        raise BadOption(
            f"the runs before this one were of {before}: give the same --queue, or another --to"
        )
    if last.node_id and node_id and last.node_id != node_id:
        raise BadOption(
            f"the runs before this one were of the pair {last.node_id}, and this is {node_id},"
            " whose places are others: give another --to"
        )


def _node_id(source: Source, settings: DatabaseStoreSettings) -> str | None:
    table = source.table(settings.node_manager_store_table_name)
    found = source.rows(f"SELECT node_id FROM {table} WHERE id = {_NODE_ID_ROW}")  # noqa: S608
    return str(found[0][0]) if found and found[0][0] is not None else None


def _text(instant: datetime | None) -> str | None:
    return None if instant is None else instant.astimezone(UTC).isoformat()
