"""``python -m tests.chaos``: strike a live node and two backups with faults, check every message.

    python -m tests.chaos --world postgresql --faults 500 --pairs 3 --seed 1 --report chaos-report

Each world's faults are shared among ``--pairs`` independent runs that go on at once, with seeds of
their own and servers of their own; all worlds go on at once too with ``--at-once``. Exits 1 if
anything went against the rules. The report's directory gets a page with plots, the figures as JSON,
and for each run the history of all clients and the nodes' logs.
"""

import argparse
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

from tests.chaos import report
from tests.chaos.faults import FAULTS
from tests.chaos.population import EVERY_KIND, Kinds
from tests.chaos.run import Result, Run, choose, named
from tests.chaos.worlds import WORLDS, may_mount, started

USUAL = ("postgresql", "mariadb", "sqlite", "files", "synchronous-standby")
_RESULT = "result.json"


def main() -> int:
    """Run in each world."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--world", nargs="+", choices=WORLDS, default=USUAL)
    parser.add_argument("--clients", nargs="+", type=Kinds, choices=EVERY_KIND, default=EVERY_KIND)
    parser.add_argument("--faults", type=int, default=60, help="in each world")
    parser.add_argument("--pairs", type=int, default=1, help="runs of a world at once")
    parser.add_argument("--at-once", action="store_true", help="all worlds at once")
    parser.add_argument("--minutes", type=float, help="strike no further fault after so many")
    parser.add_argument("--only", nargs="+", choices=FAULTS, help="these faults, in this order")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--report", type=Path, default=Path("chaos-report"))
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, _end)  # as Ctrl-C, so that no node outlives its run
    if len(arguments.world) == 1 and arguments.pairs == 1:
        results = [_run(arguments, arguments.world[0])]
    else:
        results = _run_children(arguments)
    page = report.write(results, arguments.report)
    together = report.merged(results)
    _say(
        f"{page.resolve()} has the plots\n\n{report.summary(together)}\n{report.by_kind(together)}"
    )
    return 1 if any(result.violations for result in results) else 0


def _run(arguments: argparse.Namespace, name: str) -> Result:
    until = time.monotonic() + 60 * arguments.minutes if arguments.minutes else float("inf")
    directory: Path = arguments.report / name
    directory.mkdir(parents=True, exist_ok=True)
    may_mount()  # before there are threads, which would keep the mounts of before
    with started(WORLDS[name]) as site:
        faults = (
            named(arguments.only)
            if arguments.only
            else choose(site, arguments.faults, arguments.seed)
        )
        run = Run(site, directory.resolve(), arguments.seed, _say, until, arguments.clients)
        result = run(faults)
    result.write(directory / _RESULT)
    _say(f"{name}, seed {result.seed}: {result.figures} violations: {result.violations}")
    for text in result.told:
        _say(text)
    return result


def _run_children(arguments: argparse.Namespace) -> list[Result]:
    """Run every world and pair in a process of its own; return the results there are."""
    results: list[Result] = []
    waiting = [(name, pair) for name in arguments.world for pair in range(arguments.pairs)]
    while waiting:
        count = len(waiting) if arguments.at_once else arguments.pairs
        now, waiting = waiting[:count], waiting[count:]
        children = [_child(arguments, name, pair) for name, pair in now]
        for path, child in children:
            try:
                child.wait()
            except BaseException:
                for _, other in children:
                    other.terminate()
                raise
            if path.exists():
                results.append(Result.read(path))
            else:
                results.append(Result(path.parent.name, 0, violations={"broken": 1}))
    return results


def _child(
    arguments: argparse.Namespace, name: str, pair: int
) -> tuple[Path, "subprocess.Popen[bytes]"]:
    directory: Path = arguments.report / f"pair-{pair}"
    count = arguments.faults // arguments.pairs + (pair < arguments.faults % arguments.pairs)
    command = [sys.executable, "-m", "tests.chaos", "--world", name, "--faults", str(count)]
    command += ["--seed", str(arguments.seed + pair), "--report", str(directory)]
    command += ["--clients", *arguments.clients]
    if arguments.minutes:
        command += ["--minutes", str(arguments.minutes)]
    if arguments.only:
        command += ["--only", *arguments.only]
    path = directory / name / _RESULT
    path.unlink(missing_ok=True)
    return path, subprocess.Popen(command)


def _end(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _say(text: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
