"""Pushes the filters and columns of a query on ``orthia.journal`` down to the database.

Spark can pass the filters of a DataFrame to a Python data source, but keeps the resulting plan with
the DataFrame: with ``spark.sql.python.filterPushdown.enabled`` Spark 4.3 answers another query of
the same DataFrame, or the other branch of a union, with the filters of the first. It does not pass
columns at all. So this module adds a rule to Spark's optimizer, ``JournalPushdown.java``: each scan
of a query gets a data source of its own with the columns that the query uses and the filters above
the scan. Spark applies all filters again to the result, so an unsupported filter is correct, only
slower.

The rule is Java, which Janino, Spark's compiler for generated code, compiles when it is added to a
session: planning could not call a Python function, and so there is nothing to build or ship. That
takes up to a second, so only a command that needs the rule adds it. It uses internal classes of
Spark. If they differ, or a scan cannot be narrowed for another reason, the scan stays as it is,
which is correct and only slower.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it has no types
from pyspark.sql import SparkSession

from orthia.pipeline.sources.journal_rows import Condition

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

TAKES_FILTERS: Final = "takesfilters"
"""The option with which the rule marks a data source as that of one scan."""

_CLASS: Final = "orthia.pipeline.JournalPushdown"
_SOURCE: Final = resources.files("orthia.pipeline.sources") / "JournalPushdown.java"
"""In an archive, perhaps."""
_log = logging.getLogger(__name__)

_OPERATORS: Final[Mapping[str, str]] = {
    "EqualTo": "=",
    "EqualNullSafe": "=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
}
"""By the names of Spark's filters, which PySpark 4.0 does not have."""
_NUMBERS: Final = frozenset({"seq", "id", "epoch", "queue_id"})
_TIMES: Final = frozenset({"written_at", "removed_at"})
_FIRST_TIME: Final = datetime(2, 1, 1, tzinfo=UTC)
_LAST_TIME: Final = datetime(9999, 1, 1, tzinfo=UTC)
"""Readers clamp times to the calendar's first and last day, the database does not."""


def install(spark: SparkSession, format_name: str) -> None:
    """Add the rule for scans of the data source ``format_name`` to ``spark``.

    Repeated calls have no effect. If Spark's classes differ, a warning is logged and no rule added.
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
        _log.warning(
            "filters of a DataFrame are not answered by the database: Spark %s has other classes;"
            " select by options instead",
            spark.version,
        )
        _log.debug("the rule for filters was not added: %s", error)


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
    filters: "Iterable[Filter]", *, has_times: bool = True
) -> "tuple[list[Condition], list[Filter]]":
    """Return the conditions that the database evaluates, and the filters left to Spark.

    Supported are comparisons of numbers, times and ``queue`` with constants, and ``IN``.
    ``has_times`` is whether rows have the time at which they were written.
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


def _condition(one: "Filter") -> Condition | None:
    column, value, kind = _parts(one)
    if kind == "In":
        is_usable, values = _usable(column), tuple(v for v in value if v is not None)
        fits = is_usable is not None and all(map(is_usable, values))
        return Condition(column, "IN", values) if fits else None
    operator = _OPERATORS.get(kind)
    is_usable = _usable(column)
    if operator is None or is_usable is None or not is_usable(value):
        return None
    if column == "queue":
        return Condition(column, "IN", (value,)) if operator == "=" else None
    return Condition(column, operator, (value,))


def _parts(one: "Filter") -> tuple[str, Any, str]:
    """Return the column, the constant and the name of a comparison."""
    return getattr(one, "attribute", ("",))[0], getattr(one, "value", None), type(one).__name__


def _usable(column: str) -> Callable[[Any], bool] | None:
    """Return a test for constants that the database compares with ``column`` as Spark does."""
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
