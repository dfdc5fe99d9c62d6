"""Whether groups, selectors and delays do what they say, by what the clients saw. Pure.

- group: two consumers have messages of one group at once. A client that has a message may have lost
  it without knowing, with its node, and another one rightly has the group; or what it reads was
  written before its connection ended. So only two count that both had acknowledged *after* both had
  received, each with a RECEIPT on the connection on which its message came: at the moment when the
  later of the two was read, both were theirs;
- selected: a consumer with a selector gets what it does not select. That it gets all it selects
  shows in nothing being lost: nobody else takes it;
- early: what is to be delivered later comes before it is due. Where clocks are stepped that are the
  database's, too, only the database can tell: see ``witness``.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping

from tests.chaos.checker import EARLY_SECONDS, Violations
from tests.chaos.clients import group_of, lane_of
from tests.chaos.history import Kind, Operation

_Held = tuple[str, int]
"""A message that a client has: the client, and the broker's name for the copy."""


class GroupChecker:
    """Hears the operations of a run in order."""

    def __init__(self, queues: Collection[str], violations: Violations) -> None:
        """Messages of ``queues`` are of groups."""
        self._queues = queues
        self._violations = violations
        self._groups: dict[_Held, tuple[str, str]] = {}
        """The queue and group of what a client has and did not acknowledge."""
        self._together: dict[_Held, set[_Held]] = defaultdict(set)
        """What another client had of the same group, at once, as far as both could know."""
        self.grouped = 0
        self._confirmed: set[_Held] = set()
        """Of those, what has a confirmed acknowledgement."""

    def observe(self, operation: Operation) -> None:
        """Hear the next operation."""
        held = (operation.client, operation.message_id)
        match operation.kind:
            case Kind.CONNECTED | Kind.LOST:
                self._forget(operation.client)
            case Kind.RECEIVE if operation.queue in self._queues and not operation.moved:
                self._received(held, operation)
            case Kind.ACK:
                self._groups.pop(held, None)
            case Kind.ACKED if held in self._together:
                self._acked(held)
            case _:
                pass

    def _received(self, held: _Held, operation: Operation) -> None:
        self.grouped += 1
        group = (operation.queue, group_of(operation.body))
        for other, its_group in self._groups.items():
            if its_group == group and other[0] != operation.client:
                self._together[held].add(other)
                self._together[other].add(held)
        self._groups[held] = group

    def _acked(self, held: _Held) -> None:
        self._confirmed.add(held)
        for other in self._together[held] & self._confirmed:
            self._violations.add(
                "group",
                f"{held[0]} had {held[1]} while {other[0]} had {other[1]} of the same group",
            )

    def _forget(self, client: str) -> None:
        """Forget what a client may have lost long before it knew."""
        for held in [one for one in self._groups if one[0] == client]:
            del self._groups[held]
        for held in [one for one in self._together if one[0] == client]:
            if held not in self._confirmed:
                for other in self._together.pop(held):
                    self._together[other].discard(held)


class SelectorChecker:
    """Hears the operations of a run in order."""

    def __init__(self, selects: Mapping[str, frozenset[int]], violations: Violations) -> None:
        """``selects`` says of consumers which lanes they select."""
        self._selects = selects
        self._violations = violations
        self.selected = 0

    def observe(self, operation: Operation) -> None:
        """Hear the next operation."""
        if operation.kind is not Kind.RECEIVE or operation.client not in self._selects:
            return
        self.selected += 1
        lanes, lane = self._selects[operation.client], lane_of(operation.body)
        if lane not in lanes:
            text = f"{operation.client} selects {sorted(lanes)} and got {operation.body} of {lane}"
            self._violations.add("selected", text)


class DelayChecker:
    """Hears the operations of a run in order."""

    def __init__(self, violations: Violations, *, has_true_clock: bool) -> None:
        """``has_true_clock`` says that the database's clock shows the time."""
        self._violations = violations
        self._has_true_clock = has_true_clock
        self._due_at: dict[tuple[str, str], float] = {}
        self.delayed = 0

    def observe(self, operation: Operation) -> None:
        """Hear the next operation."""
        name = (operation.queue, operation.body)
        if operation.kind is Kind.SEND and operation.due_at:
            self._due_at.setdefault(name, operation.due_at)
        elif operation.kind is Kind.RECEIVE and name in self._due_at:
            self.delayed += 1
            early = self._due_at[name] - operation.at
            if self._has_true_clock and early > EARLY_SECONDS:
                text = f"{operation.client} got {operation.body} {early:.1f} s before it was due"
                self._violations.add("early", text)
