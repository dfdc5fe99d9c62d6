"""Directories that Spark writes to and reads from, as options name them."""

from typing import Any, Final

import click

_PATTERNS: Final = frozenset("*?[]{}\\\\")
"""Letters by which Spark takes a name for a pattern, of which it reads whatever fits."""


class Directory(click.ParamType[str]):
    """An option that names one directory, of this machine or of whatever Spark knows."""

    name = "directory"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Refuse what would be no directory, or several."""
        text = str(value)
        if not text.rstrip("/"):
            self.fail(f"{text!r} is no directory to read or to write.", param, ctx)
        found = sorted(_PATTERNS.intersection(text))
        if found:
            self.fail(
                f"{text!r} has {' and '.join(found)} in it, which Spark takes for a pattern: it"
                " would read other directories, too. Give one without.",
                param,
                ctx,
            )
        return text
