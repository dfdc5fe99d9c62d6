"""Whether what subscribers of topics heard is what a topic may give them. Pure.

A topic stores nothing, so that a failover may cost any message. But while a subscriber and a
publisher both keep their connections nothing is missing in between:

- invented: nothing is heard that was not sent before, as it was sent;
- gap: of the messages of one connection of a publisher, one connection of a subscriber hears each
  from the first it hears to the last, once and in order.
"""

from tests.chaos.checker import Violations
from tests.chaos.history import Kind, Operation


class TopicChecker:
    """Hears the operations of a run in order."""

    def __init__(self, violations: Violations) -> None:
        self._violations = violations
        self.heard = 0
        self._sent: dict[str, int] = {}
        """By publisher's connection: how many messages it has sent."""
        self._last: dict[tuple[str, str], int] = {}
        """By connections of subscriber and publisher: the last number heard."""

    def observe(self, operation: Operation) -> None:
        """Hear the next operation."""
        if operation.kind not in (Kind.PUBLISH, Kind.HEARD):
            return
        publisher, _, text = operation.body.rpartition("/")
        number = int(text) if text.isdecimal() else -1
        if operation.kind is Kind.PUBLISH:
            self._sent[publisher] = number + 1
            return
        self.heard += 1
        told = f"{operation.transaction} heard {operation.body}"
        if not 0 <= number < self._sent.get(publisher, 0):
            self._violations.add("invented", f"{told}, which nobody sent")
            return
        last = self._last.get((operation.transaction, publisher))
        if last is not None and number != last + 1:
            self._violations.add("gap", f"{told} after number {last}")
        self._last[operation.transaction, publisher] = number
