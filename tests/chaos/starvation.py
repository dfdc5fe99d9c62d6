"""How long nodes wait for a processor: the kernel counts it for each thread."""

import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

from tests.chaos.exits import Waited
from tests.chaos.ground import Ground
from tests.chaos.watches import Watch

_SECONDS = 0.2
_PRESSURE = Path("/proc/pressure")


class StarvationWatch(Watch):
    """Notes for each node how long its threads waited for a processor, and others for disks."""

    def __init__(self, ground: Ground) -> None:
        super().__init__()
        self._nodes = ground.nodes
        self._seen: dict[tuple[int, int], int] = {}
        self.waited: dict[str, list[Waited]] = defaultdict(list)

    def run(self) -> None:
        """Watch until stopped."""
        disk = _stalled_microseconds("io")
        while not self._stopping.wait(_SECONDS):
            before, disk = disk, _stalled_microseconds("io")
            for node in self._nodes:
                process = node.process
                if process is not None and process.returncode is None:
                    most = self._most_waited(process.pid)
                    sample = Waited(time.monotonic(), most, (disk - before) / 1e6)
                    self.waited[node.name].append(sample)

    def _most_waited(self, pid: int) -> float:
        """Return the seconds that one thread of a process has waited since the last look."""
        most = 0
        with suppress(OSError):  # it has ended
            for task in Path(f"/proc/{pid}/task").iterdir():
                with suppress(OSError):
                    waited = int((task / "schedstat").read_text().split()[1])
                    key = (pid, int(task.name))
                    most = max(most, waited - self._seen.get(key, waited))
                    self._seen[key] = waited
        return most / 1e9


def _stalled_microseconds(what: str) -> int:
    """Return for how long, in all, some process has waited for ``what``; 0 if nobody counts."""
    with suppress(OSError):
        some = (_PRESSURE / what).read_text().splitlines()[0]
        return int(some.rpartition("=")[2])
    return 0
