"""File descriptors: each connection takes one, and the database and the logs need some."""

import logging
import resource

LOGGER = logging.getLogger("orthia.broker")
RESERVED = 128
"""Descriptors that the database, the logs, the listeners and the health endpoint may need."""


def raise_limit(connections: int) -> None:
    """Raise the soft limit of this process, up to the hard one, for so many connections.

    Many systems set a soft limit of 1,024 and a far higher hard one.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + RESERVED
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def connections_that_fit(connections: int) -> int:
    """Return how many of ``connections`` this process has descriptors for; warn if not all."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= connections + RESERVED:
        return connections
    fit = max(1, soft - RESERVED)
    LOGGER.warning(
        "the limit of open files is %d; accepting %d connections in place of max-connections %d:"
        " raise the limit to %d (LimitNOFILE= in a systemd unit, ulimit -n in a shell)",
        soft,
        fit,
        connections,
        connections + RESERVED,
    )
    return fit
