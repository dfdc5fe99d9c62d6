"""The stopwatch every local deadline is measured with."""

import time


def monotonic_seconds() -> float:
    """Return seconds of a clock that never steps and that goes on while the host is suspended.

    CLOCK_MONOTONIC stands still during a suspend; a lease measured with it would still look valid
    on wake-up although the database has long given it to another node.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME)
