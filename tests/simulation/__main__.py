"""``python -m tests.simulation [--seed N] [--runs N]``: run the simulation, print what fails."""

import argparse
import itertools
import time

from tests.simulation.world import Violation, World

SECONDS = 300


def main() -> int:
    """Run seeds one after the other; exit 1 if an invariant did not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--runs", type=int, default=1_000)
    arguments = parser.parse_args()
    began, violated, takeovers = time.monotonic(), 0, 0
    for seed in itertools.islice(itertools.count(arguments.seed), arguments.runs):
        world = World(seed)
        try:
            world.simulate(SECONDS)
        except Violation as violation:
            violated += 1
            print(f"seed {seed}, at {world.now:.3f} s: {violation}")  # noqa: T201 - its output
        takeovers += world.takeovers
    print(  # noqa: T201 - its output
        f"{arguments.runs} runs in {time.monotonic() - began:.1f} s, {takeovers} takeovers,"
        f" {violated} violations"
    )
    return 1 if violated else 0


if __name__ == "__main__":
    raise SystemExit(main())
