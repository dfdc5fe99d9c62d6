"""Numbers on the command line."""

import math
from typing import Any

import click


class FiniteRange(click.FloatRange):
    """A number within bounds; click's own lets through what is no number, which none exceeds."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number; raises UsageError."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a number", param, ctx)
        return number
