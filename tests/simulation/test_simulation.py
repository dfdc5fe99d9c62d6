"""The simulation: every invariant over many seeds, and every mechanism is needed."""

from dataclasses import fields, replace

import pytest

from tests.simulation.world import Mechanisms, Violation, World

SECONDS = 300
RUNS = 120

CAUGHT_BY = {
    "renewal_matches_holder_and_token": 29,
    "fence": 2,
    "fence_waits_for_batches": 157,
    "deadline_from_before_the_request": 45,
    "watchdog": 0,
    "idle_limit": 3,
    "idempotent_batches": 0,
    "receipt_after_commit": 0,
    "crash_writes_no_pause": 2,
    "watch_before_taking_over": 2,
    "delivery_ends_with_the_grace": 1,
}
"""A seed that fails when the mechanism is missing."""


def test_no_seed_violates_an_invariant() -> None:
    """Whatever goes wrong: one writer, one deliverer, nothing receipted lost, and service again."""
    takeovers = 0
    for seed in range(RUNS):
        world = World(seed)
        try:
            world.simulate(SECONDS)
        except Violation as violation:
            raise AssertionError(f"seed {seed}, at {world.now:.3f} s: {violation}") from violation
        takeovers += world.takeovers
    assert takeovers > 2 * RUNS, "the runs prove little: hardly anything was taken over"


def test_a_seed_gives_the_same_run_each_time() -> None:
    """A failing seed can be looked at again and again."""

    def run() -> tuple[list[tuple[int, int]], set[int]]:
        world = World(5)
        world.simulate(SECONDS)
        return world.database.rows, world.receipted

    assert run() == run()


def test_every_mechanism_has_its_seed() -> None:
    """None is forgotten in the table above."""
    assert set(CAUGHT_BY) == {mechanism.name for mechanism in fields(Mechanisms)}


@pytest.mark.parametrize("mechanism", list(CAUGHT_BY))
def test_without_a_mechanism_an_invariant_breaks(mechanism: str) -> None:
    """With it the same seed is well."""
    seed = CAUGHT_BY[mechanism]
    World(seed).simulate(SECONDS)
    crippled = replace(Mechanisms(), **{mechanism: False})
    with pytest.raises(Violation):
        World(seed, mechanisms=crippled).simulate(SECONDS)
