"""What is wrong with a file, said one problem a line and all of them at once."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from config.errors import ConfigurationError


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
        self._lines: list[tuple[Location, str]] = []

    def add(self, location: Location, element: str, text: str) -> None:
        """Note that ``text`` is wrong with ``element`` at ``location``."""
        line = f"{location}: <{element}>: {text}"
        if (location, line) not in self._lines:
            self._lines.append((location, line))

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
            raise ConfigurationError("\n".join(line for _, line in ordered)) from None
