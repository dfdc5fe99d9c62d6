"""What is wrong with a file, said one problem a line and all of them at once."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orthia.config.errors import ConfigurationError

MAXIMUM_PROBLEMS: Final = 100
"""Told of one file: a person mends these first, and a file that is none is not read to its end."""


@dataclass(frozen=True, order=True)
class Location:
    """A line of a file."""

    file: Path
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class Problems:
    """Collects problems, so that a person sees every one of them in one go."""

    def __init__(self) -> None:
        self._lines: dict[tuple[Location, str], None] = {}
        self._found = 0
        """Repeated ones too: finding each costs time."""

    def add(self, location: Location, element: str, text: str) -> None:
        """Note that ``text`` is wrong with ``element`` at ``location``.

        Raises ConfigurationError when that makes too many problems to go on.
        """
        if self._found >= MAXIMUM_PROBLEMS:
            self.raise_if_any()
        self._found += 1
        self._lines[location, f"{location}: <{element}>: {text}"] = None

    @property
    def are_any(self) -> bool:
        """Whether there is a problem."""
        return bool(self._lines)

    def add_of_file(self, file: Path, error: ConfigurationError) -> None:
        """Note what is wrong with another file, of which ``error`` says the place."""
        self._found += 1
        self._lines[Location(file, 1), str(error)] = None

    @contextmanager
    def noting(self, location: Location, element: str) -> Iterator[None]:
        """Note a ConfigurationError raised inside as a problem of ``element``, and go on."""
        try:
            yield
        except ConfigurationError as error:
            self.add(location, element, str(error))

    def raise_if_any(self) -> None:
        """Raise ConfigurationError with every problem noted, in the order of the file."""
        if self._lines:
            ordered = sorted(self._lines, key=lambda entry: entry[0])
            lines = [line for _, line in ordered]
            if self._found >= MAXIMUM_PROBLEMS:
                lines.append(f"{ordered[0][0].file}: there may be more; these are the first found")
            raise ConfigurationError("\n".join(lines)) from None
