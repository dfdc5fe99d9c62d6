"""The error for a selector that is refused."""

from orthia.broker.core.errors import BrokerError


class SelectorRefused(BrokerError):  # noqa: N818 - named for what is the case
    """A selector cannot be parsed, or is too long or too deep."""

    def __init__(self, problem: str, column: int | None = None, *, whose: str = "") -> None:
        """``column`` counts from 1; None if the ``problem`` concerns the whole selector.

        ``whose`` follows the word selector in the text.
        """
        place = "" if column is None else f"at column {column}: "
        super().__init__(f"the selector{whose} is refused: {place}{problem}")
        self.problem = problem
        self.column = column

    def of(self, whose: str) -> "SelectorRefused":
        """Return the same error that names the owner of the selector, as ``queue 'x'``."""
        return SelectorRefused(self.problem, self.column, whose=f" of {whose}")
