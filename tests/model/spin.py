"""Runs spin on the model of the lease-and-fence protocol, docs/model/lease.pml, exhaustively."""

import re
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

MODEL = Path(__file__).parents[2] / "docs" / "model" / "lease.pml"
_DEPTHS = {2: 1_000_000, 3: 30_000_000}
"""How deep the search may go, by the number of nodes; it fails if that is not enough."""
_OPTIMIZED = {2: "-O0", 3: "-O2"}
"""With two nodes the compiler takes longer than the search."""

PROPERTIES = {
    "stale_row": "no row under an older token after a newer token's first row",
    "missed_by_successor": "no row under an older token after a successor loaded the journal",
    "two_deliver": "no two nodes deliver at once",
    "deadline_after_expiry": "a local deadline is never later than the database's expiry",
    "receipted_not_stored": "what was receipted is in the journal",
    "stored_twice": "a batch is stored once, however often it is tried",
    "took_from_present": "a process that has its presence lock keeps its whole lease",
    "live==1": "after the faults exactly one node is live, within one expiration",
}
"""By what the model asserts."""


REFUTED = {
    "TOKEN_MATCH": "two_deliver",
    "DEADLINE_BEFORE_REQUEST": "deadline_after_expiry",
    "TOKEN_CHECK": "missed_by_successor",
    "SHARE_LOCK": "missed_by_successor",
    "FENCE_FIRST": "missed_by_successor",
    "FENCE_GUARD FENCE_ORDER": "missed_by_successor",
    "RECEIPT_AFTER_COMMIT": "receipted_not_stored",
    "IDEMPOTENT_BATCHES": "stored_twice",
    "GRACE": "two_deliver",
    "DELIVERY_LIMIT": "two_deliver",
    "COMPARE_AND_SET": "took_from_present",
    "PRESENCE_LOCK": "took_from_present",
    "CONFIRMATION": "took_from_present",
    "RELEASE_LAST": "two_deliver",
    "RELEASE_MATCH": "two_deliver",
    "IDLE_LIMIT": "live==1",
    "GRACE_OF_THE_HOLDER": "two_deliver",
}
"""What is found first when a mechanism is switched off; two that stand in for each other, both."""


@dataclass(frozen=True)
class Configuration:
    """What is checked: how many nodes, the timers in ticks, and what is switched off."""

    nodes: int = 2
    expiration: int = 2
    grace: int = 1
    liveness: bool = False
    defines: tuple[str, ...] = ()

    @property
    def finds_cycles(self) -> bool:
        """Whether cycles in which no time passes are looked for too; two nodes are enough."""
        return self.liveness and self.nodes == 2

    @property
    def flags(self) -> list[str]:
        """The model's switches."""
        flags = [
            f"-DNODES={self.nodes}",
            f"-DEXPIRATION={self.expiration}",
            f"-DGRACE={self.grace}",
        ]
        if "DIFFERENT_TIMERS" not in self.defines:
            flags.append("-DSYMMETRY")
        if self.liveness:
            flags.append("-DLIVENESS")
        return flags + [f"-D{define}" for define in self.defines]


def without(mechanism: str) -> Configuration:
    """Return the small configuration with a mechanism of ``REFUTED`` switched off."""
    defines = tuple(f"WITHOUT_{switch}" for switch in mechanism.split())
    if mechanism == "GRACE_OF_THE_HOLDER":
        defines += ("DIFFERENT_TIMERS",)
    return Configuration(liveness=REFUTED[mechanism] == "live==1", defines=defines)


@dataclass(frozen=True)
class Outcome:
    """What a check came to."""

    states: int
    depth: int
    memory_mb: float
    seconds: float
    violated: str | None
    """A key of ``PROPERTIES``; None if all hold in every state."""


def check(configuration: Configuration, *, memory_limit_mb: int = 12_000) -> Outcome:
    """Visit every state of a configuration, or the first that violates a property.

    Raises RuntimeError if spin or gcc fails, or if the search was not exhaustive.
    """
    with tempfile.TemporaryDirectory(prefix="orthia-model-") as directory:
        _run(["spin", *configuration.flags, "-a", str(MODEL)], directory)
        mode = [] if configuration.finds_cycles else ["-DSAFETY", "-DNOCLAIM"]
        limits = ["-DNOREDUCE", f"-DMEMLIM={memory_limit_mb}"]
        _run(
            ["cc", _OPTIMIZED[configuration.nodes], "-w", *mode, *limits, "-o", "pan", "pan.c"],
            directory,
        )
        began = time.monotonic()
        # No state is left out or taken for another: this is neither bit-state nor hash-compact.
        search = ["-a"] if configuration.finds_cycles else []
        output = _run(["./pan", f"-m{_DEPTHS[configuration.nodes]}", "-w22", *search], directory)
        return _read(output, time.monotonic() - began)


def _run(command: list[str], directory: str) -> str:
    try:
        done = subprocess.run(
            command, cwd=directory, capture_output=True, text=True, check=True, timeout=3600
        )
    except FileNotFoundError as error:
        raise RuntimeError(f"{command[0]} is missing: `make setup-test-all` installs it") from error
    except subprocess.CalledProcessError as error:
        raise RuntimeError(f"{command[0]} failed: {error.stdout}{error.stderr}") from error
    return done.stdout


def _read(output: str, seconds: float) -> Outcome:
    violated = None
    if found := re.search(r"assertion violated\s+!?\(+(.+?)\)+ \(at depth", output):
        violated = found.group(1)
    elif "acceptance cycle" in output.replace("acceptance   cycles", ""):
        violated = "live==1"  # time stands still: nobody will ever be live
    elif "errors: 0" not in output or re.search(r"not completed|depth too small", output):
        raise RuntimeError(f"the search was not exhaustive: {output}")
    if violated is not None and violated not in PROPERTIES:
        raise RuntimeError(f"unknown property {violated}: {output}")
    return Outcome(
        states=int(float(_number(r"([\d.e+]+) states, stored", output))),
        depth=int(_number(r"depth reached (\d+)", output)),
        memory_mb=float(_number(r"([\d.]+)\s+total actual memory", output)),
        seconds=seconds,
        violated=violated,
    )


def _number(pattern: str, output: str) -> str:
    found = re.search(pattern, output)
    if found is None:
        raise RuntimeError(f"no {pattern!r} in the output of the search: {output}")
    return found.group(1)
