"""Bodies of large messages in an export: read ahead in parallel, a bounded part at a time."""

import zlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from orthia.journal.engine.abc import PIECE_BYTES
from orthia.journal.model.message import LargeBody
from orthia.pipeline.errors import BodyUnreadable
from orthia.pipeline.sources.bodies import ExportBodyReader
from orthia.pipeline.sources.schemas import BODIES, arrow_schema
from tests.pipeline.support import jobs_at_most

pytestmark = pytest.mark.extended

PIECES = 300
DATA = b"".join(bytes([number % 251]) * PIECE_BYTES for number in range(PIECES)) + b"end"


def exported(directory: Path, *without: int) -> LargeBody:
    """Write a body of 75 MiB, in pieces of no order, without some of them."""
    places = [place for place in range(PIECES, -1, -1) if place not in without]
    pieces = [DATA[place * PIECE_BYTES : (place + 1) * PIECE_BYTES] for place in places]
    columns = [pa.array([7] * len(places)), pa.array(places), pa.array(pieces, pa.binary())]
    table = pa.Table.from_arrays(columns, schema=arrow_schema(BODIES))
    pq.write_table(table, directory / "bodies.parquet", row_group_size=16)
    return LargeBody(7, len(DATA), zlib.crc32(DATA))


def test_a_body_is_read_whole_by_few_jobs(spark: SparkSession, tmp_path: Path) -> None:
    """In its order, with its checksum compared."""
    body = exported(tmp_path)
    reader = ExportBodyReader(spark.read.schema(BODIES).parquet(str(tmp_path)))
    with jobs_at_most(spark, 5):
        assert reader.whole(body) == DATA
    with pytest.raises(BodyUnreadable, match="not what was stored"):
        reader.whole(body._replace(checksum=1))
    with pytest.raises(BodyUnreadable, match="ends after"):
        reader.whole(body._replace(size=len(DATA) + 200 * PIECE_BYTES))


def test_a_missing_piece_ends_it(spark: SparkSession, tmp_path: Path) -> None:
    """What is before it is given, and then who reads is told."""
    body = exported(tmp_path, 129)
    reader = ExportBodyReader(spark.read.schema(BODIES).parquet(str(tmp_path)))
    with pytest.raises(BodyUnreadable, match=f"ends after {129 * PIECE_BYTES} of"):
        reader.whole(body)


def test_no_more_is_read_than_what_is_sent_soon(spark: SparkSession, tmp_path: Path) -> None:
    """However large a body is: three windows are read ahead of the one that is sent."""
    body = exported(tmp_path)._replace(size=2**40)
    asked: list[int] = []

    class Counted(ExportBodyReader):
        def window(self, large_id: int, first: int, count: int) -> list[bytes]:
            asked.append(first)
            return super().window(large_id, first, count)

    pieces = Counted(spark.read.schema(BODIES).parquet(str(tmp_path))).pieces(body)
    assert next(pieces) == DATA[:PIECE_BYTES]
    pieces.close()  # type: ignore[attr-defined]
    assert sorted(asked) == [0, 64, 128, 192][: len(asked)]
