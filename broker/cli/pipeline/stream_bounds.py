"""The options of ``pipeline stream`` that bound a micro-batch."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import wraps
from typing import Any, TypeVar

import click

from orthia.broker.cli.durations import Since, parse_duration

_Command = TypeVar("_Command", bound=Callable[..., Any])


@dataclass(frozen=True)
class StreamBounds:
    """Where a new stream begins, and how much a micro-batch takes."""

    starting: datetime | None
    max_rows: int | None
    max_bytes: int | None
    min_rows: int | None
    max_delay: timedelta | None

    def check(self, *, has_bytes: bool, available_now: bool) -> None:
        """Raise UsageError for what would not act; ``has_bytes`` is whether rows have a size."""
        if self.max_bytes is not None and not has_bytes:
            raise click.UsageError("--max-bytes is for --table messages and history.")
        if self.min_rows is not None and available_now:
            raise click.UsageError(
                "--min-rows waits for rows, and --available-now takes those that are there: give"
                " one of them."
            )
        if self.max_delay is not None and self.min_rows is None:
            raise click.UsageError("--max-trigger-delay bounds the wait for --min-rows: give that.")
        if self.min_rows and self.max_rows and self.min_rows > self.max_rows:
            raise click.UsageError("--min-rows is more than --max-rows.")

    def to_options(self) -> dict[str, str]:
        """Return the options of the data source."""
        delay = None if self.max_delay is None else round(self.max_delay.total_seconds() * 1000)
        found = {
            "startingTimestamp": None if self.starting is None else self.starting.isoformat(),
            "maxRowsPerBatch": self.max_rows,
            "maxBytesPerBatch": self.max_bytes,
            "minRowsPerBatch": self.min_rows,
            "maxTriggerDelay": None if delay is None else f"{delay}ms",
        }
        return {name: str(value) for name, value in found.items() if value is not None}


class _Delay(click.ParamType[timedelta]):
    """An option that takes a duration such as 30s."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> timedelta:
        """Read the option's text."""
        try:
            found = value if isinstance(value, timedelta) else parse_duration(str(value).strip())
        except OverflowError:
            found = None
        if found is None:
            self.fail(f"{value!r} is no duration (90s, 10m, 1h30m, 2d).", param, ctx)
        return found


def stream_bounds(command: _Command) -> _Command:
    """Give ``command`` these options; it gets them as ``bounds: StreamBounds``."""

    @wraps(command)
    def with_bounds(
        *args: Any,
        starting_timestamp: datetime | None,
        max_rows: int | None,
        max_bytes: int | None,
        min_rows: int | None,
        max_trigger_delay: timedelta | None,
        **kwargs: Any,
    ) -> Any:
        bounds = StreamBounds(starting_timestamp, max_rows, max_bytes, min_rows, max_trigger_delay)
        return command(*args, bounds=bounds, **kwargs)

    decorated: Any = with_bounds
    for option in (
        click.option(
            "--max-trigger-delay",
            type=_Delay(),
            help="Wait no longer than this for --min-rows.  [default: 15m]",
        ),
        click.option(
            "--min-rows", type=click.IntRange(1), help="Wait until there are so many rows."
        ),
        click.option(
            "--max-bytes",
            type=click.IntRange(1),
            help="Stored bytes a micro-batch takes, or one row.  [default: all]",
        ),
        click.option(
            "--max-rows", type=click.IntRange(1), help="Rows a micro-batch takes.  [default: all]"
        ),
        click.option(
            "--starting-timestamp",
            type=Since(),
            help="Where a new stream begins, by the database's clock; 1d, or 2026-01-31T12:00."
            " One that goes on begins where it ended.",
        ),
    ):
        decorated = option(decorated)
    result: _Command = decorated
    return result
