"""Bodies of large messages as analysts see them: a column up to a size, and pieces as rows."""

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete

from orthia.journal.engine.abc import PIECE_BYTES
from orthia.journal.model.message import LargeBody
from orthia.pipeline.errors import BadOption, BodyUnreadable
from orthia.pipeline.sources.bodies import (
    BodyRange,
    FileBodiesReader,
    FileBodyReader,
    SqlBodiesReader,
    SqlBodyReader,
    dealt_out,
)
from orthia.pipeline.sources.file_journal import FileJournalReader, FileReference
from orthia.pipeline.sources.journal import JournalReader, JournalSource
from orthia.pipeline.sources.schemas import BODIES, arrow_schema
from orthia.pipeline.sources.store import StoreReference
from tests.journal.large_support import DATA, put, table_of, upload
from tests.journal.support import (
    OTHER_QUEUE,
    QUEUE,
    FileJournalStore,
    JournalStore,
    SqlJournalStore,
)
from tests.pipeline.support import read

SMALL = b"small" * 30_000
COLUMNS = ["kind", "body", "body_size", "large", "large_id", "address", "corrupt"]


def joined(rows: list[dict[str, Any]]) -> dict[int, bytes]:
    """Put pieces together."""
    found: dict[int, bytes] = {}
    for row in sorted(rows, key=lambda row: (row["large_id"], row["position"])):
        assert len(found.get(row["large_id"], b"")) == row["position"] * PIECE_BYTES
        found[row["large_id"]] = found.get(row["large_id"], b"") + row["piece"]
    return found


def two_bodies(store: JournalStore) -> list[LargeBody]:
    """Store a message of two queues with a body of three pieces, and one with a small one."""
    journal = store.open()
    bodies = [upload(store, journal, data) for data in (DATA, SMALL)]
    put(store, journal, bodies[0], (QUEUE, OTHER_QUEUE))
    put(store, journal, bodies[1])
    store.append(journal, "no large one")
    return bodies


def check_column(
    rows_up_to: Callable[[int], list[dict[str, Any]]], bodies: list[LargeBody]
) -> None:
    """Check the column ``body`` without a limit, with one between both bodies, and with one above.

    What is left out still has its size.
    """
    for limit, first, second in ((0, None, None), (len(SMALL), None, SMALL), (2**30, DATA, SMALL)):
        rows = rows_up_to(limit)
        assert [row["body"] for row in rows] == [first, first, first, second, b"no large one"]
        assert [row["body_size"] for row in rows] == [*[len(DATA)] * 3, len(SMALL), 12]
        ids = [body.id for body in bodies]
        assert [row["large_id"] for row in rows] == [*[ids[0]] * 3, ids[1], None]
        assert [row["corrupt"] for row in rows] == [None] * 5


def test_a_body_is_a_column_up_to_a_limit(
    store: SqlJournalStore, reference: StoreReference
) -> None:
    """With ``maxLargeBodyBytes`` the column has bodies up to that size, others are NULL."""
    bodies = two_bodies(store)
    check_column(lambda limit: read(JournalReader(reference, COLUMNS, max_body=limit)), bodies)


def test_a_body_of_a_file_journal_is_a_column_too(tmp_path: Path) -> None:
    """From the files of the large-messages-directory."""
    store = FileJournalStore(tmp_path)
    bodies = two_bodies(store)
    store.close()
    files = FileReference.of(store.settings)
    check_column(lambda limit: read(FileJournalReader(files, COLUMNS, max_body=limit)), bodies)


def test_bodies_are_a_source_of_their_own(
    store: SqlJournalStore, reference: StoreReference
) -> None:
    """Every piece of every body once, however many tasks read them."""
    bodies = two_bodies(store)
    for partitions in (None, 1, 3):
        reader = SqlBodiesReader(reference, partitions)
        assert joined(read(reader)) == {bodies[0].id: DATA, bodies[1].id: SMALL}
    batch: Any = next(iter(reader.read(reader.partitions()[0])))
    assert batch.schema.equals(arrow_schema(BODIES))


def test_bodies_of_a_file_journal_are_a_source_too(tmp_path: Path) -> None:
    """As those of a database, piece by piece."""
    store = FileJournalStore(tmp_path)
    bodies = two_bodies(store)
    directory = store.settings.large_messages_directory
    for partitions in (None, 3):
        found = joined(read(FileBodiesReader(directory, partitions)))
        assert found == {bodies[0].id: DATA, bodies[1].id: SMALL}
    store.close()
    assert read(FileBodiesReader(tmp_path / "nowhere")) == []


def test_a_body_that_is_not_whole_is_said_to_be(
    store: SqlJournalStore, reference: StoreReference
) -> None:
    """A missing piece: the row is there, says why it has no body, and keeps all else."""
    bodies = two_bodies(store)
    table = table_of(store)
    with store.database.engine.begin() as connection:
        lost = (table.c.id == bodies[0].id) & (table.c.position == 1)
        connection.execute(delete(table).where(lost))
    rows = read(JournalReader(reference, COLUMNS, max_body=2**30))
    assert [row["body"] for row in rows] == [None, None, None, SMALL, b"no large one"]
    assert f"body {bodies[0].id} ends after {PIECE_BYTES} of {len(DATA)}" in rows[1]["corrupt"]
    assert {row["address"] for row in rows} == {"orders"}


@pytest.mark.parametrize("server", ["sqlite"], indirect=True)
def test_a_body_that_is_not_what_was_stored_is_refused(store: SqlJournalStore) -> None:
    """Whoever reads a body learns at its end that it is another one."""
    (body, _) = two_bodies(store)
    with SqlBodyReader(store.settings) as reader:
        assert reader.whole(body) == DATA
        with pytest.raises(BodyUnreadable, match="not what was stored"):
            reader.whole(body._replace(checksum=zlib.crc32(b"another")))
        with pytest.raises(BodyUnreadable, match="not what was stored"):
            reader.whole(body._replace(size=body.size - 1))


def test_a_body_whose_file_is_gone_is_said_to_be(tmp_path: Path) -> None:
    """The same of files."""
    with pytest.raises(BodyUnreadable, match="ends after 0 of 5 bytes"):
        FileBodyReader(tmp_path).whole(LargeBody(7, 5, 0))


def test_bodies_are_dealt_out_in_parts_of_one_size() -> None:
    """A body of many pieces is read by several tasks; nobody reads nothing, or anything twice."""
    parts = [part.ranges for part in dealt_out([(1, 5), (2, 1), (9, 3)], 3)]
    assert parts == [
        [BodyRange(1, 0, 3)],
        [BodyRange(1, 3, 5), BodyRange(2, 0, 1)],
        [BodyRange(9, 0, 3)],
    ]
    assert [part.ranges for part in dealt_out([])] == [[]]


def test_a_limit_is_a_number() -> None:
    """What is none is refused by name."""
    with pytest.raises(BadOption, match="maxlargebodybytes"):
        JournalSource({"url": "sqlite:///x.db", "maxlargebodybytes": "lots"})
