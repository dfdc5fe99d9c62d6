"""File descriptors: each connection is one, and the database's and the logs' must not run out."""

import logging
import resource

LOGGER = logging.getLogger("orthia.broker")
RESERVED = 128
"""What the database, the logs, the listeners and the health endpoint may need."""


def raise_limit(connections: int) -> None:
    """Raise this process' soft limit, as far as the hard one allows, to hold so many connections.

    Many systems give a process 1,024 that may have far more.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + RESERVED
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def connections_that_fit(connections: int) -> int:
    """Return how many of ``connections`` the process has descriptors for; warns if not of all."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= connections + RESERVED:
        return connections
    fit = max(1, soft - RESERVED)
    LOGGER.warning(
        "this process may open %d files, so it takes %d connections and not max-connections %d:"
        " raise its limit to %d (LimitNOFILE= in a systemd unit, ulimit -n in a shell)",
        soft,
        fit,
        connections,
        connections + RESERVED,
    )
    return fit
