"""Exports that a scheduler runs: each begins where the last one ended, and appears whole."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from sqlalchemy import text, update

from orthia.broker.node.exit_codes import ExitCode
from orthia.journal.model.unit import Unit
from orthia.pipeline.errors import BadOption, OutputExists, WrongInput
from orthia.pipeline.jobs.contents import Contents
from orthia.pipeline.jobs.manifest import NAME, Manifest
from orthia.pipeline.jobs.outputs import Files, left_behind, whole
from orthia.pipeline.jobs.watermark import IncrementalRun, Selection, next_run
from orthia.pipeline.sources.inputs import ExportInputs
from tests.cli.conftest import Run as RunCommand
from tests.cli.conftest import run
from tests.journal.support import OTHER_QUEUE, QUEUE, SqlJournalStore, payload
from tests.pipeline.support import with_queues

pytestmark = pytest.mark.extended

__all__ = ["run"]

PAIR = "613cdfeb-50cc-4af2-876d-d71814b9dc6f"


class NoInputs:
    """What a run on a database does not ask."""

    spark: Any = None

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was asked")


def following(store: SqlJournalStore, last: Manifest | None, **wanted: Any) -> IncrementalRun:
    """Return the run after ``last``."""
    inputs: Any = NoInputs()
    return next_run(inputs, store.settings, last, Selection(**wanted))


def done(a_run: IncrementalRun, **changes: Any) -> Manifest:
    """Return what a run says of itself."""
    return Manifest(1, 0, a_run.after, a_run.through, a_run.node_id, **changes)


@pytest.mark.usefixtures("reference")
def test_each_run_begins_where_the_last_one_ended(store: SqlJournalStore) -> None:
    """Through a takeover with its gap of ids, and when everything was acknowledged."""
    first = store.append(store.open(), "one", "two")
    run_1 = following(store, None)
    assert (run_1.after, run_1.through) == (0, first[-1])
    assert following(store, done(run_1)) == IncrementalRun(first[-1], first[-1], None)
    store.advance_fence(2)
    second = store.append(store.open(token=2), "three")
    run_2 = following(store, done(run_1))
    assert (run_2.after, run_2.through) == (first[-1], second[-1])
    store.remove(second[-1])
    assert following(store, done(run_2)) == IncrementalRun(second[-1], second[-1], None)


@pytest.mark.usefixtures("reference")
def test_what_until_leaves_out_is_the_next_runs(store: SqlJournalStore) -> None:
    """A run ends before the first message that is too new for it, and cuts none in two."""
    journal = store.open()
    (early,) = store.append(journal, "early")
    unit = Unit()
    unit.add_message([QUEUE, OTHER_QUEUE], payload("both"))
    journal.append_unit(unit)
    store.settle(journal)
    body, reference, last = sorted(store.rows())[1:]
    late = datetime.now(UTC) + timedelta(days=1)
    # The body's row is of before the time, its references are not.
    with store.database.engine.begin() as connection:
        newer = store.messages.c.seq.in_([reference, last])
        connection.execute(
            update(store.messages).where(newer).values(written_at=late + timedelta(hours=1))
        )
    run_1 = following(store, None, until=late)
    assert run_1.through == early
    run_2 = following(store, done(run_1), until=late + timedelta(days=1))
    assert (run_2.after, run_2.through) == (body - 1, last)


@pytest.mark.parametrize("server", ["sqlite"], indirect=True)
def test_runs_of_other_messages_or_another_pair_are_refused(store: SqlJournalStore) -> None:
    """Their places are not this one's, and nothing would say what is missing."""
    store.append(store.open(), "one")
    last = Manifest(1, 0, 0, 5, PAIR, ("orders",))
    with pytest.raises(BadOption, match="were of orders"):
        following(store, last)
    assert following(store, last, queues=("orders",)).after == 5
    rows = store.fence
    with store.database.engine.begin() as connection:
        connection.execute(update(rows).where(rows.c.id == 3).values(node_id=PAIR[::-1]))
    with pytest.raises(BadOption, match="give another --to"):
        following(store, last, queues=("orders",))


@pytest.mark.parametrize("server", ["sqlite"], indirect=True)
def test_every_message_is_in_one_run(
    run: RunCommand, spark: SparkSession, store: SqlJournalStore, tmp_path: Path
) -> None:
    """Runs as a scheduler does them: each has what is new; together they are everything, once."""
    out = tmp_path / "orders"
    arguments = ("pipeline", "export", "--url", store.settings.jdbc_connection_url.display)
    command = (*arguments, "--to", out, "--queue", "orders", "--incremental", "--json", "-q")

    def exported() -> Any:
        result = run(*command)
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout)

    journal = with_queues(store)
    stored = store.append(journal, "one", "two")
    store.append(journal, "another", queue=OTHER_QUEUE)
    first = exported()
    assert sum(row["messages"] for row in first["messages"]) == 2
    assert exported()["messages"] == []
    assert len(list(out.glob("seq-*"))) == 1
    # A run that was killed before its directory was whole left it; the next one goes on.
    (out / "seq-7.incomplete-12345678").mkdir()
    stored += store.append(journal, "three")
    second = exported()
    assert second["after_seq"] == first["through_seq"]
    assert second["through_seq"] == stored[-1]
    found = ExportInputs(spark, str(out)).messages(["seq", "body"])
    assert sorted(row["seq"] for row in found.collect()) == stored
    traffic = run("pipeline", "traffic", "--from", out, "--json", "-q")
    assert json.loads(traffic.stdout)["queues"][0]["messages"] == 3
    # The runs were moved elsewhere: the file beside them says where to go on.
    for one in out.glob("seq-*"):
        one.rename(tmp_path / f"moved-{one.name}")
    assert exported()["messages"] == []
    refused = run(*arguments, "--to", out, "--incremental", "-q")
    assert (refused.exit_code, "were of orders" in refused.stderr) == (ExitCode.USAGE, True)


@pytest.mark.parametrize("server", ["sqlite"], indirect=True)
def test_an_export_that_failed_leaves_nothing_and_can_be_given_again(
    run: RunCommand, spark: SparkSession, store: SqlJournalStore, tmp_path: Path
) -> None:
    """It had written the messages when the failover log could not be read."""
    journal = with_queues(store)
    good, bad = store.append(journal, "good", "bad")
    store.spoil(bad, payload("bad")[:-1] + b"x")
    out = tmp_path / "out"
    url = store.settings.jdbc_connection_url.display
    command = ("pipeline", "export", "--url", url, "--to", out, "-q")

    def change(statement: str) -> None:
        with store.database.engine.begin() as connection:
            connection.execute(text(statement))

    change('ALTER TABLE "FAILOVER_LOG" RENAME TO "AWAY"')
    failed = run(*command)
    assert failed.exit_code not in (0, 1)
    assert len(failed.stderr.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("out")] == []
    change('ALTER TABLE "AWAY" RENAME TO "FAILOVER_LOG"')
    again = run(*command, "--queue", "orders", "--queue", "oders")
    assert again.exit_code == 0, again.stderr
    assert again.stderr == "orthia: there is no queue oders now: is that its name?\n"
    assert "Messages that cannot be read: 1" in again.stdout
    assert "its checksum does not match" in again.stdout
    assert Manifest.from_json((out / NAME).read_text(), NAME).corrupt == 1
    rows = ExportInputs(spark, str(out)).messages(["seq", "corrupt"]).orderBy("seq").collect()
    assert [row["corrupt"] for row in rows] == [None, "its checksum does not match"]
    assert [row["seq"] for row in rows] == [good, bad]


def test_a_directory_appears_whole_or_not_at_all(spark: SparkSession, tmp_path: Path) -> None:
    """Renamed when it is written, removed when that failed, refused when it is there."""
    target = str(tmp_path / "out")
    numbers = spark.range(3)

    def write(*, fails: bool) -> None:
        with whole(spark, target) as directory:
            assert not Path(target).exists()
            numbers.write.parquet(f"{directory}/numbers")
            assert left_behind(spark, target) == [Path(directory).name]
            if fails:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(fails=True)
    assert list(tmp_path.iterdir()) == []
    write(fails=False)
    assert spark.read.parquet(f"{target}/numbers").count() == 3
    assert left_behind(spark, target) == []
    with pytest.raises(OutputExists, match="exists already"):
        write(fails=False)


def test_an_export_of_a_later_format_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """In words; one with more fields in its manifest, and none at all, are read."""
    files = Files(spark, str(tmp_path))
    text_of = Manifest(5, 0).to_json()
    later = json.loads(text_of) | {"format": 2, "version": "9.0"}
    files.write_text(f"{tmp_path}/{NAME}", json.dumps(later))
    with pytest.raises(WrongInput, match=r"of Orthia 9\.0"):
        ExportInputs(spark, str(tmp_path))
    files.write_text(f"{tmp_path}/{NAME}", json.dumps(json.loads(text_of) | {"colour": "red"}))
    ExportInputs(spark, str(tmp_path))
    assert Manifest.from_json(text_of, NAME) == Manifest(5, 0, queues=[])
    files.write_text(f"{tmp_path}/{NAME}", "{")
    with pytest.raises(WrongInput, match="is not what an export writes"):
        ExportInputs(spark, str(tmp_path))


def test_what_is_in_an_export_has_waited_until_it_was_taken(
    spark: SparkSession, tmp_path: Path
) -> None:
    """By the clock of its database, not by that of whoever reads it a month later."""
    files, taken_at = Files(spark, str(tmp_path)), "2026-01-31T12:00:00+00:00"
    files.write_text(f"{tmp_path}/{NAME}", Manifest(5, 0, taken_at=taken_at).to_json())
    assert ExportInputs(spark, str(tmp_path)).now() == datetime.fromisoformat(taken_at)


@pytest.mark.parametrize("server", ["sqlite"], indirect=True)
def test_a_place_that_was_never_given_out_is_refused(store: SqlJournalStore) -> None:
    """A watermark changed by hand, or a restored store: nothing would be exported, and no word."""
    seqs = store.append(store.open(), "one")
    assert following(store, Manifest(1, 0, 0, seqs[-1])).after == seqs[-1]
    with pytest.raises(BadOption, match="this store has given out none above"):
        following(store, Manifest(1, 0, 0, 2**62))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("through_seq", "7"),
        ("through_seq", -1),
        ("after_seq", None),
        ("after_seq", True),
        ("messages", 1.5),
        ("queues", "orders"),
        ("queues", [1]),
        ("node_id", 7),
        ("since", []),
        ("taken_at", "yesterday"),
        ("taken_at", "2026-01-31T12:00:00"),
        ("contents", [1]),
    ],
)
def test_a_manifest_that_was_changed_by_hand_is_refused(field: str, value: object) -> None:
    """By the field that nobody writes so, not by a traceback from what uses it."""
    fields = json.loads(Manifest(5, 0, 0, 7).to_json()) | {field: value}
    with pytest.raises(WrongInput, match=f"what it says of {field} is nothing that an export"):
        Manifest.from_json(json.dumps(fields), NAME)


@pytest.mark.parametrize(
    "change",
    [
        {"tables": None},
        {"tables": {"messages": 5}},
        {"tables": {"messages": {"rows": 1, "colour": "red"}}},
        {"left": 7},
        {"left": ["7"]},
        {"damaged": [None]},
    ],
)
def test_contents_that_were_changed_by_hand_are_refused(change: dict[str, Any]) -> None:
    """A later version may have added fields; what is there is what an export writes."""
    fields = {**Contents().to_fields(), "colour": "red"}
    assert Contents.from_fields(fields) == Contents()
    with pytest.raises(ValueError, match="contents"):
        Contents.from_fields(fields | change)
