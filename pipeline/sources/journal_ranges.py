"""A range of a journal's rows that one task reads, in batches and streams."""

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from orthia.pipeline.sources.bodies import SqlBodyReader
from orthia.pipeline.sources.decoding import Bodies, Decoder, needed
from orthia.pipeline.sources.fetching import open_source
from orthia.pipeline.sources.journal_rows import (
    Condition,
    SeqRange,
    ids_by_name,
    queue_names,
    select_rows,
)
from orthia.pipeline.sources.schemas import HISTORY, JOURNAL, arrow_schema, subset
from orthia.pipeline.sources.store import StoreReference


class RangePartition(InputPartition):
    """The range that one task reads."""

    def __init__(self, seqs: SeqRange) -> None:
        self.seqs = seqs


def read_range(
    store: StoreReference,
    columns: Sequence[str],
    partition: InputPartition,
    conditions: Sequence[Condition] = (),
    *,
    history: bool = False,
    max_body: int = 0,
    ordered: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Yield the requested columns of a RangePartition, decoded where needed.

    They include bodies of large messages of at most ``max_body`` bytes, and are in the order of
    ``seq`` if ``ordered``.
    """
    if not isinstance(partition, RangePartition):
        raise TypeError(f"{partition!r} is no range of this reader")
    settings = store.settings(history=history)
    by_name = any(condition.column == "queue" for condition in conditions)
    table = HISTORY if history else JOURNAL
    # Bodies need a connection of their own: rows are still arriving on the other.
    with open_source(settings) as source, SqlBodyReader(settings) as reader:
        queues = queue_names(source, settings) if by_name or "queue" in columns else {}
        bodies = Bodies(reader, max_body) if max_body else None
        decoder = Decoder(arrow_schema(subset(table, ",".join(columns))), queues, bodies)
        ids = ids_by_name(queues)
        # Nothing else holds the rows, which end before their connection when the reader stops.
        for batch in select_rows(
            *(source, settings, needed(columns), partition.seqs, conditions, ids),
            history=history,
            ordered=ordered,
        ):
            yield from decoder.decode_in_parts(batch)
