"""Filters of a DataFrame that the database answers: they become options of ``orthia.journal``.

Spark 4.3 can hand filters to a Python data source, but keeps what the source planned for them with
the relation: another query of the same DataFrame, or the other branch of a union, is then answered
with the filters of the first. So each set of conditions gets a relation of its own here, and Spark
applies all of them once more to what the database lets through: a condition that is not understood
costs time and is right.

Understood are comparisons of ``seq``, ``epoch``, ``written_at`` and ``queue`` with constants,
``IN`` for queues, and what is joined by ``AND``.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import StructType

from orthia.pipeline.file_journal import FileReference
from orthia.pipeline.journal_source import JournalSource, reference_of
from orthia.pipeline.schemas import HISTORY, JOURNAL

_NUMBERS: Final = {"seq": ("minSeq", "maxSeq"), "epoch": ("minEpoch", "maxEpoch")}
_MIRRORED: Final = {
    "EqualTo": "EqualTo",
    "GreaterThan": "LessThan",
    "GreaterThanOrEqual": "LessThanOrEqual",
    "LessThan": "GreaterThan",
    "LessThanOrEqual": "GreaterThanOrEqual",
}
"""What a comparison is when its sides change places."""
_LONGEST: Final = 2**63 - 1


def journal(
    spark: SparkSession, options: Mapping[str, str], *conditions: Column | str
) -> DataFrame:
    """Read ``orthia.journal`` with ``options``, those rows for which all ``conditions`` hold.

    As ``spark.read.format("orthia.journal").options(**options).load().where(...)``, but the
    database leaves out what it can by itself.
    """
    given = {name.lower(): value for name, value in options.items()}
    is_history = given.get("table", "messages").lower() == "history"
    pushed = options_of(spark, HISTORY if is_history else JOURNAL, *conditions)
    if isinstance(reference_of(given), FileReference):
        pushed = without_times(pushed)
    more = {name: text for name, text in pushed.items() if name.lower() not in given}
    frame = spark.read.format(JournalSource.name()).options(**options, **more).load()
    for condition in conditions:
        frame = frame.where(condition)
    return frame


def options_of(
    spark: SparkSession, schema: StructType, *conditions: Column | str
) -> dict[str, str]:
    """Return the options that let through every row for which all ``conditions`` hold.

    Raises what Spark raises for a condition that it does not understand.
    """
    bounds = _Bounds()
    empty = spark.createDataFrame([], schema)
    for condition in conditions:
        plan: Any = empty.where(condition)._jdf.queryExecution().analyzed()  # noqa: SLF001
        for part in _parts(plan.condition()):
            _narrow(bounds, part)
    return bounds.options()


def without_times(options: Mapping[str, str]) -> dict[str, str]:
    """Return those options that a file journal answers, which has no time of each record."""
    return {name: text for name, text in options.items() if name not in ("since", "until")}


class _Bounds:
    """What is known of the rows that are wanted."""

    def __init__(self) -> None:
        self._least: dict[str, Any] = {}
        self._most: dict[str, Any] = {}
        self._queues: list[str] | None = None

    def at_least(self, column: str, value: Any) -> None:
        """Rows have ``value`` or more."""
        self._least[column] = max(value, self._least.get(column, value))

    def at_most(self, column: str, value: Any) -> None:
        """Rows have ``value`` or less."""
        self._most[column] = min(value, self._most.get(column, value))

    def among(self, queues: list[str]) -> None:
        """Rows are of these queues."""
        before = self._queues
        self._queues = queues if before is None else [one for one in before if one in queues]

    def options(self) -> dict[str, str]:
        """Return it as options."""
        found: dict[str, str] = {}
        for column, (least, most) in _NUMBERS.items():
            for option, bounds in ((least, self._least), (most, self._most)):
                if column in bounds:
                    found[option] = str(bounds[column])
        if "written_at" in self._least:
            found["since"] = _instant(self._least["written_at"])
        if "written_at" in self._most:
            # The option does not include its time.
            found["until"] = _instant(self._most["written_at"] + 1)
        if self._queues is not None:
            found["queue"] = json.dumps(self._queues)
        return {name: text for name, text in found.items() if text}


def _parts(condition: Any) -> Iterator[Any]:
    """Yield what must hold, all of it, for an expression of Spark's to hold."""
    name = _name(condition)
    if name == "And":
        yield from _parts(condition.left())
        yield from _parts(condition.right())
    else:
        yield condition


def _narrow(bounds: _Bounds, condition: Any) -> None:
    """Take a comparison into account, if it is one that is understood."""
    name = _name(condition)
    if name == "In":
        column, values = condition.value(), condition.list()
        items = [values.apply(place) for place in range(values.size())]
        if _column(column) == "queue" and all(item.foldable() for item in items):
            bounds.among([str(value) for item in items if (value := _value(item)) is not None])
        return
    if name == "Between":
        _compare(bounds, "GreaterThanOrEqual", condition.input(), condition.lower())
        _compare(bounds, "LessThanOrEqual", condition.input(), condition.upper())
    if name in _MIRRORED:
        _compare(bounds, name, condition.left(), condition.right())


def _compare(bounds: _Bounds, name: str, left: Any, right: Any) -> None:
    if left.foldable():
        left, right, name = right, left, _MIRRORED[name]
    column = _column(left)
    value = _value(right) if column is not None and right.foldable() else None
    if column == "queue" and name == "EqualTo" and value is not None:
        bounds.among([str(value)])
    elif column in (*_NUMBERS, "written_at") and isinstance(value, int):
        _COMPARISONS[name](bounds, column, value)


def _equal(bounds: _Bounds, column: str, value: int) -> None:
    bounds.at_least(column, value)
    bounds.at_most(column, value)


_COMPARISONS: Final[Mapping[str, Callable[[_Bounds, str, int], None]]] = {
    "EqualTo": _equal,
    # All of them are whole numbers, times of microseconds.
    "GreaterThan": lambda bounds, column, value: bounds.at_least(column, min(value, _LONGEST) + 1),
    "GreaterThanOrEqual": lambda bounds, column, value: bounds.at_least(column, value),
    "LessThan": lambda bounds, column, value: bounds.at_most(column, value - 1),
    "LessThanOrEqual": lambda bounds, column, value: bounds.at_most(column, value),
}


def _name(expression: Any) -> str:
    return str(expression.getClass().getSimpleName())


def _column(expression: Any) -> str | None:
    """Return which column an expression is; None if it is anything more than that."""
    return str(expression.name()) if _name(expression) == "AttributeReference" else None


def _value(expression: Any) -> Any:
    """Return a constant: a number, microseconds since 1970 UTC, or Spark's text."""
    return expression.eval(None)


def _instant(microseconds: int) -> str:
    """Return a time as an option has it; nothing if no calendar has it."""
    try:
        instant = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)
    except OverflowError:
        return ""
    return instant.isoformat()
