"""Locks of the operating system on files: SQLite's stand-in for what a server would lock."""

import fcntl


def try_lock(descriptor: int, operation: int = fcntl.LOCK_EX) -> bool:
    """Lock an open file without waiting; return False if another lock excludes this one."""
    try:
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
