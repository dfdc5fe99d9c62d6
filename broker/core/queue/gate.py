# mypyc compiles this module.
"""Whether this node may deliver at this moment, and who goes on delivering once it may again."""

from collections.abc import Callable
from typing import Protocol

from orthia.broker.core.errors import NotLive
from orthia.broker.core.limits.memory import Waiters
from orthia.broker.core.slices import GO_ON, Slices, Steps


class Deliverer(Protocol):
    """A queue, which delivers while the gate is open."""

    def resume(self) -> None:
        """Go on delivering."""


class DeliveryGate:
    """Open while the node runs and its lease is valid."""

    __slots__ = ("_lease_valid", "_slices", "held_back", "is_running")

    def __init__(self, lease_valid: Callable[[], bool], slices: Slices) -> None:
        """``lease_valid`` is asked before each delivery."""
        self._lease_valid = lease_valid
        self._slices = slices
        self.is_running = True
        """False once the core was stopped, for good."""
        self.held_back: Waiters[Deliverer] = Waiters()

    def refuse_if_stopped(self) -> None:
        """Raise NotLive once the core was stopped."""
        if not self.is_running:
            raise NotLive("this node is stopping or is live no more; connect to the other node")

    def may_deliver(self, who: Deliverer) -> bool:
        """Return whether a delivery is allowed at this moment; ``go_on`` knows who was refused."""
        return (self.is_running and self._lease_valid()) or self.held_back.note(who)

    def go_on(self) -> None:
        """Resume those that were held back without a valid lease: it is valid again."""
        if self.held_back:
            self._slices.run(self._going_on(len(self.held_back)))

    def _going_on(self, most: int) -> Steps:
        for _ in range(most):
            # Some may have gone on, and been refused again, meanwhile.
            if not self.held_back or not self.is_running or not self._lease_valid():
                return
            self.held_back.pop().resume()
            yield GO_ON
