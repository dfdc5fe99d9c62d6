"""Messages that cannot be read: a job goes on without them, counts them and says which they are."""

from typing import Final

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

COLUMNS: Final = ("seq", "queue", "corrupt")
"""What is read, and told, of them."""
LISTED: Final = 20
"""So many are named; the column ``corrupt`` of an export has them all."""


def listed(messages: DataFrame) -> DataFrame:
    """Return the first of them by ``seq``: queue, and why they cannot be read."""
    return messages.where("corrupt IS NOT NULL").select(*COLUMNS).orderBy("seq").limit(LISTED)


class Counts:
    """How many rows, messages and unreadable ones pass on their way to somewhere else."""

    def __init__(self) -> None:
        self._observation = Observation()

    def of(self, rows: DataFrame) -> DataFrame:
        """Return ``rows``, which are counted when they are read."""
        return rows.observe(
            self._observation,
            F.count(F.lit(1)).alias("rows"),
            F.count_if(F.col("kind").isin("message", "reference")).alias("messages"),
            F.count_if(F.col("corrupt").isNotNull()).alias("corrupt"),
        )

    @property
    def rows(self) -> int:
        """Rows that passed; waits for whoever reads them."""
        return int(self._observation.get["rows"])

    @property
    def messages(self) -> int:
        """Each queue's share of a message is one."""
        return int(self._observation.get["messages"])

    @property
    def corrupt(self) -> int:
        """Rows that cannot be read."""
        return int(self._observation.get["corrupt"])
