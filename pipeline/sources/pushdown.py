"""What a query wants of a DataFrame of ``orthia.journal``: the database answers it, not Spark.

Spark can hand the filters of a DataFrame to a Python data source, but keeps what the source planned
for them with the DataFrame: with ``spark.sql.python.filterPushdown.enabled`` Spark 4.3 answers
another query of the same DataFrame, or the other branch of a union, with the filters of the first.
Columns it does not hand over at all. So there is a rule of Orthia's own here for Spark's
optimizer, ``JournalPushdown.java``: each scan of a query gets a data source of its own, which knows
the columns that the query uses and the filters above the scan. Spark applies all filters once more
to what comes of it, so what is not understood costs time and is right.

The rule is Java, which Spark's own compiler for generated code, Janino, compiles when it is added
to a session: a Python function could not be called amid planning, and there is nothing to build or
to ship. That takes up to a second, so of the commands only one that needs it adds it.
It uses classes that Spark does not promise to keep. Where they are others, or a scan cannot be
narrowed for any other reason, the scan stays as it is, which is right and only slower.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it has no types
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from orthia.pipeline.sources.journal_rows import Condition

TAKES_FILTERS: Final = "takesfilters"
"""The option by which the rule tells a data source that it belongs to one scan alone."""

_CLASS: Final = "orthia.pipeline.JournalPushdown"
_SOURCE: Final = Path(__file__).with_name("JournalPushdown.java")
_log = logging.getLogger(__name__)

_OPERATORS: Final[Mapping[type[Filter], str]] = {
    EqualTo: "=",
    EqualNullSafe: "=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
}
_NUMBERS: Final = frozenset({"seq", "id", "epoch", "queue_id"})
_TIMES: Final = frozenset({"written_at", "removed_at"})
_FIRST_TIME: Final = datetime(2, 1, 1, tzinfo=UTC)
_LAST_TIME: Final = datetime(9999, 1, 1, tzinfo=UTC)
"""Readers show what lies beyond a calendar as its first or last day, the database does not."""


def install(spark: SparkSession, format_name: str) -> None:
    """Have ``spark`` narrow each scan of the data source ``format_name`` to what a query wants.

    Once for a session, however often it is called. A Spark whose classes are others goes without.
    """
    session: Any = spark._jsparkSession  # noqa: SLF001 - PySpark has no other way to it
    java: Any = spark._jvm  # noqa: SLF001
    try:
        experimental = session.experimental()
        rules = java.java.util.ArrayList(
            java.scala.jdk.javaapi.CollectionConverters.asJava(experimental.extraOptimizations())
        )
        if any(rule.getClass().getName() == _CLASS for rule in rules):
            return
        rules.add(_compiled(spark, format_name))
        both = java.scala.jdk.javaapi.CollectionConverters.asScala(rules).toSeq()
        getattr(experimental, "extraOptimizations_$eq")(both)
    except Py4JError as error:
        _log.warning("filters of a DataFrame are not answered by the database: %s", error)


def _compiled(spark: SparkSession, format_name: str) -> Any:
    java: Any = spark._jvm  # noqa: SLF001
    compiler = java.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(java.org.apache.spark.util.Utils.getContextOrSparkClassLoader())
    compiler.cook(_SOURCE.read_text(encoding="utf-8"))
    gateway: Any = spark.sparkContext._gateway  # noqa: SLF001
    arguments = gateway.new_array(java.java.lang.Object, 1)
    arguments[0] = format_name
    (constructor,) = compiler.getClassLoader().loadClass(_CLASS).getConstructors()
    return constructor.newInstance(arguments)


def taken(
    filters: Iterable[Filter], *, has_times: bool = True
) -> tuple[list[Condition], list[Filter]]:
    """Return what of ``filters`` the database answers, and what is left to Spark.

    Understood are comparisons of numbers, times and ``queue`` with constants, and ``IN``.
    ``has_times`` says whether rows have the time at which they were written.
    """
    conditions: list[Condition] = []
    left: list[Filter] = []
    for one in filters:
        condition = _condition(one)
        if condition is None or (condition.column in _TIMES and not has_times):
            left.append(one)
        else:
            conditions.append(condition)
    return conditions, left


def _condition(one: Filter) -> Condition | None:
    column = getattr(one, "attribute", ("",))[0]
    if isinstance(one, In):
        is_usable, values = _usable(column), tuple(v for v in one.value if v is not None)
        fits = is_usable is not None and all(map(is_usable, values))
        return Condition(column, "IN", values) if fits else None
    operator = _OPERATORS.get(type(one))
    value = getattr(one, "value", None)
    is_usable = _usable(column)
    if operator is None or is_usable is None or not is_usable(value):
        return None
    if column == "queue":
        return Condition(column, "IN", (value,)) if operator == "=" else None
    return Condition(column, operator, (value,))


def _usable(column: str) -> Callable[[Any], bool] | None:
    """Return what tells a constant that the database compares with ``column`` as Spark does."""
    if column in _NUMBERS:
        return lambda value: isinstance(value, int) and not isinstance(value, bool)
    if column in _TIMES:
        return lambda value: (
            isinstance(value, datetime)
            and value.tzinfo is not None
            and _FIRST_TIME <= value < _LAST_TIME
        )
    if column == "queue":
        return lambda value: isinstance(value, str)
    return None
