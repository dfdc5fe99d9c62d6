"""Spark's daemon of Python workers, with less to do after each task.

A worker of Spark's collects garbage after each task, from all that it has imported, too. Here what
is left after a task counts as there to stay, as in the tests' own processes.
"""

import gc

from pyspark import daemon


class _Collector:
    """What stands for the module ``gc`` in Spark's daemon."""

    @staticmethod
    def collect() -> None:
        """Collect garbage, and pass over what is left in future."""
        gc.collect()
        gc.freeze()


if __name__ == "__main__":
    daemon.gc = _Collector  # type: ignore[assignment,attr-defined]  # a private name
    daemon.manager()
