"""``python -m tests.simulation [--seed N] [--runs N]``: run the simulation, print what fails."""

import argparse
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from tests.simulation.database import Violation
from tests.simulation.world import World

SECONDS = 120


def run(seed: int) -> tuple[int, str | None]:
    """Run one seed; return how many takeovers there were, and what invariant did not hold."""
    world = World(seed)
    try:
        world.simulate(SECONDS)
    except Violation as violation:
        return world.takeovers, f"seed {seed}, at {world.now:.3f} s: {violation}"
    return world.takeovers, None


def main() -> int:
    """Run seeds on every core; exit 1 if an invariant did not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--runs", type=int, default=1_000)
    arguments = parser.parse_args()
    began, violated, takeovers = time.monotonic(), 0, 0
    seeds = range(arguments.seed, arguments.seed + arguments.runs)
    with ProcessPoolExecutor(min(os.cpu_count() or 1, arguments.runs)) as pool:
        for taken, violation in pool.map(run, seeds, chunksize=20):
            takeovers += taken
            if violation is not None:
                violated += 1
                sys.stdout.write(violation + "\n")
    seconds = time.monotonic() - began
    sys.stdout.write(
        f"{arguments.runs} runs in {seconds:.1f} s ({arguments.runs / seconds * 60:.0f} a minute),"
        f" {takeovers} takeovers, {violated} violations\n"
    )
    return 1 if violated else 0


if __name__ == "__main__":
    raise SystemExit(main())
