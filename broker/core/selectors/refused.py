"""Why a selector is not taken."""

from orthia.broker.core.errors import BrokerError


class SelectorRefused(BrokerError):  # noqa: N818 - named for what is the case
    """A selector cannot be understood, or is too long or too deep."""

    def __init__(self, problem: str, column: int | None = None, *, whose: str = "") -> None:
        """Say what is wrong at a ``column`` of the selector, from 1 on; None for all of it.

        ``whose`` it is follows the word selector.
        """
        place = "" if column is None else f"at column {column}: "
        super().__init__(f"the selector{whose} is refused: {place}{problem}")
        self.problem = problem
        self.column = column

    def of(self, whose: str) -> "SelectorRefused":
        """Return the same, which says whose selector it is, as ``queue 'x'``."""
        return SelectorRefused(self.problem, self.column, whose=f" of {whose}")
