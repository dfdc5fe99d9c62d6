"""Whether what the clients saw is what a broker that loses and invents nothing may show them.

Pure: operations in, violations out. The rules are those of a queue with at-least-once delivery:

- lost: a message with a receipt, or of a transaction with one, is received in the end;
- invented: nothing is received that was not sent before, as it was sent, and not aborted;
- resurrected: a message whose acknowledgement was confirmed is never received again;
- unflagged: a message received again says ``redelivered:true``;
- multiplied: a message is stored at most as often as it was sent;
- order: a producer's messages are first received in the order sent. Redelivery may break that, so
  a message flagged redelivered is let off, except after a failover: what a node delivers on a
  consumer's first connection to it follows the order of the queue whatever the flags;
- torn: of a transaction all messages are received in the end, or none;
- repeated: a message consumed and its result sent in one transaction has one result, ever.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tests.chaos.history import Kind, Operation

MAX_TOLD = 20
"""Violations of one rule that are told in words; all are counted."""
RESULT_OF = "result-of-"


@dataclass(frozen=True, slots=True)
class Row:
    """One insertion into MESSAGES as a trigger in the database saw it."""

    number: int
    """Counts insertions, in the order in which the database made them."""
    seq: int
    epoch: int
    """The fencing token it was written under."""


@dataclass
class Violations:
    """What went against the rules, by rule."""

    counts: Counter[str] = field(default_factory=Counter)
    told: list[str] = field(default_factory=list)

    def add(self, rule: str, text: str) -> None:
        """Note a violation."""
        self.counts[rule] += 1
        if self.counts[rule] <= MAX_TOLD:
            self.told.append(f"{rule}: {text}")


@dataclass(slots=True)
class _Consumer:
    """What one consumer's connection has received so far."""

    last_port: int = 0
    is_first_on_node: bool = False
    highest_id: int = 0


@dataclass(slots=True)
class _Message:
    """What is known of one message: a body on a queue."""

    sends: int = 0
    transaction: str = ""
    is_confirmed: bool = False
    first_id: int = 0
    """The broker's id of the copy received first; 0 when none was."""
    other_ids: set[int] = field(default_factory=set)

    def copies(self) -> int:
        """Return how many stored copies were received."""
        return bool(self.first_id) + len(self.other_ids)


class Checker:
    """Hears the operations of a run in order; ``finish`` once every queue was consumed."""

    def __init__(self, ordered_queues: Iterable[str]) -> None:
        """Check the order on the queues that have one consumer at a time."""
        self.violations = Violations()
        self.received = 0
        self.redelivered = 0
        self.stored_twice = 0
        self._ordered = frozenset(ordered_queues)
        self._messages: dict[tuple[str, str], _Message] = {}
        self._unreceived: set[tuple[str, str]] = set()
        self._seen_ids: set[int] = set()
        self._acked_ids: set[int] = set()
        self._transactions: dict[str, list[tuple[str, str]]] = defaultdict(list)
        self._committed: set[str] = set()
        self._aborted: set[str] = set()
        self._consumers: dict[str, _Consumer] = defaultdict(_Consumer)
        self._last_number: dict[tuple[str, str], int] = {}
        self._results: Counter[str] = Counter()

    @property
    def confirmed(self) -> int:
        """How many messages the broker has promised to keep."""
        return sum(message.is_confirmed for message in self._messages.values())

    @property
    def missing(self) -> int:
        """How many messages were confirmed and not yet received."""
        return len(self._unreceived)

    def observe(self, operation: Operation) -> None:
        """Hear the next operation."""
        match operation.kind:
            case Kind.SEND:
                self._sent(operation)
            case Kind.RECEIPT:
                self._confirm((operation.queue, operation.body))
            case Kind.COMMITTED:
                self._commit(operation.transaction)
            case Kind.ABORT:
                self._aborted.add(operation.transaction)
            case Kind.CONNECTED:
                consumer = self._consumers[operation.client]
                consumer.is_first_on_node = operation.port != consumer.last_port
                consumer.last_port, consumer.highest_id = operation.port, 0
            case Kind.RECEIVE:
                self._received(operation)
            case Kind.ACKED:
                self._acked_ids.add(operation.message_id)
            case Kind.COMMIT | Kind.LOST:
                pass

    def _sent(self, operation: Operation) -> None:
        name = (operation.queue, operation.body)
        message = self._messages.setdefault(name, _Message())
        message.sends += 1
        if operation.transaction:
            message.transaction = operation.transaction
            self._transactions[operation.transaction].append(name)

    def _confirm(self, name: tuple[str, str]) -> None:
        message = self._messages[name]
        message.is_confirmed = True
        if not message.first_id:
            self._unreceived.add(name)

    def _commit(self, transaction: str) -> None:
        self._committed.add(transaction)
        for name in self._transactions.get(transaction, ()):
            self._confirm(name)

    def _received(self, operation: Operation) -> None:
        self.received += 1
        name = (operation.queue, operation.body)
        message = self._messages.get(name)
        told = f"{operation.client} got {operation.message_id} {_short(operation)}"
        if message is None:
            self.violations.add("invented", f"{told}, which nobody sent there")
            return
        if message.transaction in self._aborted:
            self.violations.add("invented", f"{told} of aborted {message.transaction}")
        if operation.message_id in self._acked_ids:
            self.violations.add("resurrected", f"{told} after its acknowledgement was confirmed")
        if operation.message_id in self._seen_ids:
            self.redelivered += 1
            if not operation.redelivered:
                self.violations.add("unflagged", f"{told} again, without redelivered:true")
        self._seen_ids.add(operation.message_id)
        self._check_order(operation, told, is_first_copy=not message.first_id)
        self._note_copy(message, operation, told)
        self._unreceived.discard(name)

    def _note_copy(self, message: _Message, operation: Operation, told: str) -> None:
        known = {message.first_id, *message.other_ids}
        if operation.message_id in known:
            return
        if not message.first_id:
            message.first_id = operation.message_id
        else:
            self.stored_twice += 1
            message.other_ids.add(operation.message_id)
        if message.copies() > message.sends:
            self.violations.add(
                "multiplied", f"{told}: {message.copies()} copies of {message.sends} sent"
            )
        producer, source = operation.body.split("/")[:2]
        if producer.startswith(RESULT_OF):
            self._results[source] += 1
            if self._results[source] > 1:
                self.violations.add("repeated", f"{told}: message {source} was consumed twice")

    def _check_order(self, operation: Operation, told: str, *, is_first_copy: bool) -> None:
        if operation.queue not in self._ordered:
            return
        consumer = self._consumers[operation.client]
        if consumer.is_first_on_node and operation.message_id <= consumer.highest_id:
            self.violations.add("order", f"{told} after {consumer.highest_id}")
        consumer.highest_id = max(consumer.highest_id, operation.message_id)
        producer, number = operation.body.split("/")
        last = self._last_number.get((producer, operation.queue), -1)
        if is_first_copy and not operation.redelivered and int(number) < last:
            self.violations.add("order", f"{told} after number {last}")
        self._last_number[producer, operation.queue] = max(last, int(number))

    def check_rows(self, rows: Iterable[Row]) -> int:
        """Check that no row of an older token follows one of a newer; return how many there are.

        The rows must come in the order of their insertion.
        """
        count, newest = 0, Row(0, 0, 0)
        for row in rows:
            count += 1
            if row.epoch < newest.epoch:
                self.violations.add(
                    "two writers", f"row {row.seq} of token {row.epoch} after {newest}"
                )
            elif row.epoch > newest.epoch:
                newest = row
        return count

    def finish(self) -> Violations:
        """Return all violations; call it when nothing more can be received."""
        for queue, body in sorted(self._unreceived):
            self.violations.add("lost", f"{body} on {queue}")
        for transaction, names in self._transactions.items():
            received = [bool(self._messages[name].first_id) for name in names]
            if any(received) and not all(received):
                self.violations.add(
                    "torn", f"{transaction}: {sum(received)} of {len(received)} received"
                )
        return self.violations

    def figures(self) -> Mapping[str, int]:
        """Return what was counted."""
        return {
            "messages sent": len(self._messages),
            "messages confirmed": self.confirmed,
            "transactions confirmed": len(self._committed),
            "deliveries": self.received,
            "redeliveries": self.redelivered,
            "sent again and stored twice": self.stored_twice,
            "lost": self.violations.counts["lost"],
        }


def _short(operation: Operation) -> str:
    return f"{operation.body} on {operation.queue}"
