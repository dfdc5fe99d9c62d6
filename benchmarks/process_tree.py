"""Run a command, and write as JSON what it and all its descendants cost.

    python -m benchmarks.process_tree RESULT COMMAND...

Descendants that outlive their parent are this process's children then, so none is missing: Spark
ends without waiting for its Python workers. The command's standard output is thrown away.
"""

import ctypes
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36


def main() -> None:
    """Run, wait for every descendant, and write the result."""
    result, *command = sys.argv[1:]
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None  # noqa: S101
        said = process.stderr.readline()
        first = time.perf_counter() - began
        said += process.stderr.read()
        code = process.wait()
    seconds = time.perf_counter() - began
    while True:
        try:
            os.wait()
        except ChildProcessError:
            break
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = {
        "code": code,
        "seconds": seconds,
        "first_word": first,
        "processor": used.ru_utime + used.ru_stime,
        "said": said.decode(errors="replace"),
    }
    Path(result).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
