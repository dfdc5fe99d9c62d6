"""The journal's tables in the simulated database: rows, transactions, what must hold of them."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from orthia.database import DuplicateKey, StoreUnavailable, UnknownOutcome
from orthia.journal.engine.abc import Piece
from orthia.journal.engine.batch import Batch
from orthia.journal.errors import Fenced
from orthia.journal.model.changes import LargeReference
from orthia.nodemanager.locks.holder_id import HolderId
from tests.simulation.engine import Engine, Life
from tests.simulation.mechanisms import EXPIRATION_MS, Mechanisms

PIECES = 2
"""Of each large body."""
_REMOVED_PIECES = 1
IDLE_LIMIT_SECONDS = EXPIRATION_MS / 4000


class Violation(AssertionError):  # noqa: N818 - of an invariant
    """An invariant does not hold."""


class Client(Protocol):
    """A process with connections to the database."""

    life: Life
    holder_id: HolderId
    cut_off_until: float


@dataclass(eq=False)
class Session:
    """A connection of a journal's writer, as the server sees it."""

    client: Client
    life: Life
    token: int
    alive: bool = True
    has_proved: bool = False
    """Whether a transaction of it has found its token to be the newest."""
    transaction: "Transaction | None" = None


@dataclass(eq=False)
class Transaction:
    """One that is open in the database."""

    session: Session
    inserted: dict[int, bytes] = field(default_factory=dict)
    deleted: set[int] = field(default_factory=set)
    id_limit: int = 0
    linked: Sequence[LargeReference] = ()
    unlinked: Sequence[LargeReference] = ()
    alive: bool = True
    is_committing: bool = False
    """Whether COMMIT was sent: it may be carried out though the process is gone by then."""
    is_in_copy: bool = False
    """Whether its session stands in the middle of a COPY: to the server it is never idle."""

    @property
    def token(self) -> int:
        """Under which it writes."""
        return self.session.token

    @classmethod
    def of(cls, session: Session, batch: Batch) -> "Transaction":
        """Return what ``batch`` changes."""
        inserted = {message.last_seq: message.payload for message in batch.messages}
        inserted |= {row.seq: row.record for row in batch.rows}
        deleted = {*batch.deletes, *(body.seq for body in batch.bodies)}
        return cls(session, inserted, deleted, batch.id_limit, batch.linked, batch.unlinked)


class BodyTable:
    """LARGE_MESSAGES: the pieces, and what refers to them."""

    def __init__(self) -> None:
        self.pieces: dict[int, dict[int, bytes]] = {}
        self.links: dict[int, set[int]] = {}
        self._newest_token = 0

    def write(self, token: int, pieces: Sequence[Piece]) -> None:
        """Store pieces; one that is there stays."""
        if token < self._newest_token:
            raise Violation(f"a piece under token {token} after one under {self._newest_token}")
        self._newest_token = token
        for body_id, position, data in pieces:
            self.pieces.setdefault(body_id, {}).setdefault(position, data)

    def link(self, reference: LargeReference) -> None:
        """Note a message whose body this is; it is whole."""
        if len(self.pieces.get(reference.large_id, {})) != PIECES:
            raise Violation(f"message {reference.seq} has no body {reference.large_id}")
        self.links.setdefault(reference.large_id, set()).add(reference.seq)

    def unlink(self, reference: LargeReference) -> None:
        """Note that a message is gone."""
        self.links.get(reference.large_id, set()).discard(reference.seq)

    def unneeded(self) -> list[int]:
        """Return the bodies that nothing refers to."""
        return [body_id for body_id in sorted(self.pieces) if not self.links.get(body_id)]

    def remove(self, body_id: int) -> bool:
        """Remove a piece, if nothing refers to the body; return whether no step is left."""
        pieces = self.pieces.get(body_id, {})
        if self.links.get(body_id):
            return True
        for position in sorted(pieces)[:_REMOVED_PIECES]:
            del pieces[position]
        if not pieces:
            self.pieces.pop(body_id, None)
        return not pieces


class Tables:
    """MESSAGES, and of BINDINGS the counter of ids."""

    def __init__(
        self,
        engine: Engine,
        mechanisms: Mechanisms,
        *,
        fence_token: Callable[[], int],
        may_copy: bool,
    ) -> None:
        """``may_copy`` says whether batches may go by COPY: that needs rights to end sessions."""
        self._engine = engine
        self._fence_token = fence_token
        self._mechanisms = mechanisms
        self._may_copy = may_copy
        self.rows: dict[int, tuple[int, bytes]] = {}
        """By seq: under which token it was written, and what."""
        self.written: list[tuple[int, int]] = []
        """(seq, token) of every row there ever was, in the order of their commits."""
        self.bodies = BodyTable()
        self.open: list[Transaction] = []
        self.newest_token = 0
        self.takeovers = 0
        self._when_open: Callable[[Transaction], None] | None = None
        self._sessions: list[Session] = []
        self._ever: set[int] = set()
        self._highest = 0
        self._id_limit = 0

    # --- what a session asks for

    def connect(self, client: Client, life: Life, token: int, before: Session | None) -> Session:
        """Begin a session; the one there was is ended first."""
        if before is not None:
            self.end_session(before)
        session = Session(client, life, token, alive=not life.is_over)
        self._sessions.append(session)
        return session

    def recover(self, session: Session, id_block: int) -> tuple[int, list[tuple[int, bytes]]]:
        """Reserve ids; return the highest that may have been given out, and the messages."""
        self._prove(session)
        horizon = self._id_limit if self._mechanisms.ids_are_reserved else max(self.rows, default=0)
        self._id_limit = max(self._id_limit, horizon + id_block)
        return horizon, sorted((seq, payload) for seq, (_, payload) in self.rows.items())

    def is_locked(self, session: Session, seqs: Collection[int]) -> bool:
        """Return whether another transaction has a row of these, and may yet commit it."""
        return any(
            not one.inserted.keys().isdisjoint(seqs)
            for one in self.open
            if one.session is not session
        )

    def begin(self, session: Session, batch: Batch) -> Transaction:
        """Begin a batch as the writer does: the fence is read with a share lock, rows follow."""
        self._prove(session)
        transaction = Transaction.of(session, batch)
        if self._mechanisms.idempotent_batches and not self.rows.keys().isdisjoint(
            transaction.inserted
        ):
            raise DuplicateKey("a row is there already")
        session.transaction = transaction
        transaction.is_in_copy = self._may_copy and len(self.written) % 2 == 0
        self.open.append(transaction)
        if self._when_open is not None:
            when_open, self._when_open = self._when_open, None
            when_open(transaction)
        if self._mechanisms.idle_limit and not transaction.is_in_copy:
            self._engine.after(IDLE_LIMIT_SECONDS, self._end_if_open, transaction)
        return transaction

    def commit(self, transaction: Transaction) -> None:
        """Commit, unless the server has ended the session."""
        if not transaction.alive:
            raise UnknownOutcome("the session was ended")
        self.end(transaction)
        token = transaction.token
        if token < self.newest_token:
            raise Violation(f"row under token {token} after one under {self.newest_token}")
        self.takeovers += token > self.newest_token
        self.newest_token = token
        self._id_limit = max(self._id_limit, transaction.id_limit)
        for seq, payload in sorted(transaction.inserted.items()):
            if seq > 0 and seq not in transaction.deleted:
                self._insert(seq, token, payload)
        for seq in transaction.deleted:
            self.rows.pop(seq, None)
        for reference in transaction.linked:
            self.bodies.link(reference)
        for reference in transaction.unlinked:
            self.bodies.unlink(reference)

    def is_stored(self, session: Session, seq: int) -> bool:
        """Return whether a row is there that was written under the session's token."""
        self._use(session)
        if not (self._mechanisms.idempotent_batches and self._mechanisms.commits_are_looked_for):
            return False
        return seq in self.rows and self.rows[seq][0] == session.token

    def confirm(self, session: Session) -> None:
        """Change the counter, under the fence."""
        self._prove(session)

    def has_stored(self, seq: int) -> bool:
        """Return whether a message was ever committed."""
        return seq in self._ever

    def when_open(self, strike: Callable[[Transaction], None]) -> None:
        """Have a fault strike amid a batch that is open, or the next that will be."""
        if self.open:
            strike(self.open[0])
        else:
            self._when_open = strike

    # --- sessions

    def end(self, transaction: Transaction) -> None:
        """End a transaction, which frees its locks."""
        transaction.alive = False
        transaction.session.transaction = None
        if transaction in self.open:
            self.open.remove(transaction)

    def end_session(self, session: Session) -> None:
        """End a session with what it has under way."""
        session.alive = False
        if session.transaction is not None:
            self.end(session.transaction)

    def end_sessions_of(self, life: Life) -> None:
        """End those of a process that is gone, but for a COMMIT that is on its way."""
        for transaction in list(self.open):
            if transaction.session.life is life and not transaction.is_committing:
                self.end_session(transaction.session)

    def end_every_session(self) -> None:
        """End all: the server goes away."""
        for session in self._sessions:
            self.end_session(session)
        self._sessions.clear()

    def _end_if_open(self, transaction: Transaction) -> None:
        if transaction.alive:
            self.end_session(transaction.session)

    def _use(self, session: Session) -> None:
        if not session.alive or session.life.is_over:
            raise StoreUnavailable("the session was ended")

    def _prove(self, session: Session) -> None:
        self._use(session)
        mechanisms = self._mechanisms
        if not mechanisms.fence:
            return
        if session.has_proved and not mechanisms.every_batch_proves_the_fence:
            return
        if self._fence_token() != session.token:
            raise Fenced(session.token)
        session.has_proved = True

    def _insert(self, seq: int, token: int, payload: bytes) -> None:
        if seq in self.rows:
            raise Violation(f"message {seq} was stored twice")
        if seq in self._ever:
            raise Violation(f"message {seq} came back after it was deleted")
        if seq < self._highest:
            raise Violation(f"message {seq} was committed after {self._highest}")
        self._highest = seq
        self._ever.add(seq)
        self.rows[seq] = (token, payload)
        self.written.append((seq, token))
