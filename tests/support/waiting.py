"""Waiting for a condition, the only way tests wait."""

import time
from collections.abc import Callable

_POLL_SECONDS = 0.01


def wait_until(
    predicate: Callable[[], object],
    timeout_seconds: float = 120,
    what: str | Callable[[], str] = "the condition",
) -> None:
    """Return as soon as ``predicate()`` is true; AssertionError after ``timeout_seconds``.

    ``what`` says what it is, or is asked then, and may tell how far it came.
    """
    give_up_seconds = time.monotonic() + timeout_seconds
    while not predicate():
        if time.monotonic() >= give_up_seconds:
            told = what if isinstance(what, str) else what()
            raise AssertionError(f"{told} did not come true within {timeout_seconds:g} s")
        time.sleep(_POLL_SECONDS)
