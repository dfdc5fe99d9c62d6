"""An export is a backup: what is brought back into an empty store is what was exported."""

import json
import shutil
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from sqlalchemy import MetaData, Table, delete, select

from orthia import migrations
from orthia.config.address_settings import RoutingType
from orthia.config.store_settings import DatabaseStoreSettings, RetentionSettings
from orthia.database import Database
from orthia.journal import MessageLocation, QueueBinding
from orthia.journal.model.fields import Fields, encode_fields
from orthia.journal.model.message import LargeBody, encode_message
from orthia.journal.model.unit import Unit
from orthia.journal.sql.tables import (
    bindings_table,
    history_table,
    large_messages_table,
    messages_table,
    times_table,
)
from orthia.nodemanager.errors import StoreInUse
from orthia.pipeline.errors import ImportFailed, ImportRefused
from orthia.pipeline.jobs.manifest import NAME as MANIFEST
from orthia.pipeline.jobs.restore import _locked, restore
from orthia.pipeline.sources.inputs import ExportInputs
from orthia.pipeline.sources.store import Endpoint, StoreReference
from tests.cli.conftest import Run, run
from tests.journal.large_support import DATA, put, read, upload
from tests.journal.support import OTHER_QUEUE, QUEUE, SqlJournalStore, record
from tests.pipeline.support import answer
from tests.process.nodes import cluster
from tests.support.schema import make_tables
from tests.support.servers import SqliteServer, url_with_password

pytestmark = pytest.mark.extended

__all__ = ["run"]

COUNT = 2_500
LATE = 4_102_444_800_001
"""In the year 2100."""


@dataclass
class Old:
    """A store that is exported."""

    settings: DatabaseStoreSettings
    url: str
    body: LargeBody
    """Of a message of both queues."""

    @property
    def file(self) -> Path:
        """The database."""
        path = self.settings.jdbc_connection_url.sqlite_path
        assert path is not None
        return path


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Old:
    """Give the SQLite store of a pair that has lived: two queues, history, large messages."""
    server = SqliteServer(tmp_path_factory.mktemp("old"))
    name = server.create_database()
    opened = SqlJournalStore(replace(server.settings(name), journal_retention=RetentionSettings(7)))
    opened.advance_fence(7)
    journal = opened.open(token=7)
    for queue_id, queue in ((QUEUE, "orders"), (OTHER_QUEUE, "prüfung")):
        journal.add_binding(
            QueueBinding(queue_id, queue, "shop", RoutingType.MULTICAST, user="ümit")
        )
    seqs = opened.append(journal, *[f"body {number} £" for number in range(COUNT)])
    journal.delete([MessageLocation(seq) for seq in seqs[:400]])
    unit = Unit()
    unit.add_message([QUEUE, OTHER_QUEUE], encode_message(record("both")._replace(expires_ms=LATE)))
    later = record("later")._replace(stated=encode_fields(Fields(delivery_ms=LATE)))
    unit.add_message([QUEUE, OTHER_QUEUE], encode_message(later))
    unit.add_message([QUEUE], encode_message(record("once")._replace(expires_ms=LATE + 1)))
    journal.append_unit(unit)
    body = upload(opened, journal)
    put(opened, journal, body, (QUEUE, OTHER_QUEUE))
    gone = put(opened, journal, upload(opened, journal, b"x" * 300_000), (OTHER_QUEUE,))
    journal.delete(gone)
    opened.settle(journal)
    journal.close(drain=True)
    opened.close()
    return Old(opened.settings, server.url(name), body)


def rows_of(settings: DatabaseStoreSettings, *without: str) -> dict[str, list[Any]]:
    """Return every row of the journal's tables, without some columns."""
    database = Database.from_settings(settings)
    metadata = MetaData()
    s, dialect = settings, database.dialect
    tables: list[Table] = [
        messages_table(metadata, s.message_table_name, dialect),
        bindings_table(metadata, s.bindings_table_name, dialect),
        history_table(metadata, s.message_history_table_name, dialect),
        large_messages_table(metadata, s.large_message_table_name, dialect),
        times_table(metadata, s.message_times_table_name, dialect),
    ]
    found: dict[str, list[Any]] = {}
    with database.engine.connect() as connection:
        for table in tables:
            columns = [column for column in table.c if column.name not in without]
            found[table.name.upper()] = sorted(
                [tuple(map(_plain, row)) for row in connection.execute(select(*columns))],
                key=lambda row: row[:2],
            )
    database.dispose()
    return found


def _plain(value: object) -> object:
    return bytes(value) if isinstance(value, memoryview) else value


def exported(run: Run, url: str, out: Path) -> Path:
    """Export a store with its history, unless that was done."""
    if not out.exists():
        answer(run("pipeline", "export", "--url", url, "--to", out, "--history", "--json", "-q"))
    return out


@pytest.fixture
def backup_of(spark: SparkSession, run: Run, old: Old) -> Path:
    """Give the export of ``old``, which all tests share."""
    return exported(run, old.url, old.file.with_name("exported"))


@pytest.mark.usefixtures("spark")
def test_an_export_comes_back_as_it_was(
    run: Run, old: Old, backup_of: Path, store_settings: DatabaseStoreSettings
) -> None:
    """Every row of every table, on every DBMS; and a node's journal goes on above it."""
    out, url = backup_of, url_with_password(store_settings)
    told = answer(run("pipeline", "import", "--from", out, "--url", url, "--json", "-q"))
    assert {row["table"]: (row["rows"], row["left_out"]) for row in told["tables"]} == {
        "MESSAGES": (COUNT - 400 + 10, 0),
        "LARGE_MESSAGES": (5, 0),
        "BINDINGS": (3, 0),
        "MESSAGES_HISTORY": (401, 0),
    }
    assert told["beside_a_node"] is False
    before, after = (rows_of(one, "epoch", "written_at") for one in (old.settings, store_settings))
    assert after == before
    assert len(after["MESSAGES_TIMES"]) == 5
    history = rows_of(store_settings)["MESSAGES_HISTORY"]
    assert [row[3] for row in history] == [7] * 401
    _go_on(store_settings, old.body)
    again = run("pipeline", "import", "--from", out, "--url", url, "-q")
    assert (again.exit_code, "not empty" in again.stderr) == (69, True)


def _go_on(settings: DatabaseStoreSettings, body: LargeBody) -> None:
    """Open the journal as the next node does, read it, and write to it."""
    database = Database.from_settings(settings)
    assert migrations.damage(database, settings) == []
    database.dispose()
    store = SqlJournalStore(settings)
    store.advance_fence(10)
    journal = store.open(token=10)
    try:
        assert {queue.user for queue in journal.bindings if isinstance(queue, QueueBinding)} == {
            "ümit"
        }
        waiting = store.window(journal, OTHER_QUEUE).messages
        assert [message.record.body for message in waiting] == [b"both", b"later", b""]
        assert read(store, journal, body) == DATA
        assert store.append(journal, "next")[0] > journal.recovery_horizon > COUNT
    finally:
        store.close()


@pytest.mark.parametrize("server", ["sqlite"], indirect=True)
@pytest.mark.usefixtures("spark")
def test_what_is_not_whole_or_not_empty_is_refused(
    run: Run, backup_of: Path, store_settings: DatabaseStoreSettings, tmp_path: Path
) -> None:
    """A part of an export, files that were lost, a node's store: nothing is written, and why."""
    url = store_settings.jdbc_connection_url.display
    out, part = tmp_path / "exported", tmp_path / "part"
    for copy in (out, part):
        shutil.copytree(backup_of, copy)
        (copy / f".{MANIFEST}.crc").unlink()  # Spark would say that the file was changed
    said = part / MANIFEST
    said.write_text(json.dumps(json.loads(said.read_text()) | {"contents": None}))

    def refused(directory: Path, exit_code: int = 65) -> str:
        result = run("pipeline", "import", "--from", directory, "--url", url, "-q")
        assert result.exit_code == exit_code, result.output
        return str(result.stderr)

    assert "cannot be brought back" in refused(part)
    changed = tmp_path / "changed"
    shutil.copytree(backup_of, changed)
    (changed / MANIFEST).write_text(said.read_text())
    assert "was changed, or is damaged" in refused(changed)
    assert "has no messages" in refused(tmp_path / "nowhere")
    lost = next((out / "history").rglob("*.parquet"))
    lost.rename(tmp_path / "kept")
    assert "the files of history are not what was exported" in refused(out)
    (tmp_path / "kept").rename(lost)
    with cluster(url, tmp_path) as nodes:
        node = nodes.live().wait_serving()
        assert "not empty (BINDINGS)" in refused(out, 69)
        node.terminate()
    (out / MANIFEST).unlink()
    assert "cannot be brought back" in refused(out)


def test_of_two_imports_at_once_one_goes_on(store_settings: DatabaseStoreSettings) -> None:
    """The other is refused, and takes nothing from it, whichever tokens their exports tell of."""
    database = Database.from_settings(store_settings)
    make_tables(database, store_settings)
    both = threading.Barrier(2)
    refused = threading.Event()
    ended: list[str] = []

    def bring(above: int) -> None:
        both.wait()
        try:
            with _locked(database, store_settings, above) as held:
                assert held.token > above + 1
                assert refused.wait(120), "both go on"
                held.finish()
            ended.append("finished")
        except (StoreInUse, ImportRefused):
            refused.set()
            ended.append("refused")

    threads = [threading.Thread(target=bring, args=(above,)) for above in (7, 500)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    database.dispose()
    assert sorted(ended) == ["finished", "refused"]


@pytest.mark.parametrize("server", ["sqlite"], indirect=True)
def test_what_was_left_half_done_is_not_served(
    spark: SparkSession,
    run: Run,
    old: Old,
    store_settings: DatabaseStoreSettings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A node that starts on what a failed import left says that the store is damaged, and ends."""
    here = SqliteServer(tmp_path).settings("damaged.sqlite")
    shutil.copy(old.file, tmp_path / "damaged.sqlite")
    database = Database.from_settings(here)
    pieces = large_messages_table(MetaData(), "LARGE_MESSAGES", database.dialect)
    with database.engine.begin() as connection:
        lost = (pieces.c.id == old.body.id) & (pieces.c.position == 2)
        connection.execute(delete(pieces).where(lost))
    database.dispose()
    out = exported(run, f"sqlite:///{tmp_path / 'damaged.sqlite'}", tmp_path / "exported")
    export = ExportInputs(spark, str(out))
    contents = export.contents()
    assert len(contents.damaged) == 2  # in two queues
    target = Endpoint(store_settings, StoreReference.of(store_settings)[0])

    def fails(*_: object) -> None:
        raise ImportFailed("power cut")

    with monkeypatch.context() as broken:
        broken.setattr("orthia.pipeline.jobs.restore._compare", fails)
        with pytest.raises(ImportFailed, match="power cut"):
            restore(spark, export, target)
    with cluster(store_settings.jdbc_connection_url.display, tmp_path) as nodes:
        node = nodes.live()
        assert node.exit_code() == 78
        assert "is damaged" in node.log
    url = f"sqlite:///{tmp_path / 'another.db'}"
    told = run("pipeline", "import", "--from", out, "--url", url, "--json", "-q")
    found = answer(told, exit_code=1)
    assert found["damaged"] == contents.damaged
    assert "left out 2 large messages" in told.stderr
    rows = {row["table"]: (row["rows"], row["left_out"]) for row in found["tables"]}
    # Two references and the body they share.
    assert rows["MESSAGES"] == (COUNT - 400 + 7, 3)
