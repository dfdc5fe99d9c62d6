"""What Python runs first in Spark's Python processes: they get less to do after each task.

Spark's daemons of workers and of planners, the second of which no setting of Spark's replaces,
collect garbage after each task, from all that was imported, too. Here what is left after a task
counts as there to stay, as in the tests' own processes.
"""

import gc
import sys

if "pyspark.daemon" in sys.orig_argv:
    collect = gc.collect

    def _collect_what_is_new() -> int:
        found = collect()
        gc.freeze()
        return found

    gc.collect = _collect_what_is_new  # type: ignore[assignment]
