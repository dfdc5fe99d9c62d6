"""Run a command, and write as JSON what it and all its descendants cost.

    python -m benchmarks.process_tree RESULT COMMAND...

Descendants that outlive their parent are this process's children then: Spark ends without waiting
for its Python daemons. A daemon ignores that its workers end, so that the system keeps no account
of them: what they used is looked up while they live. The command's standard output is thrown away.
"""

import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_LOOK_SECONDS = 0.1
_TICKS = os.sysconf("SC_CLK_TCK")


class _Unaccounted:
    """Looks at descendants whose parent ignores that they end."""

    def __init__(self) -> None:
        self._used: dict[int, int] = {}
        """Ticks of each process."""
        self._accounted: set[int] = set()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def forget(self, pid: int) -> None:
        """Leave out a process that outlived its parent, and was waited for here."""
        self._accounted.add(pid)

    def seconds(self) -> float:
        """Return the processor seconds of all that have ended; ends the watch."""
        self._done.set()
        self._thread.join()
        lost = self._used.keys() - self._accounted
        return sum(self._used[pid] for pid in lost) / _TICKS

    def _watch(self) -> None:
        while not self._done.wait(_LOOK_SECONDS):
            self._look(os.getpid(), is_lost=False)

    def _look(self, pid: int, *, is_lost: bool) -> None:
        for child in _children(pid):
            with suppress(OSError):
                if is_lost:
                    fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
                    self._used[child] = int(fields[11]) + int(fields[12])
                self._look(child, is_lost=_ignores_ends(child))


def _children(pid: int) -> Iterator[int]:
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            yield from map(int, (thread / "children").read_text().split())


def _ignores_ends(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    ignored = status.partition("SigIgn:")[2].split()[0]
    return bool(int(ignored, 16) >> (signal.SIGCHLD - 1) & 1)


def main() -> None:
    """Run, wait for every descendant, and write the result."""
    result, *command = sys.argv[1:]
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    began = time.perf_counter()
    unaccounted = _Unaccounted()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None  # noqa: S101
        said = process.stderr.readline()
        first = time.perf_counter() - began
        said += process.stderr.read()
        code = process.wait()
    seconds = time.perf_counter() - began
    while True:
        try:
            pid, _ = os.wait()
        except ChildProcessError:
            break
        unaccounted.forget(pid)
    workers = unaccounted.seconds()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = {
        "code": code,
        "seconds": seconds,
        "first_word": first,
        "processor": used.ru_utime + used.ru_stime + workers,
        "workers": workers,
        "said": said.decode(errors="replace"),
    }
    Path(result).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
