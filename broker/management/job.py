"""What an operation on many messages is asked to do, and how far it is."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from orthia.broker.management.views import JobKind, JobState, JobView
from orthia.journal.model.codec import OperatorRecord

RECORD_KIND: Final = "job"


@dataclass(frozen=True)
class Order:
    """What an operator asks for."""

    kind: JobKind
    name: str
    """The queue, or the address of which all queues are purged."""
    of_address: bool = False
    selector: str | None = None
    ids: tuple[int, ...] | None = None
    target: str | None = None
    priority: int | None = None
    stream: str | None = None
    """Which stream acknowledges, and up to which message, by its seq."""
    up_to: int | None = None


@dataclass(eq=False)
class Job:
    """One job of this node, or of one before it."""

    id: int
    order: Order
    user: str
    since_ms: int
    state: JobState = JobState.RUNNING
    reason: str | None = None
    until_ms: int | None = None
    total: int | None = None
    looked_at: int = 0
    done: int = 0
    left: int = 0
    number_of_ids: int | None = None
    record_id: int | None = None
    """The row of its record; None without one."""
    records: bool = True
    """Whether it says how far it is in the store."""
    continues: bool = False
    """Whether it does the rest of an interrupted one."""
    is_stopping: bool = False
    watchers: list[Callable[[bool], None]] = field(default_factory=list)

    def view(self) -> JobView:
        """Return what operators see of it."""
        order = self.order
        return JobView(
            id=self.id,
            kind=order.kind,
            queue=order.name,
            of_address=order.of_address,
            target=order.target,
            selector=order.selector,
            ids=self.number_of_ids,
            priority=order.priority,
            user=self.user,
            state=self.state,
            reason=self.reason,
            since_ms=self.since_ms,
            until_ms=self.until_ms,
            total=self.total,
            looked_at=self.looked_at,
            done=self.done,
            left=self.left,
        )

    def details(self, *, done: int, left: int) -> dict[str, Any]:
        """Return what its record says once so many messages are done, and left."""
        order = self.order
        said: dict[str, Any] = {
            "id": self.id,
            "job": order.kind.value,
            "of-address": order.of_address,
            "selector": order.selector,
            "ids": self.number_of_ids,
            "target": order.target,
            "priority": order.priority,
            "user": self.user,
            "since-ms": self.since_ms,
            "total": self.total,
            "done": done,
            "left": left,
            "looked-at": self.looked_at,
        }
        return {name: value for name, value in said.items() if value is not None}

    @classmethod
    def of(cls, record: OperatorRecord) -> "Job":
        """Return the job of an earlier node, which ended before it; raises KeyError, ValueError."""
        said = record.details
        order = Order(
            JobKind(said["job"]),
            record.name,
            of_address=bool(said.get("of-address")),
            selector=said.get("selector"),
            target=said.get("target"),
            priority=said.get("priority"),
        )
        return cls(
            int(said["id"]),
            order,
            str(said.get("user", "")),
            int(said["since-ms"]),
            state=JobState.INTERRUPTED,
            reason="its node ended; what it had done is done",
            total=said.get("total"),
            looked_at=int(said.get("looked-at", 0)),
            done=int(said["done"]),
            left=int(said.get("left", 0)),
            number_of_ids=said.get("ids"),
            record_id=record.record_id,
        )
