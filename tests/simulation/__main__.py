"""``python -m tests.simulation [--seed N] [--runs N]``: run the simulation, print what fails."""

import argparse
import gc
import os
import secrets
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from tests.simulation.mechanisms import Mechanisms
from tests.simulation.tables import Violation
from tests.simulation.world import MAX_RATE_DRIFT, World

SECONDS = 120
_SEEDS = 2**40


def run(
    seed: int, *, mechanisms: Mechanisms | None = None, drift: float = MAX_RATE_DRIFT
) -> tuple[int, str | None]:
    """Run one seed; return how many takeovers there were, and what invariant did not hold."""
    world = World(seed, mechanisms=mechanisms, drift=drift)
    try:
        world.simulate(SECONDS)
    except Violation as violation:
        return world.takeovers, f"seed {seed}, at {world.now:.3f} s: {violation}"
    finally:
        world.close()
    return world.takeovers, None


def _run_and_collect(seed: int) -> tuple[int, str | None]:
    outcome = run(seed)
    gc.collect()
    return outcome


def _begin_without_collector() -> None:
    # A world is garbage in one piece when its run is over, and nothing before is worth a search;
    # what the modules themselves hold never is, and would cost more to look at than the run.
    gc.disable()
    gc.freeze()


def main() -> int:
    """Run seeds on every core; exit 1 if an invariant did not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--seed", type=int, help="the first seed; without it they begin where chance has it"
    )
    parser.add_argument("--runs", type=int, default=1_000)
    arguments = parser.parse_args()
    first = secrets.randbelow(_SEEDS) if arguments.seed is None else arguments.seed
    seeds = range(first, first + arguments.runs)
    sys.stdout.write(f"seeds {first} to {seeds[-1]}\n")
    sys.stdout.flush()
    began, violated, takeovers = time.monotonic(), 0, 0
    workers = min(os.cpu_count() or 1, arguments.runs)
    with ProcessPoolExecutor(workers, initializer=_begin_without_collector) as pool:
        for taken, violation in pool.map(_run_and_collect, seeds, chunksize=20):
            takeovers += taken
            if violation is not None:
                violated += 1
                sys.stdout.write(violation + "\n")
    seconds = time.monotonic() - began
    sys.stdout.write(
        f"{arguments.runs} runs in {seconds:.1f} s ({arguments.runs / seconds * 60:.0f} a minute),"
        f" {takeovers} takeovers, {violated} violations\n"
    )
    if violated:
        sys.stdout.write("to look at one: make simulate SEED=<its seed>\n")
    return 1 if violated else 0


if __name__ == "__main__":
    raise SystemExit(main())
