"""The loop's clock and timers, as the core sees them."""

from collections.abc import Callable
from typing import Protocol


class Timers(Protocol):
    """The loop's clock and timers."""

    @property
    def time_ms(self) -> Callable[[], int]:
        """Milliseconds since 1970 UTC, for ``expires`` headers only."""

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> None:
        """Call back on the loop."""
