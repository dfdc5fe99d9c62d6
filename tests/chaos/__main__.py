"""``python -m tests.chaos``: strike a live node and two backups with faults, check every message.

    python -m tests.chaos --dbms postgresql --faults 500 --seed 1 --report chaos-report

Exits 1 if anything went against the rules. The report's directory gets a page with plots, the
figures as JSON, the history of all clients and the nodes' logs.
"""

import argparse
import sys
import time
from pathlib import Path

from benchmarks.floors import EVERY_DBMS, started
from tests.chaos import report
from tests.chaos.faults import FAULTS
from tests.chaos.run import Result, Run, choose, named


def main() -> int:
    """Run on each DBMS in turn."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dbms", nargs="+", choices=EVERY_DBMS, default=EVERY_DBMS)
    parser.add_argument("--faults", type=int, default=60, help="of each DBMS")
    parser.add_argument("--only", nargs="+", choices=FAULTS, help="these faults, in this order")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--report", type=Path, default=Path("chaos-report"))
    arguments = parser.parse_args()
    results: list[Result] = []
    for dbms in arguments.dbms:
        directory: Path = arguments.report / dbms
        directory.mkdir(parents=True, exist_ok=True)
        faults = (
            named(arguments.only)
            if arguments.only
            else choose(dbms, arguments.faults, arguments.seed)
        )
        with started(dbms) as server:
            result = Run(server, dbms, directory, arguments.seed, say=_say)(faults)
        result.write(directory / "result.json")
        results.append(result)
        _say(f"{dbms}, seed {result.seed}: {result.figures} violations: {result.violations}")
        for text in result.told:
            _say(text)
        page = report.write(results, arguments.report)
    _say(f"{page.resolve()} has the plots\n\n{report.summary(results)}\n{report.by_kind(results)}")
    return 1 if any(result.violations for result in results) else 0


def _say(text: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
