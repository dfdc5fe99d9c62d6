"""What is said of a rule that a configuration breaks."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Violation:
    """A rule that is broken."""

    element: str
    """Path of the element to change, as ``core/acceptors/acceptor[stomp]``."""
    message: str
    """What is wrong, with the numbers, and what was expected."""

    @property
    def name(self) -> str:
        """The element's own name, without those around it."""
        return self.element.rpartition("/")[2]


def repeated(element: str, names: Iterable[str]) -> Iterator[Violation]:
    """Yield a violation for each name that was there before."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            yield Violation(f"{element}[{name}]", "is there twice; expected it once")
        seen.add(name)
