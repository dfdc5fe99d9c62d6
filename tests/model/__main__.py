"""``python -m tests.model``: check every configuration for two and three nodes; minutes, not hours.

Prints the table of docs/model/README.md; exits 1 if a property does not hold.
"""

import sys

from tests.model.spin import PROPERTIES, REFUTED, Configuration, check, without

CONFIGURATIONS = (
    Configuration(2, 2, 1),
    Configuration(2, 2, 1, liveness=True),
    Configuration(2, 3, 2),
    Configuration(2, 3, 2, liveness=True),
    Configuration(2, 3, 2, defines=("LEASE_ONLY",)),
    Configuration(2, 3, 2, defines=("WITHOUT_FENCE_GUARD",)),
    Configuration(2, 3, 2, defines=("WITHOUT_FENCE_ORDER",)),
    Configuration(2, 3, 2, defines=("DIFFERENT_TIMERS",)),
    Configuration(2, 2, 1, liveness=True, defines=("DIFFERENT_TIMERS",)),
    Configuration(2, 3, 2, defines=("CLOCK_STEPS",)),
    Configuration(2, 3, 2, defines=("CLOCK_STEPS", "CLOCK_STEPS_FORWARD")),
    Configuration(3, 2, 1),
    Configuration(3, 3, 2),
    Configuration(3, 3, 2, defines=("LEASE_ONLY",)),
    Configuration(3, 2, 1, liveness=True),
)


def main() -> int:
    """Check one configuration after the other, then that each mechanism is needed."""
    broken = 0
    _say("| nodes | expiration, grace | what | states | memory | time |")
    _say("|---|---|---|---|---|---|")
    for configuration in CONFIGURATIONS:
        outcome = check(configuration)
        what = "liveness" if configuration.liveness else "safety"
        what = ", ".join(
            [what, *(name.lower().replace("_", " ") for name in configuration.defines)]
        )
        _say(
            f"| {configuration.nodes} | {configuration.expiration}, {configuration.grace} | {what}"
            f" | {outcome.states:,} | {outcome.memory_mb:,.0f} MB | {outcome.seconds:,.0f} s |"
        )
        if outcome.violated is not None:
            broken += 1
            _say(f"VIOLATED: {PROPERTIES[outcome.violated]}")
    _say("")
    for mechanism, expected in REFUTED.items():
        found = check(without(mechanism)).violated
        broken += found != expected
        _say(f"without {mechanism}: {found or 'NOTHING VIOLATED'}")
    return 1 if broken else 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
