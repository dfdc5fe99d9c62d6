"""What a fault is, and the register of all of them.

A fault is a context manager: entering strikes, leaving heals. It yields what was struck and how
long to hold it. It says to the ground which nodes it may end and how: an end that no fault explains
is a violation.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from tests.chaos.ground import EXPIRATION_SECONDS, Ground

IO_ERROR = 74
"""A node lost its lease or its store."""


@dataclass(frozen=True)
class Strike:
    """A fault that is on."""

    target: str
    seconds: float
    is_for_good: bool = False
    """Clients must make progress while it lasts; only then is tidied up after it."""


Effect = Callable[[Ground], AbstractContextManager[Strike]]


@dataclass(frozen=True)
class Fault:
    """A kind of fault."""

    name: str
    effect: Effect
    needs: frozenset[str]
    """What a world must have for it: see ``World.has``."""
    lacks: frozenset[str]
    """What it must not have."""
    weight: int = 1
    is_alone: bool = False
    """Whether it never comes together with another."""

    def is_possible(self, has: frozenset[str]) -> bool:
        """Tell whether it can be made in a world that has this."""
        return self.needs <= has and not self.lacks & has


FAULTS: dict[str, Fault] = {}


def fault(
    name: str,
    needs: str = "",
    lacks: str = "",
    *,
    weight: int = 1,
    is_alone: bool = False,
) -> Callable[[Callable[[Ground], Iterator[Strike]]], Effect]:
    """Register a generator as the fault ``name``; ``needs`` and ``lacks`` are words of a world."""

    def register(function: Callable[[Ground], Iterator[Strike]]) -> Effect:
        effect = contextmanager(function)
        FAULTS[name] = Fault(
            name, effect, frozenset(needs.split()), frozenset(lacks.split()), weight, is_alone
        )
        return effect

    return register


def short(ground: Ground) -> float:
    """Return seconds that every node bears: less than a renewal may take."""
    return ground.random.uniform(0.2, 0.6) * ground.renewal_seconds


def long(ground: Ground) -> float:
    """Return more seconds than a lease lasts."""
    return ground.random.uniform(1.2, 1.8) * EXPIRATION_SECONDS
