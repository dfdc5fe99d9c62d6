"""All faults there are."""

from tests.chaos import link_faults, node_faults, store_faults
from tests.chaos.fault import FAULTS, Fault

__all__ = ["FAULTS", "kinds", "link_faults", "node_faults", "store_faults"]


def kinds(has: frozenset[str]) -> list[Fault]:
    """Return the faults that can be made in a world that has this; see ``World.has``."""
    return [fault for fault in FAULTS.values() if fault.is_possible(has)]
