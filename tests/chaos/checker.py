"""Whether what the clients saw is what a broker that loses and invents nothing may show them.

Pure: operations in, violations out. The rules are those of a queue with at-least-once delivery:

- lost: a message with a receipt, or of a transaction with one, is acknowledged by somebody in the
  end, in its queue or where it was moved. To have been received is not enough: who received it may
  have crashed;
- forgotten: a copy that was received is acknowledged in the end, or moved;
- invented: nothing is received that was not sent before, as it was sent, and not aborted;
- resurrected: a message whose acknowledgement was confirmed is never received again;
- unflagged: a message received again says ``redelivered:true``;
- multiplied: a message is stored at most as often as it was sent, moved copies included; where its
  producer gives it a duplicate id, once;
- order: a producer's messages are first received in the order sent. Redelivery may break that, so
  a message flagged redelivered is let off, except after a failover: what a node delivers on a
  consumer's first connection to it follows the order of the queue whatever the flags;
- torn: of a transaction all messages are received in the end, or none;
- repeated: a message consumed and its result sent in one transaction has one result, ever;
- moved: none is a dead letter that nobody received, none has expired before its time, and none is
  delivered well after it.

Where a database fails over to a standby that was behind, the tail of what it committed is lost.
What was confirmed in that time may be lost or come back; it is counted by itself, and is no
violation.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.chaos.history import Kind, Operation
from tests.chaos.subscriptions import topic_of

MAX_TOLD = 20
"""Violations of one rule that are told in words; all are counted."""
RESULT_OF = "result-of-"
DEAD = "dead-lettered"
EXPIRED = "expired"
EARLY_SECONDS = 0.5
LATE_SECONDS = 5.0
"""How late a message may be received after it has expired: it was on its way."""


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


Name = tuple[str, str]
"""A message: its queue and its body."""
Copy = tuple[int, Name]
"""A copy of it: the broker's id, and what it is of. A database that lost its tail reuses ids."""


@dataclass(slots=True)
class _Message:
    """What is known of one message: a body on a queue."""

    sends: int = 0
    transaction: str = ""
    confirmed_at: float = 0.0
    """0 when it is not confirmed."""
    expires_at: float = 0.0
    first_id: int = 0
    """The broker's id of the copy received first; 0 when none was."""
    other_ids: set[int] = field(default_factory=set)
    moved_ids: set[int] = field(default_factory=set)
    acked_copies: int = 0
    """Of those that were not moved, how many have a confirmed acknowledgement."""
    settled_at: list[float] = field(default_factory=list)
    """When acknowledgements were confirmed and moved copies were received."""
    is_acknowledged: bool = False
    """Whether somebody has sent an ACK for a copy."""

    def copies(self) -> int:
        """Return how many stored copies were received where they were sent."""
        return bool(self.first_id) + len(self.other_ids)

    @property
    def is_received(self) -> bool:
        """Whether a copy was received anywhere."""
        return bool(self.first_id or self.moved_ids)


class Checker:
    """Hears the operations of a run in order; ``finish`` once every queue was consumed."""

    def __init__(
        self,
        ordered_queues: Iterable[str],
        *,
        once: Iterable[str] = (),
        tails: Sequence[tuple[float, float]] = (),
        stalls: Sequence[tuple[float, float]] = (),
        has_true_clock: bool = True,
    ) -> None:
        """Check the order on the queues that have one consumer at a time.

        To those of ``once``, and to topics of it, messages are sent with duplicate ids.
        ``tails`` are the times in which what was committed may be lost, and may grow, as
        ``stalls`` may: ends and seconds of the machine's standstills, in which nobody notes
        what has come;
        ``has_true_clock`` says that nodes know the time though their clocks are stepped.
        """
        self.violations = Violations()
        self.of_tails: Counter[str] = Counter()
        """What would be violations, and is the doing of a database that lost its tail."""
        self.received = 0
        self.redelivered = 0
        self.stored_twice = 0
        self.moved: Counter[str] = Counter()
        self._tails = tails
        self._stalls = stalls
        self._late: list[tuple[float, float, str]] = []
        """Receptions after the message had expired: when, since when, and in words."""
        self._has_true_clock = has_true_clock
        self._ordered = frozenset(ordered_queues)
        self._once = frozenset(once)
        self._messages: dict[Name, _Message] = {}
        self._unsettled: set[Name] = set()
        """Confirmed, and nobody has sent an ACK."""
        self._names: dict[int, Name] = {}
        """What each copy is of."""
        self._open: set[Copy] = set()
        """Received, and nobody has sent an ACK for them."""
        self._seen: set[Copy] = set()
        self._acked: dict[Copy, float] = {}
        self._transactions: dict[str, list[Name]] = defaultdict(list)
        self._committed: set[str] = set()
        self._aborted: set[str] = set()
        self._undecided: dict[str, str] = {}
        """By client the transaction in which it has sent and whose outcome it does not know."""
        self._consumers: dict[str, _Consumer] = defaultdict(_Consumer)
        self._last_number: dict[tuple[str, str], int] = {}
        self._results: dict[str, str] = {}
        """By what it is the result of: the transaction of the last one."""

    @property
    def confirmed(self) -> int:
        """How many messages the broker has promised to keep."""
        return sum(bool(message.confirmed_at) for message in self._messages.values())

    @property
    def missing(self) -> int:
        """How many messages were confirmed, or received, and are not acknowledged yet.

        Nor is it known whether those of a transaction were sent that is not decided, which counts
        as one. Those that a database may have lost are not waited for.
        """
        if not self._tails:
            return len(self._unsettled) + len(self._open) + len(self._undecided)
        names = [*self._unsettled, *(name for _, name in self._open)]
        waited_for = sum(
            not self._is_of_a_tail(self._messages[name].confirmed_at) for name in names
        )
        return waited_for + len(self._undecided)

    def observe(self, operation: Operation) -> None:
        """Hear the next operation."""
        match operation.kind:
            case Kind.SEND:
                self._sent(operation)
            case Kind.RECEIPT:
                self._confirm((operation.queue, operation.body), operation.at)
            case Kind.COMMITTED:
                self._undecided.pop(operation.client, None)
                self._committed.add(operation.transaction)
                for name in self._transactions.get(operation.transaction, ()):
                    self._confirm(name, operation.at)
            case Kind.ABORT:
                self._undecided.pop(operation.client, None)
                self._aborted.add(operation.transaction)
            case Kind.LOST:
                self._undecided.pop(operation.client, None)
            case Kind.CONNECTED:
                consumer = self._consumers[operation.client]
                consumer.is_first_on_node = operation.port != consumer.last_port
                consumer.last_port, consumer.highest_id = operation.port, 0
            case Kind.RECEIVE:
                self._received(operation)
            case Kind.ACK:
                self._acknowledge(operation.message_id)
            case Kind.ACKED:
                self._acknowledged(operation)
            case _:
                pass

    def _sent(self, operation: Operation) -> None:
        name = (operation.queue, operation.body)
        message = self._messages.setdefault(name, _Message())
        message.sends += 1
        # Of what is sent again each copy expires at a time of its own.
        message.expires_at = operation.expires_at if message.sends == 1 else 0.0
        if operation.transaction:
            message.transaction = operation.transaction
            self._transactions[operation.transaction].append(name)
            self._undecided[operation.client] = operation.transaction

    def _confirm(self, name: Name, at: float) -> None:
        message = self._messages[name]
        message.confirmed_at = message.confirmed_at or at or 1.0
        if not message.is_acknowledged:
            self._unsettled.add(name)

    def _acknowledge(self, message_id: int) -> None:
        name = self._names[message_id]
        self._open.discard((message_id, name))
        self._unsettled.discard(name)
        if name in self._messages:
            self._messages[name].is_acknowledged = True

    def _acknowledged(self, operation: Operation) -> None:
        name = self._names[operation.message_id]
        copy = (operation.message_id, name)
        message = self._messages.get(name)
        if copy not in self._acked and message and operation.message_id not in message.moved_ids:
            message.acked_copies += 1
            message.settled_at.append(operation.at)
        self._acked[copy] = operation.at

    def _received(self, operation: Operation) -> None:
        self.received += 1
        name = (operation.queue, operation.body)
        message = self._messages.get(name)
        copy = (operation.message_id, name)
        self._names[operation.message_id] = name
        told = f"{operation.client} got {operation.message_id} {_short(operation)}"
        if message is None:
            self.violations.add("invented", f"{told}, which nobody sent there")
            return
        if message.transaction in self._aborted:
            self.violations.add("invented", f"{told} of aborted {message.transaction}")
        if copy in self._acked:
            text = f"{told} after its acknowledgement was confirmed"
            self._add("resurrected", text, self._acked[copy])
        if copy in self._seen:
            self.redelivered += 1
            if not operation.redelivered:
                self.violations.add("unflagged", f"{told} again, without redelivered:true")
        self._seen.add(copy)
        if copy not in self._acked:
            self._open.add(copy)
        if operation.moved:
            self._note_moved(message, operation, told)
        else:
            self._check_expiry(message, operation, told)
            self._check_order(operation, told, is_first_copy=not message.first_id)
            self._note_copy(message, operation, told)

    def _add(self, rule: str, text: str, *confirmed_at: float) -> None:
        """Note a violation, or what the loss of a database's tail explains: confirmed in it."""
        if any(map(self._is_of_a_tail, confirmed_at)):
            self.of_tails[rule] += 1
        else:
            self.violations.add(rule, text)

    def _is_of_a_tail(self, at: float) -> bool:
        return any(begin <= at <= end for begin, end in self._tails)

    def _note_copy(self, message: _Message, operation: Operation, told: str) -> None:
        known = {message.first_id, *message.other_ids}
        if operation.message_id in known:
            return
        if not message.first_id:
            message.first_id = operation.message_id
        else:
            self.stored_twice += 1
            message.other_ids.add(operation.message_id)
        self._check_copies(operation, message, told)
        producer, source = operation.body.split("/")[:2]
        if producer.startswith(RESULT_OF):
            self._check_result(source, message, told)

    def _check_copies(self, operation: Operation, message: _Message, told: str) -> None:
        # A database that lost its tail has lost the ids that were in it.
        is_once = topic_of(operation.queue) in self._once and not self._tails
        most = 1 if is_once else message.sends
        stored = max(message.copies(), message.acked_copies + len(message.moved_ids))
        if stored > most:
            text = f"{told}: {stored} copies of {message.sends} sent, {most} to be stored"
            self._add("multiplied", text, message.confirmed_at, *message.settled_at)

    def _check_result(self, source: str, message: _Message, told: str) -> None:
        before = self._results.get(source)
        if before is not None:
            first = self._messages[self._transactions[before][0]]
            text = f"{told}: message {source} was consumed twice"
            self._add("repeated", text, first.confirmed_at, message.confirmed_at)
        self._results[source] = message.transaction

    def _note_moved(self, message: _Message, operation: Operation, told: str) -> None:
        if operation.message_id in message.moved_ids:
            return
        message.moved_ids.add(operation.message_id)
        self.moved[operation.moved] += 1
        # The copy that was moved is no more where it was; which one that is nobody can tell.
        for copy_id in (message.first_id, *message.other_ids):
            self._open.discard((copy_id, (operation.queue, operation.body)))
        self._check_copies(operation, message, told)
        message.settled_at.append(operation.at)
        if operation.moved == DEAD and not message.first_id:
            self.violations.add("moved", f"{told} as a dead letter, and nobody had received it")
        if (
            operation.moved == EXPIRED
            and self._has_true_clock
            and message.expires_at
            and operation.at < message.expires_at - EARLY_SECONDS
        ):
            early = message.expires_at - operation.at
            self.violations.add("moved", f"{told} as expired, {early:.1f} s before it had")

    def _check_expiry(self, message: _Message, operation: Operation, told: str) -> None:
        if not self._has_true_clock or not message.expires_at:
            return
        if operation.at - message.expires_at > LATE_SECONDS:
            self._late.append((operation.at, message.expires_at, told))

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

    def forget(self, queue: str) -> None:
        """Have nothing of a queue count as lost that is there: it was deleted."""
        self._unsettled = {name for name in self._unsettled if name[0] != queue}
        self._open = {copy for copy in self._open if copy[1][0] != queue}

    def finish(self) -> Violations:
        """Return all violations; call it when nothing more can be received."""
        for at, expired_at, told in self._late:
            late = at - expired_at
            for end, seconds in self._stalls:
                late -= max(0.0, min(end, at) - max(end - seconds, expired_at))
            if late > LATE_SECONDS:
                self.violations.add("moved", f"{told}, which had expired {late:.1f} s before")
        for queue, body in sorted(self._unsettled):
            self._add("lost", f"{body} on {queue}", self._messages[queue, body].confirmed_at)
        for message_id, (queue, body) in sorted(self._open):
            message = self._messages[queue, body]
            if (queue, body) not in self._unsettled:
                text = f"{message_id} {body} on {queue} was received, and never again"
                self._add("forgotten", text, message.confirmed_at)
        for transaction, names in self._transactions.items():
            received = [self._messages[name].is_received for name in names]
            if any(received) and not all(received):
                confirmed_at = self._messages[names[0]].confirmed_at
                text = f"{transaction}: {sum(received)} of {len(received)} received"
                self._add("torn", text, confirmed_at)
        return self.violations

    def figures(self) -> Mapping[str, int]:
        """Return what was counted."""
        return {
            "messages sent": len(self._messages),
            "messages confirmed": self.confirmed,
            "transactions confirmed": len(self._committed),
            "deliveries": self.received,
            "redeliveries": self.redelivered,
            "dead letters": self.moved[DEAD],
            "expired": self.moved[EXPIRED],
            "sent again and stored twice": self.stored_twice,
            "lost": self.violations.counts["lost"] + self.violations.counts["forgotten"],
            "lost with the database's tail": self.of_tails["lost"] + self.of_tails["forgotten"],
            "back with the database's tail": self.of_tails["resurrected"]
            + self.of_tails["repeated"]
            + self.of_tails["multiplied"],
        }


def _short(operation: Operation) -> str:
    return f"{operation.body} on {operation.queue}"
