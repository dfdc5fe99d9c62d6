"""The ways of the journal's other threads to the simulated database: large bodies, and windows.

What goes wrong with the database and the network goes wrong for them, too. Some things befall them
alone: a request that stands still, that fails, whose connection is lost before it is carried out or
after, and a process that stands still amid it.
"""

from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from orthia.config.errors import OrthiaError
from orthia.database import PermanentStoreError, StoreUnavailable, TransientStoreError
from orthia.journal.engine.abc import BodyStore, Piece, Windows
from orthia.journal.errors import Fenced, LargeBodyError
from orthia.journal.model.changes import MessageLocation
from orthia.journal.model.message import Message
from orthia.journal.model.moments import MomentKind, MomentPlace
from orthia.journal.model.windows import QueueCounts, QueuePlace, Reached, StoredMessage, Window
from tests.simulation.database import CALL_TIMEOUT_SECONDS, Database
from tests.simulation.tables import Client

_Answer = TypeVar("_Answer")


class _Way:
    """How one of these threads reaches the database, and what befalls it there."""

    def __init__(self, database: Database, client: Client, pause: Callable[[], None]) -> None:
        """``pause`` has the process stand still."""
        self._database = database
        self._client = client
        self._pause = pause
        self._connection = 0
        """Counts them: what is sent on one that was lost is not carried out afterwards."""

    def ask(self, request: Callable[[], _Answer]) -> _Answer:
        """Send a request; raises what it is answered with, if that is an error."""

        connection = self._connection

        def answer() -> _Answer | OrthiaError:
            if connection != self._connection:
                return StoreUnavailable("the connection was lost before the request came")
            try:
                return request()
            except OrthiaError as error:
                return error

        try:
            loses_answer = self._fail()
            answered = self._database.call(self._client, answer)
        except StoreUnavailable:
            self._connection += 1
            raise
        if loses_answer:
            self._connection += 1
            raise StoreUnavailable("the connection was lost before the answer")
        if isinstance(answered, OrthiaError):
            raise answered
        return answered

    def _fail(self) -> bool:
        """Do what goes wrong before the request; return whether its answer is to be lost."""
        engine = self._database.engine
        if not self._database.faults:
            return False
        match engine.random.randrange(30):
            case 0 | 1:
                raise TransientStoreError("a deadlock")
            case 2 | 3:
                raise StoreUnavailable("the connection was lost")
            case 4 | 5:
                return True
            case 6:
                engine.suspend(engine.random.uniform(0, CALL_TIMEOUT_SECONDS))
            case 7:
                engine.suspend(CALL_TIMEOUT_SECONDS)
                raise StoreUnavailable("no answer")
            case 8:
                self._pause()
                engine.suspend(0)  # it goes on when the process does
        return False


class SimulatedBodies(BodyStore):
    """Where one process has its large bodies."""

    def __init__(
        self, database: Database, client: Client, token: int, pause: Callable[[], None]
    ) -> None:
        self._database = database
        self._token = token
        self._bodies = database.tables.bodies
        self._way = _Way(database, client, pause)

    def write(self, pieces: Sequence[Piece]) -> None:
        """Store pieces, under the fence."""
        random = self._database.engine.random
        if self._database.faults and random.random() < 0.02:
            raise PermanentStoreError("a piece that cannot be stored")
        self._way.ask(self._fenced(lambda: self._bodies.write(self._token, pieces)))

    def finish(self, body_id: int) -> None:
        """Do nothing: what was written is durable."""

    def read(self, body_id: int, position: int) -> bytes:
        """Read a piece."""

        def read() -> bytes:
            piece = self._bodies.pieces.get(body_id, {}).get(position)
            if piece is None:
                raise LargeBodyError(f"piece {position} of body {body_id} is missing")
            return piece

        return self._way.ask(read)

    def sweep(self, after_id: int, limit: int) -> tuple[list[int], int | None]:
        """Look at all there are."""
        del after_id, limit
        if not self._bodies.pieces:
            return [], None  # without a draw: worlds without large messages stay as they were
        return self._way.ask(self._bodies.unneeded), None

    def remove(self, body_id: int) -> bool:
        """Remove a piece, under the fence."""
        return self._way.ask(self._fenced(lambda: self._bodies.remove(body_id)))

    def close(self) -> None:
        """Have nothing to close."""

    def _fenced(self, request: Callable[[], _Answer]) -> Callable[[], _Answer]:
        def prove() -> _Answer:
            database = self._database
            if database.mechanisms.pieces_prove_the_fence and (
                database.store.fence_token != self._token
            ):
                raise Fenced(self._token)
            return request()

        return prove


class SimulatedWindows(Windows):
    """Where one process reads its queue."""

    def __init__(self, database: Database, client: Client, pause: Callable[[], None]) -> None:
        self._rows = database.tables.rows
        self._way = _Way(database, client, pause)

    def window(
        self, queue_id: int, after_seq: int, up_to_seq: int, max_messages: int, max_bytes: int
    ) -> Window:
        """Read a window."""
        del queue_id, max_bytes

        def read() -> Window:
            seqs = [seq for seq in sorted(self._rows) if after_seq < seq <= up_to_seq]
            taken = seqs[:max_messages]
            is_whole = len(taken) == len(seqs)
            messages = [self._message(seq) for seq in taken]
            return Window(messages, [], up_to_seq if is_whole else taken[-1], is_whole)

        return self._way.ask(read)

    def _message(self, seq: int) -> StoredMessage:
        token, payload = self._rows[seq]
        return StoredMessage(seq, token, Message("", b"", payload, 0, 0, 4), MessageLocation(seq))

    def count(self, after: QueuePlace, up_to_seq: int, limit: int) -> QueueCounts:
        """Count nothing: nobody asks."""
        raise NotImplementedError

    def reached(
        self, kind: MomentKind, after: MomentPlace, up_to_ms: int, limit: int, max_bytes: int
    ) -> Reached:
        """Find nobody whose moment has come: nobody asks."""
        raise NotImplementedError

    def timed(
        self,
        kind: MomentKind,
        after: MomentPlace,
        queue_ids: Collection[int] | None,
        limit: int,
        max_bytes: int,
    ) -> Reached:
        """Find nothing that has a moment: nobody asks."""
        raise NotImplementedError

    def queue_of(self, seq: int) -> int | None:
        """Find no queue: nobody asks."""
        raise NotImplementedError

    def close(self) -> None:
        """Do nothing."""
