"""How texts that a client wrote are shown to it and in the log."""


def quoted(text: str) -> str:
    """Return ``text`` in quotes: what cannot be printed is escaped, and a backslash stays itself.

    ``repr`` would double it, and an ERROR's header doubles it again.
    """
    shown = "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in text
    )
    return f"'{shown}'"
