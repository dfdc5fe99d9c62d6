"""Points in time a person writes: ``10m`` ago, or ``2026-01-31T12:00``."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import click

_UNITS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")


def parse_duration(text: str) -> timedelta | None:
    """Return what ``90s``, ``10m``, ``1h30m`` or ``2d`` means; None if it is none of these."""
    if not re.fullmatch(f"(?:{_PART.pattern})+", text):
        return None
    return timedelta(seconds=sum(float(n) * _UNITS[unit] for n, unit in _PART.findall(text)))


class Between(click.ParamType[tuple[datetime, datetime]]):
    """An option that takes two times as FROM/TO, each as ``Since`` does."""

    name = "from/to"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[datetime, datetime]:
        """Read the option's text."""
        if isinstance(value, tuple):
            return value
        begin, slash, end = str(value).partition("/")
        if not slash:
            self.fail(f"{value!r} is not FROM/TO.", param, ctx)
        found = SINCE.convert(begin, param, ctx), SINCE.convert(end, param, ctx)
        if found[0] >= found[1]:
            self.fail(f"{value!r} ends before it begins.", param, ctx)
        return found


class Since(click.ParamType[datetime]):
    """An option that takes a duration back from now, or an ISO time; gives an aware datetime."""

    name = "duration|time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        """Read the option's text; a time without an offset is local."""
        if isinstance(value, datetime):
            return value
        text = str(value).strip()
        try:
            duration = parse_duration(text)
            if duration is not None:
                return datetime.now(UTC) - duration
            return datetime.fromisoformat(text).astimezone(UTC)
        except (ValueError, OverflowError):
            self.fail(
                f"{text!r} is neither a duration (90s, 10m, 1h30m, 2d) nor a time"
                " (2026-01-31T12:00, 2026-01-31T12:00:00+01:00).",
                param,
                ctx,
            )


SINCE: Final = Since()

planned_option: Final = click.option(
    "--planned",
    type=Between(),
    multiple=True,
    metavar="FROM/TO",
    help="A time in which nobody needed to serve: an outage in it was planned; repeatable.",
)
