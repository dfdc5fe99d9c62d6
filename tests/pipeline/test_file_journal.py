"""A file journal is read as a database is, also while a node compacts it."""

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from orthia.config.address_settings import RoutingType
from orthia.config.store_settings import FileStoreSettings
from orthia.journal import QueueBinding, Unit
from orthia.journal.file.tools import compact
from orthia.pipeline.errors import BadOption
from orthia.pipeline.sources.file_journal import (
    FileBindingsReader,
    FileJournalReader,
    FileReference,
)
from orthia.pipeline.sources.journal import conditions_of
from orthia.pipeline.sources.schemas import JOURNAL
from tests.cli.conftest import Run, run
from tests.file_journal.support import BODY, DirectJournal, file_settings
from tests.journal.support import OTHER_QUEUE, QUEUE, payload
from tests.pipeline.support import read

pytestmark = pytest.mark.extended

__all__ = ["run"]


@pytest.fixture
def settings(tmp_path: Path) -> FileStoreSettings:
    """Give a journal of several small files: two queues, one message of both."""
    settings = file_settings(tmp_path)
    journal = DirectJournal(settings)
    for queue_id, name in ((QUEUE, "orders"), (OTHER_QUEUE, "audit")):
        unit = Unit()
        unit.add_binding(QueueBinding(queue_id, name, "orders", RoutingType.MULTICAST))
        journal.unit(unit)
    first, *_ = journal.add(*[f"{number} {BODY}" for number in range(30)])
    unit = Unit()
    unit.add_message([QUEUE, OTHER_QUEUE], payload("both"))
    journal.unit(unit)
    journal.delete(first)
    journal.abandon()
    return settings


@pytest.mark.parametrize("partitions", [1, 4, 16, 32])
def test_live_messages_are_decoded_in_any_number_of_parts(
    settings: FileStoreSettings, partitions: int
) -> None:
    """A reference has its body, wherever the journal is cut; what was deleted is not there."""
    reader = FileJournalReader(FileReference.of(settings), JOURNAL.fieldNames(), partitions)
    assert len(reader.partitions()) >= partitions - 1
    rows = read(reader)
    assert [row["body"].split()[0] for row in rows[:29]] == [b"%d" % n for n in range(1, 30)]
    assert [(row["kind"], row["queue"], row["body"]) for row in rows[29:]] == [
        ("body", None, b"both"),
        ("reference", "orders", b"both"),
        ("reference", "audit", b"both"),
    ]
    assert {(row["epoch"], row["written_at"], row["corrupt"]) for row in rows} == {(1, None, None)}


def test_records_are_found_where_a_compaction_put_them(settings: FileStoreSettings) -> None:
    """Files that vanish between planning and reading lose and repeat nothing that is live."""
    reader = FileJournalReader(FileReference.of(settings), ["seq", "body"])
    before = read(reader)
    parts = reader.partitions()
    done, _ = compact(settings)
    assert done.bytes_after < done.bytes_before
    after = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
    assert after == before


def test_bindings_and_counter_are_rows(settings: FileStoreSettings) -> None:
    """Queues with their names, and how far ids are reserved."""
    rows = {row["seq"]: row for row in read(FileBindingsReader(FileReference.of(settings)))}
    assert (rows[QUEUE]["name"], rows[OTHER_QUEUE]["name"]) == ("orders", "audit")
    assert (rows[0]["type"], rows[0]["id"] > 0) == ("counter", True)


def test_conditions_leave_rows_out(settings: FileStoreSettings) -> None:
    """Those on queue, seq and epoch; one on the time of a row is refused."""
    reference = FileReference.of(settings)
    given = conditions_of({"queue": json.dumps(["audit"]), "minepoch": "1"})
    assert [row["body"] for row in read(FileJournalReader(reference, ["body"], None, given))] == [
        b"both"
    ]
    assert read(FileJournalReader(reference, ["seq"], 1, conditions_of({"minepoch": "2"}))) == []
    with pytest.raises(BadOption, match="no time of each record"):
        FileJournalReader(reference, ["seq"], 1, conditions_of({"since": "2026-01-01"}))


def test_an_export_of_files_is_whole_and_sound(
    run: Run, spark: SparkSession, settings: FileStoreSettings, tmp_path: Path
) -> None:
    """The commands take a broker.xml without a database; the days are those of acceptance."""
    config = tmp_path / "broker.xml"
    config.write_text(
        '<configuration xmlns="urn:activemq"><core xmlns="urn:activemq:core"><name>a</name>'
        f"<journal-directory>{settings.journal_directory}</journal-directory>"
        f"<bindings-directory>{settings.bindings_directory}</bindings-directory>"
        "</core></configuration>"
    )
    out = tmp_path / "exported"
    exported = run("pipeline", "export", "--config", config, "--to", out, "--json", "-q")
    assert exported.exit_code == 0, exported.stderr
    written = json.loads(exported.stdout)["messages"]
    assert {(row["day"], row["queue"], row["messages"]) for row in written} == {
        ("2023-11-14", "orders", 30),
        ("2023-11-14", "audit", 1),
    }
    audited = run("pipeline", "audit", "--config", config, "--json", "-q")
    assert audited.exit_code == 0, audited.stdout + audited.stderr
    assert json.loads(audited.stdout)["epochs"][0]["rows"] == 32
    refused = run(
        "pipeline", "migrate", "--config", config, "--to-url", f"sqlite:///{tmp_path / 'new.db'}"
    )
    assert (refused.exit_code != 0, "leave a file journal" in refused.stderr) == (True, True)
