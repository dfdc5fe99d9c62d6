"""How texts that a client wrote are shown to it and in the log."""

from typing import Final

LONGEST: Final = 1_000
"""Characters that are shown: a client may write more than anybody reads, and waits for."""


def quoted(text: str) -> str:
    """Return ``text`` in quotes: what cannot be printed is escaped, and a backslash stays itself.

    ``repr`` would double it, and an ERROR's header doubles it again. Of a long text the beginning
    is shown.
    """
    shown = "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode()
        for one in text[:LONGEST]
    )
    return f"'{shown}'" if len(text) <= LONGEST else f"'{shown}...' ({len(text)} characters)"
