"""Messages that cannot be read: a job skips, counts and lists them."""

from typing import Final

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

COLUMNS: Final = ("seq", "queue", "corrupt")
"""The columns that are read and listed."""
LISTED: Final = 20
"""The most that are listed; the column ``corrupt`` of an export has them all."""


def listed(messages: DataFrame) -> DataFrame:
    """Return the first of them by ``seq``, with queue and reason."""
    return messages.where("corrupt IS NOT NULL").select(*COLUMNS).orderBy("seq").limit(LISTED)


class Counts:
    """Counts rows, messages and unreadable ones as they pass."""

    def __init__(self) -> None:
        self._observation = Observation()

    def of(self, rows: DataFrame) -> DataFrame:
        """Return ``rows``; reading them counts them."""
        return rows.observe(
            self._observation,
            F.count(F.lit(1)).alias("rows"),
            F.count_if(F.col("kind").isin("message", "reference")).alias("messages"),
            F.count_if(F.col("corrupt").isNotNull()).alias("corrupt"),
            F.count_if("large").alias("large"),
        )

    @property
    def rows(self) -> int:
        """The number of rows; waits until they are read."""
        return int(self._observation.get["rows"])

    @property
    def messages(self) -> int:
        """The number of messages; one of several queues counts in each."""
        return int(self._observation.get["messages"])

    @property
    def large(self) -> int:
        """The number of rows that need the body of a large message."""
        return int(self._observation.get["large"])

    @property
    def corrupt(self) -> int:
        """The number of rows that cannot be read."""
        return int(self._observation.get["corrupt"])
