# mypyc compiles this module.
"""What happens to messages, for metrics."""

from dataclasses import dataclass


@dataclass(slots=True)
class QueueCounters:
    """What happened to a queue's messages on this node since it became live."""

    added: int = 0
    acknowledged: int = 0
    expired: int = 0
    dead_lettered: int = 0
    redelivered: int = 0
    removed: int = 0
    """By operators: deleted, moved away."""

    def add(self, other: "QueueCounters") -> None:
        """Count what ``other`` counted too."""
        self.added += other.added
        self.acknowledged += other.acknowledged
        self.expired += other.expired
        self.dead_lettered += other.dead_lettered
        self.redelivered += other.redelivered
        self.removed += other.removed
