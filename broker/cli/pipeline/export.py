"""``pipeline export``: a pair's tables as files that other programs read."""

from dataclasses import dataclass, replace
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from orthia.broker.cli.durations import Since
from orthia.broker.cli.group import example
from orthia.broker.cli.pipeline import several
from orthia.broker.cli.pipeline.directories import Directory
from orthia.broker.cli.pipeline.options import (
    SparkOptions,
    inputs_of,
    rows_of,
    spark_options,
    store_of,
)
from orthia.broker.cli.pipeline.output import Rows, collected, show, show_unreadable
from orthia.broker.cli.rendering import print_json
from orthia.broker.cli.settings_options import StoreOptions, store_options
from orthia.config.store_settings import DatabaseStoreSettings, FileStoreSettings
from orthia.pipeline.errors import OutputExists
from orthia.pipeline.jobs.manifest import NAME, Manifest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from orthia.pipeline.jobs.contents import Contents
    from orthia.pipeline.jobs.watermark import IncrementalRun, Selection
    from orthia.pipeline.sources.inputs import StoreInputs

_FORMATS = ("parquet", "json", "csv")


@dataclass(frozen=True)
class _Wanted:
    """What the command line asks for."""

    target: str
    format: str
    queues: tuple[str, ...]
    since: datetime | None
    until: datetime | None
    incremental: bool
    with_history: bool
    with_bodies: bool
    file_rows: int | None
    file_mib: int | None
    spark_on: SparkOptions

    @property
    def selection(self) -> "Selection":
        """Which messages are written."""
        from orthia.pipeline.jobs.watermark import Selection

        return Selection(self.queues, self.since, self.until)


@dataclass(frozen=True)
class _Written:
    """What came of it."""

    directory: str
    manifest: Manifest
    messages: Rows
    history: Rows
    unreadable: Rows


@click.command(
    epilog=example(
        "orthia pipeline export --config broker.xml --to exported",
        "orthia pipeline export --config broker.xml --to exported --queue orders --format json",
        "orthia pipeline export --config broker.xml --to /data/orders --queue orders --incremental",
        "orthia pipeline export --pairs pairs.txt --to exported",
    )
)
@click.option(
    "--to",
    "target",
    required=True,
    type=Directory(),
    metavar="DIRECTORY",
    help="It must not exist; with --incremental it is where each run's directory goes, with"
    " --pairs that of each pair, by its name.",
)
@click.option(
    "--format", "format_", type=click.Choice(_FORMATS), default="parquet", show_default=True
)
@click.option("--queue", "queues", multiple=True, help="Only this queue; repeatable.")
@click.option(
    "--since",
    type=Since(),
    help="Only what was written then or later, by the database's clock; 1d, or 2026-01-31T12:00.",
)
@click.option("--until", type=Since(), help="Only what was written before.")
@click.option(
    "--incremental",
    is_flag=True,
    help="Only what came since the last run with this --to, into a directory of its own there.",
)
@click.option("--history", "with_history", is_flag=True, help="Also what journal-retention keeps.")
@click.option(
    "--bodies/--no-bodies",
    "with_bodies",
    default=True,
    show_default=True,
    help="Also the bodies of large messages, in pieces.",
)
@click.option(
    "--file-rows",
    type=click.IntRange(1),
    help="Rows of a file of messages, at most.  [default: as many as a task reads]",
)
@click.option(
    "--file-mib",
    type=click.IntRange(1),
    metavar="MIB",
    help="About how large a file of messages is to be: rows of a day and queue that several tasks"
    " read are brought together first.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@several.pairs_option
@store_options
@spark_options
def export(
    store: StoreOptions,
    pairs_file: Path | None,
    target: str,
    format_: str,
    queues: tuple[str, ...],
    since: datetime | None,
    until: datetime | None,
    file_rows: int | None,
    file_mib: int | None,
    spark_on: SparkOptions,
    *,
    incremental: bool,
    with_history: bool,
    with_bodies: bool,
    as_json: bool,
) -> None:
    """Write messages, bindings, failover log and locks to files, messages by day and queue.

    The other commands read the Parquet with --from, and `orthia pipeline import` brings it back
    into an empty database. Bodies are base64 in JSON and CSV. The directory appears when everything
    is in it. A message that cannot be read is exported as it is
    stored, with the reason in the column corrupt, and told of.

    An incremental run begins exactly where the one before ended, for schedulers: rerun it after a
    failure.
    """
    if incremental and with_history:
        raise click.UsageError(
            "--incremental is of what waits, in the order of seq: give --history in a run of its"
            " own."
        )
    if store.is_given == (pairs_file is not None):
        raise click.UsageError(
            "Say where the journal is: --config FILE or --url URL, or --pairs FILE."
        )
    wanted = _Wanted(
        target=target.rstrip("/"),
        format=format_,
        queues=queues,
        since=since,
        until=until,
        incremental=incremental,
        with_history=with_history,
        with_bodies=with_bodies,
        file_rows=file_rows,
        file_mib=file_mib,
        spark_on=spark_on,
    )
    if pairs_file is not None:

        def write(pair: several.NamedStore, inputs: "StoreInputs") -> _Written:
            mine = replace(wanted, target=f"{wanted.target}/{pair.name}")
            return _write(inputs, pair.settings, mine)

        several.tell(
            several.answers(several.read_pairs(pairs_file), spark_on, write),
            lambda written: _fields(written, wanted),
            lambda written: _print(written, wanted),
            as_json=as_json,
        )
        return
    if not incremental and "://" not in target and Path(target).exists():
        raise OutputExists(f"{target} exists already: nothing was written")
    settings = store_of(store)
    with inputs_of(settings, spark_on) as inputs:
        written = _write(inputs, settings, wanted)
    if as_json:
        print_json(_fields(written, wanted))
    else:
        _print(written, wanted)


def _write(
    inputs: "StoreInputs", settings: DatabaseStoreSettings | FileStoreSettings, wanted: _Wanted
) -> _Written:
    """Write the tables of one pair."""
    from orthia.pipeline.jobs.export import absent
    from orthia.pipeline.jobs.outputs import left_behind

    spark_on = wanted.spark_on
    for name in left_behind(inputs.spark, wanted.target):
        spark_on.say(f"{name} is what a run that was killed left; nothing needs it")
    # No error: a queue that clients create may come later, and a deleted one has a history.
    for name in absent(inputs.bindings(), wanted.queues):
        click.echo(f"orthia: there is no queue {name} now: is that its name?", err=True)
    # Of an incremental run, or some queues, nobody knows before how much it is.
    whole = not wanted.incremental and not wanted.selection.options()
    rows = rows_of(inputs, history=wanted.with_history) if whole else None
    with spark_on.voice.bar_of_rows(inputs, rows):
        if wanted.incremental:
            return _export_what_is_new(inputs, settings, wanted)
        return _export(inputs, wanted, wanted.target, wanted.selection.options(), None)


def _export_what_is_new(
    inputs: "StoreInputs", settings: DatabaseStoreSettings | FileStoreSettings, wanted: _Wanted
) -> _Written:
    """Write what came since the last run, and then how far this one came."""
    from orthia.pipeline.jobs import watermark
    from orthia.pipeline.jobs.outputs import Files

    files = Files(inputs.spark, wanted.target)
    last = watermark.previous(files, wanted.target)
    run = watermark.next_run(inputs, settings, last, wanted.selection)
    if run.through == run.after:
        return _Written(wanted.target, Manifest(0, 0, run.after, run.through), [], [], [])
    options = wanted.selection.options() | run.options()
    written = _export(inputs, wanted, f"{wanted.target}/{run.name}", options, run)
    files.write_text(f"{wanted.target}/{watermark.FILE}", written.manifest.to_json())
    return written


def _export(
    inputs: "StoreInputs",
    wanted: _Wanted,
    target: str,
    conditions: dict[str, str],
    run: "IncrementalRun | None",
) -> _Written:
    """Write ``target`` whole; raises OutputExists."""
    from orthia.pipeline.jobs import backup, unreadable
    from orthia.pipeline.jobs import export as job
    from orthia.pipeline.jobs.outputs import Files, whole
    from orthia.pipeline.jobs.small_tables import write_together

    locks_before, taken_at = inputs.locks(), inputs.now()
    spark_on, format_ = wanted.spark_on, wanted.format
    counts, passed = unreadable.Counts(), unreadable.Counts()
    with whole(inputs.spark, target) as directory:
        files = Files(inputs.spark, directory)
        if wanted.with_history:
            # First: a message that leaves its queue meanwhile is then in neither, never in both.
            spark_on.say("writing the history")
            rows = passed.of(inputs.history(conditions=conditions))
            kept = job.exported(rows, "removed_at")
            _save(kept, wanted, f"{directory}/history", inputs)
        spark_on.say("writing messages")
        messages = job.exported(counts.of(inputs.messages(conditions=conditions)))
        _save(messages, wanted, f"{directory}/messages", inputs)
        has_large = bool(counts.large or (wanted.with_history and passed.large))
        if wanted.with_bodies and has_large:
            spark_on.say("writing bodies of large messages")
            # After the messages: a body stays as long as its message does.
            large = _needing_bodies(inputs, wanted, conditions, directory)
            bodies = backup.only_needed(inputs.bodies(), backup.needed_bodies(*large))
            job.writer(bodies, format_).save(f"{directory}/bodies")
        spark_on.say("writing bindings, failover log and locks")
        empty = {"bodies": backup.NO_BODIES} if wanted.with_bodies and not has_large else {}
        if inputs.is_small and inputs.size.has_few_others:
            small = inputs.small_tables() | empty
            write_together(inputs.spark, small, format_, files, directory)
        else:
            frames = {
                "bindings": inputs.bindings(),
                "failover_log": inputs.failover_log(),
                "node_manager": inputs.node_manager(),
                **{name: table.frame(inputs.spark) for name, table in empty.items()},
            }
            for name, frame in frames.items():
                job.writer(frame, format_).save(f"{directory}/{name}")
        answers: dict[str, Rows] = {}
        contents = None
        if format_ == "parquet":
            spark_on.say("reading what was written")
            is_whole = wanted.with_bodies and not conditions
            local = files.on_this_machine(directory) if inputs.is_small and not has_large else None
            answers = (
                _asked(inputs, wanted, directory, is_whole=is_whole)
                if local is None
                else _answered(local, wanted, is_whole=is_whole)
            )
            if is_whole:
                contents = backup.contents_of(answers, inputs, locks_before)
        bad: Rows = []
        if counts.corrupt:
            again = inputs.messages(unreadable.COLUMNS, conditions)
            bad = collected(unreadable.listed(again))
        manifest = _manifest(wanted, counts, taken_at, run, contents)
        files.write_text(f"{directory}/{NAME}", manifest.to_json())
    of_messages, of_history = answers.get("messages", []), answers.get("history", [])
    return _Written(target, manifest, of_messages, of_history, bad)


def _asked(
    inputs: "StoreInputs", wanted: _Wanted, directory: str, *, is_whole: bool
) -> dict[str, Rows]:
    """Return what was written, by a job of Spark."""
    from orthia.pipeline.jobs import backup
    from orthia.pipeline.jobs import export as job
    from orthia.pipeline.jobs.together import collected_together
    from orthia.pipeline.sources.inputs import ExportInputs

    found = ExportInputs(inputs.spark, directory, inputs.size)
    asked = {"messages": job.summary(found.messages())}
    if wanted.with_history:
        asked["history"] = job.summary(found.history())
    if is_whole:
        asked |= backup.questions(found, with_history=wanted.with_history)
    return collected_together(asked, in_one_task=inputs.is_small)


def _answered(directory: Path, wanted: _Wanted, *, is_whole: bool) -> dict[str, Rows]:
    """Return the same of a small export without large messages, without a job."""
    from orthia.pipeline.jobs.backup import answers_of
    from orthia.pipeline.jobs.written import WrittenTable

    names = ("messages", *(("history",) if wanted.with_history else ()))
    found = {name: WrittenTable(directory / name).summary() for name in names}
    return found | (answers_of(directory, with_history=wanted.with_history) if is_whole else {})


def _save(rows: "DataFrame", wanted: _Wanted, directory: str, inputs: "StoreInputs") -> None:
    from orthia.pipeline.jobs import export as job

    size = job.FileSize(wanted.file_rows, wanted.file_mib)
    job.save_partitioned(rows, wanted.format, directory, size, is_small=inputs.is_small)


def _needing_bodies(
    inputs: "StoreInputs", wanted: _Wanted, conditions: dict[str, str], directory: str
) -> "list[DataFrame]":
    """Return what was written, as far as it says which bodies it needs."""
    from orthia.pipeline.jobs import backup
    from orthia.pipeline.sources.inputs import ExportInputs

    columns = backup.LARGE
    if wanted.format == "parquet":
        found = ExportInputs(inputs.spark, directory, inputs.size)
        of_history = [found.history(columns)] if wanted.with_history else []
        return [found.messages(columns), *of_history]
    of_history = [inputs.history(columns, conditions)] if wanted.with_history else []
    return [inputs.messages(columns, conditions), *of_history]


def _manifest(
    wanted: _Wanted,
    counts: Any,
    taken_at: datetime,
    run: "IncrementalRun | None",
    contents: "Contents | None",
) -> Manifest:
    selection = wanted.selection
    options = selection.options()
    return Manifest(
        messages=counts.messages,
        corrupt=counts.corrupt,
        after_seq=0 if run is None else run.after,
        through_seq=None if run is None else run.through,
        node_id=None if run is None else run.node_id,
        queues=selection.queues,
        since=options.get("since"),
        until=options.get("until"),
        taken_at=taken_at.isoformat(),
        version=version("orthia"),
        contents=None if contents is None else contents.to_fields(),
    )


def _fields(written: _Written, wanted: _Wanted) -> dict[str, Any]:
    manifest = written.manifest
    history = {"history": written.history} if wanted.with_history else {}
    place = (
        {}
        if manifest.through_seq is None
        else {
            "after_seq": manifest.after_seq,
            "through_seq": manifest.through_seq,
        }
    )
    return {
        "directory": written.directory,
        "format": wanted.format,
        "messages": written.messages,
        **history,
        **place,
        "corrupt": manifest.corrupt,
        "corrupt_listed": written.unreadable,
    }


def _print(written: _Written, wanted: _Wanted) -> None:
    manifest = written.manifest
    if manifest.through_seq is not None and manifest.through_seq == manifest.after_seq:
        click.echo(f"nothing new since seq {manifest.after_seq:,}: nothing was written")
        return
    columns = ("day", "queue", "messages", "body_bytes")
    if wanted.format == "parquet":
        show(f"Written to {written.directory}", written.messages, columns)
        if wanted.with_history:
            show("Of the history", written.history, columns)
    else:
        click.echo(f"{manifest.messages:,} messages written to {written.directory}")
    show_unreadable(written.unreadable, manifest.corrupt, "They are in the export as stored")
