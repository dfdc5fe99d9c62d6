"""A small table is read by one task, without Spark's planning of a data source: the same rows."""

from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame, SparkSession

from orthia.journal.model.unit import Unit
from orthia.nodemanager.failover_log import FailoverLogTable
from orthia.pipeline.errors import BadOption
from orthia.pipeline.sources.inputs import Inputs, StoreInputs
from orthia.pipeline.sources.one_task import whole_table
from orthia.pipeline.sources.sizes import Size
from tests.journal.keeping import KeepingStore
from tests.journal.large_support import put, upload
from tests.journal.support import OTHER_QUEUE, QUEUE, payload
from tests.pipeline.conftest import reference_to
from tests.pipeline.support import with_queues
from tests.pipeline.test_failovers import a_crash, entries_of

pytestmark = pytest.mark.extended
SMALL = Size(is_small=True)
TABLES: dict[str, Callable[[Inputs], DataFrame | None]] = {
    "messages": lambda inputs: inputs.messages(),
    "some columns": lambda inputs: inputs.messages(("seq", "body")),
    "some rows": lambda inputs: inputs.messages(conditions={"queue": "orders", "minSeq": "2"}),
    "history": lambda inputs: inputs.history(),
    "bindings": lambda inputs: inputs.bindings(),
    "bodies": lambda inputs: inputs.bodies(),
    "failover log": lambda inputs: inputs.failover_log(),
    "audited messages": lambda inputs: inputs.audited("messages"),
    "audited history": lambda inputs: inputs.audited("history", content=False),
    "audited bindings": lambda inputs: inputs.audited("bindings"),
    "pieces": lambda inputs: inputs.pieces(content=True),
}


def rows(frame: DataFrame | None) -> list[str]:
    """Return all rows of a table that has some, in an order of their own."""
    assert frame is not None
    found = sorted(map(repr, frame.collect()))
    assert found
    return found


def test_all_rows_are_those_of_the_data_source(
    spark: SparkSession, keeping: KeepingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each table of a store, all columns and rows, or some."""
    journal = with_queues(keeping, "orders")
    unit = Unit()
    for number in range(20):
        unit.add_message([QUEUE, OTHER_QUEUE], payload(str(number)))
    places = journal.append_unit(unit)
    keeping.settle(journal)
    put(keeping, journal, upload(keeping, journal))
    journal.delete(places[:20])
    keeping.settle(journal)
    journal.close(drain=True)
    table = FailoverLogTable(keeping.database, keeping.settings)
    for entry in entries_of(a_crash()):
        table.insert(entry)
    reference = reference_to(keeping.settings, monkeypatch)
    small = StoreInputs(spark, reference, size=SMALL)
    other = StoreInputs(spark, reference)
    for name, read in TABLES.items():
        assert rows(read(small)) == rows(read(other)), name
    assert small.node_manager().schema == other.node_manager().schema
    plan = small.messages()._jdf.queryExecution().toString()
    assert "MapInArrow" in plan
    assert "orthia.journal" not in plan
    assert "orthia.journal" in other.messages()._jdf.queryExecution().toString()


@pytest.mark.parametrize("server", ["sqlite"], indirect=True)
def test_an_option_that_is_none_is_refused(keeping: KeepingStore) -> None:
    """As the data source refuses it, before any task."""
    url = keeping.settings.jdbc_connection_url.display
    with pytest.raises(BadOption, match="minseq"):
        whole_table("orthia.journal", {"url": url, "minSeq": "two"})
