"""A range of a journal's rows that one task reads, in batches and streams."""

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from orthia.config.store_settings import DatabaseStoreSettings
from orthia.pipeline.sources.bodies import SqlBodyReader
from orthia.pipeline.sources.decoding import Bodies, Decoder, needed
from orthia.pipeline.sources.fetching import Source
from orthia.pipeline.sources.journal_rows import (
    Condition,
    SeqRange,
    ids_by_name,
    queue_names,
    select_rows,
)
from orthia.pipeline.sources.schemas import HISTORY, JOURNAL, arrow_schema, subset


class RangePartition(InputPartition):
    """The range that one task reads."""

    def __init__(self, seqs: SeqRange) -> None:
        self.seqs = seqs


def read_range(
    source: Source,
    settings: DatabaseStoreSettings,
    columns: Sequence[str],
    seqs: SeqRange,
    conditions: Sequence[Condition] = (),
    *,
    history: bool = False,
    max_body: int = 0,
) -> Iterator[pa.RecordBatch]:
    """Yield the requested columns of a range, decoded where needed.

    They include bodies of large messages of at most ``max_body`` bytes.
    """
    by_name = any(condition.column == "queue" for condition in conditions)
    queues = queue_names(source, settings) if by_name or "queue" in columns else {}
    ids = ids_by_name(queues)
    table = HISTORY if history else JOURNAL
    names = needed(columns)
    # Bodies need a connection of their own: rows are still arriving on this one.
    with SqlBodyReader(settings) as reader:
        bodies = Bodies(reader, max_body) if max_body else None
        decoder = Decoder(arrow_schema(subset(table, ",".join(columns))), queues, bodies)
        for batch in select_rows(source, settings, names, seqs, conditions, ids, history=history):
            yield from decoder.decode_in_parts(batch)
