"""Where the holder of a lock runs, as its holder id says: ``NAME@HOST:PROCESS:UUID``."""

import socket
from typing import Final

_LONGEST_HOST: Final = 40


def place() -> str:
    """Return the part of a holder id that names this host."""
    return f"@{socket.gethostname()[:_LONGEST_HOST]}:"


def is_here(holder_id: str | None) -> bool:
    """Return whether a holder is a process of this host."""
    return holder_id is not None and place() in holder_id
