"""Waiting for a condition, the only way tests wait."""

import time
from collections.abc import Callable

_POLL_SECONDS = 0.01


def wait_until(
    predicate: Callable[[], object], timeout_seconds: float = 120, what: str = "the condition"
) -> None:
    """Return as soon as ``predicate()`` is true; AssertionError after ``timeout_seconds``."""
    give_up_seconds = time.monotonic() + timeout_seconds
    while not predicate():
        if time.monotonic() >= give_up_seconds:
            raise AssertionError(f"{what} did not come true within {timeout_seconds:g} s")
        time.sleep(_POLL_SECONDS)
