"""The real journal on the simulated database, with all of its threads."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from orthia.config.errors import OrthiaError
from orthia.database import StoreUnavailable, UnknownOutcome
from orthia.journal.engine.abc import BatchStore, BodyStore, Recovered, Windows
from orthia.journal.engine.batch import Batch, Marker
from orthia.journal.engine.threads import Backend, ThreadedJournal
from orthia.journal.engine.writer import Writer
from orthia.journal.journal import MessageJournal
from orthia.journal.limits import JournalLimits
from tests.simulation.database import Database
from tests.simulation.engine import Engine, Life
from tests.simulation.interpreter import simulated
from tests.simulation.mechanisms import Mechanisms
from tests.simulation.tables import Client, Session

LIMITS = JournalLimits(max_batch_rows=3, max_waiting_rows=12, drain_timeout_ms=10_000, id_block=60)
"""So small that a burst makes several batches, a slow database a full journal, and that no run
gets by with the ids of one block. Half a block is more than what can wait, as in real ones."""
_Answer = TypeVar("_Answer")


class SimulatedStore(BatchStore):
    """The writer's connection."""

    max_record_bytes = 1_000

    def __init__(self, database: Database, client: Client, token: int) -> None:
        self._database = database
        self._client = client
        self._life = client.life
        self._token = token
        self._session: Session | None = None

    def another(self) -> "SimulatedStore":
        """Return a connection of the same process."""
        return SimulatedStore(self._database, self._client, self._token)

    def connect(self) -> None:
        """Begin a session in place of the one there was."""
        tables, before = self._database.tables, self._session
        self._session = self._ask(
            lambda: tables.connect(self._client, self._life, self._token, before)
        )

    def recover(self) -> tuple[int, list[tuple[int, bytes]]]:
        """Reserve ids and read what there is."""
        session = self._connected()
        return self._ask(lambda: self._database.tables.recover(session, LIMITS.id_block))

    def store(self, batch: Batch) -> None:
        """Store a batch in two requests, as one that goes by COPY."""
        tables, session = self._database.tables, self._connected()
        seqs = [message.last_seq for message in batch.messages]
        transaction = self._ask(
            lambda: tables.begin(session, batch),
            ready=lambda: not tables.is_locked(session, seqs),
        )
        engine = self._database.engine
        engine.suspend(engine.random.uniform(0, 0.02))
        transaction.is_committing = True
        try:
            self._ask(lambda: tables.commit(transaction))
        except StoreUnavailable as error:
            raise UnknownOutcome(str(error)) from error

    def is_stored(self, marker: Marker) -> bool:
        """Look for a row."""
        session = self._connected()
        return self._ask(lambda: self._database.tables.is_stored(session, marker.seq))

    def duplicate_ids(self, cache_id: int) -> list[tuple[int, bytes]]:  # noqa: ARG002
        """Return nothing: no client gives its messages duplicate ids."""
        return []

    def confirm(self) -> None:
        """Change something."""
        session = self._connected()
        self._ask(lambda: self._database.tables.confirm(session))

    def close(self) -> None:
        """End the session, if the server hears of it."""
        if self._session is not None and self._database.reaches(self._client):
            self._database.tables.end_session(self._session)

    def _connected(self) -> Session:
        if self._session is None:
            raise StoreUnavailable("not connected")
        return self._session

    def _ask(
        self, request: Callable[[], _Answer], *, ready: Callable[[], bool] = lambda: True
    ) -> _Answer:
        """Send a request; raises what the server answers with, if that is an error."""

        answered = self._database.call(self._client, partial(_answer, request), ready=ready)
        if isinstance(answered, OrthiaError):
            raise answered
        return answered


def _answer(request: Callable[[], _Answer]) -> _Answer | OrthiaError:
    try:
        return request()
    except OrthiaError as error:
        return error


class _Several:
    """Two writers for one journal, which take turns."""

    def __init__(self, first: Writer, second: Writer) -> None:
        self._writers = (first, second)
        self._submitted = 0

    def submit(self, item: Any) -> None:
        """Give it to the other than the last."""
        self._submitted += 1
        self._writers[self._submitted % 2].submit(item)


def open_journal(
    store: SimulatedStore,
    windows: Windows,
    bodies: BodyStore,
    horizon: int,
    *,
    engine: Engine,
    life: Life,
    mechanisms: Mechanisms,
    still_valid: Callable[[], bool],
    post: Callable[[Callable[[], None]], None],
    on_failure: Callable[[OrthiaError], None],
) -> MessageJournal:
    """Return a journal that runs in a simulated process."""

    def make(store: SimulatedStore) -> ThreadedJournal:
        return ThreadedJournal(
            Backend(store, windows, bodies, Recovered([], horizon)),
            still_valid=still_valid,
            post=post,
            on_failure=on_failure,
            limits=LIMITS,
        )

    with simulated(engine, life):
        made = make(store)
        if not mechanisms.what_is_pinned_stays:
            made.large._keeper._is_pinned = lambda _: False
        if not mechanisms.reads_are_repeated:
            made.reader._still_valid = made.large._reader._still_valid = lambda: False
        if not mechanisms.one_batch_after_the_other:
            second = make(store.another())
            second.writer._stored = made.writer._stored
            made.intake._submit = _Several(made.writer, second.writer).submit
            second.start()
    made.start()
    return made
