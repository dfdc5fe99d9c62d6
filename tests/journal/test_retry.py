"""What the writer does after a failure, decision by decision, and that it does so."""

import logging
import threading
from collections.abc import Callable
from typing import NamedTuple

import pytest

import orthia.journal.engine.attempts
from orthia.config.clock import monotonic_seconds
from orthia.config.errors import OrthiaError
from orthia.database import (
    DuplicateKey,
    NoRoom,
    PermanentStoreError,
    RefusedForNow,
    StoreError,
    StoreUnavailable,
    TransientStoreError,
    UnknownOutcome,
)
from orthia.journal import Fenced, JournalError, JournalLimits, LeaseExpired
from orthia.journal.engine.batch import Batch, JournalTable, Marker
from orthia.journal.engine.retry import (
    ATTEMPTS,
    LONGEST_PAUSE_SECONDS,
    TRANSIENT_ATTEMPTS,
    UNANSWERED,
    NextStep,
    after_failure,
    after_probe,
    is_suspect,
    pause_seconds,
)
from orthia.journal.model.unit import Appended, AppendedMessage, Unit
from tests.journal.scripted import Committed, ScriptedStore, Writing, deletion, failing, write


@pytest.mark.parametrize(
    ("error", "unresolved", "step"),
    [
        (TransientStoreError(""), False, NextStep.REPEAT),
        (TransientStoreError(""), True, NextStep.REPEAT),
        (StoreUnavailable(""), False, NextStep.RECONNECT),
        (StoreUnavailable(""), True, NextStep.RECONNECT_AND_RESOLVE),
        (UnknownOutcome(""), False, NextStep.RECONNECT_AND_RESOLVE),
        (UnknownOutcome(""), True, NextStep.RECONNECT_AND_RESOLVE),
        (DuplicateKey(""), False, NextStep.GIVE_UP),
        (DuplicateKey(""), True, NextStep.RECONNECT_AND_RESOLVE),
        (PermanentStoreError(""), False, NextStep.GIVE_UP),
        (PermanentStoreError(""), True, NextStep.GIVE_UP),
        (Fenced(1), False, NextStep.GIVE_UP),
        (Fenced(1), True, NextStep.GIVE_UP),
    ],
)
def test_each_failure_has_its_next_step(
    error: OrthiaError, unresolved: bool, step: NextStep
) -> None:
    """The rule is the table in ``journal.engine.retry``; without a lease only one answer is."""
    assert after_failure(error, unresolved=unresolved, lease_valid=True) is step
    assert after_failure(error, unresolved=unresolved, lease_valid=False) is NextStep.GIVE_UP


@pytest.mark.parametrize(
    ("error", "step"),
    [
        (PermanentStoreError(""), NextStep.REFUSE),
        (TransientStoreError(""), NextStep.REFUSE),
        (RefusedForNow(""), NextStep.REFUSE),
        (StoreUnavailable(""), NextStep.GIVE_UP),
        (UnknownOutcome(""), NextStep.GIVE_UP),
    ],
)
def test_only_a_link_is_blamed_for_many_refusals(error: StoreError, step: NextStep) -> None:
    """What the database itself refuses another node would not store either."""
    for unanswered in range(UNANSWERED + 1):
        expected = step if unanswered == UNANSWERED else NextStep.REFUSE
        assert after_probe(error, units=1, refusable=True, unanswered=unanswered) is expected


def test_pauses_grow_to_a_bound() -> None:
    """Each failure in a row waits longer, up to a second."""
    pauses = [pause_seconds(failures) for failures in range(1, 50)]
    assert pauses == sorted(pauses)
    assert (pauses[0] < 0.05, pauses[-1]) == (True, LONGEST_PAUSE_SECONDS)


ONE = AppendedMessage(1, 7, b"x", None)


def run(
    store: ScriptedStore,
    still_valid: Callable[[], bool] = lambda: True,
    clock: Callable[[], float] = monotonic_seconds,
    item: Appended = ONE,
) -> tuple[int, list[OrthiaError]]:
    """Let a writer store one unit; return how many were stored, and its failures."""
    writing = Writing(store, still_valid=still_valid, clock=clock)
    writing.writer.start()
    writing.submit(item)
    writing.end()
    assert writing.writer.drained is not bool(writing.failures)
    return sum(writing.sizes), writing.failures


DEADLOCK, LOST = TransientStoreError("deadlock"), StoreUnavailable("lost")
CUT_OFF, LATE = UnknownOutcome("lost"), DuplicateKey("seq")
AGAIN = " connect is_stored confirm"


class Recovery(NamedTuple):
    """How attempts fail, one after the other, and all that is asked of the store until it is done.

    They are of a message if nothing else is said.
    """

    errors: list[Exception]
    calls: str
    items: list[Appended] = [ONE]  # noqa: RUF012 - never changed
    confirms: list[Exception] = []  # noqa: RUF012 - never changed


RECOVERIES = {
    "a deadlock: the database undid it": Recovery([DEADLOCK], "store store"),
    "a lost connection": Recovery([LOST], "store connect store"),
    "an unknown outcome: it is looked for": Recovery([CUT_OFF], "store connect is_stored store"),
    "an unknown outcome that was a commit: it is not repeated": Recovery(
        [Committed(CUT_OFF)], "store" + AGAIN
    ),
    "a confirmation of unknown outcome: only what is answered is known": Recovery(
        [Committed(CUT_OFF)], "store" + 3 * AGAIN, confirms=[CUT_OFF, LOST]
    ),
    "a duplicate key after an unknown outcome: the first attempt was just slow": Recovery(
        [CUT_OFF, LATE], "store connect is_stored store connect is_stored store"
    ),
    "the same with a deadlock in between, which says nothing of the first attempt": Recovery(
        [CUT_OFF, DEADLOCK, LATE], "store connect is_stored store store connect is_stored store"
    ),
    "acknowledgements of unknown outcome: a second attempt waits for no standby": Recovery(
        [CUT_OFF], "store connect store confirm", [deletion(5)]
    ),
    "the same acknowledgements with a deadlock in between": Recovery(
        [CUT_OFF, DEADLOCK], "store connect store store confirm", [deletion(5)]
    ),
    "parts of what may be stored: they have no row to look for": Recovery(
        [CUT_OFF] * ATTEMPTS,
        "store" + 3 * " connect store" + 2 * " store confirm",
        [deletion(1), deletion(2)],
    ),
    "a probe that loses the connection: on PostgreSQL a closed one ended the node": Recovery(
        [*[DEADLOCK] * TRANSIENT_ATTEMPTS, LOST],
        "store " * TRANSIENT_ATTEMPTS + "connect is_stored store connect is_stored store",
    ),
}


@pytest.mark.parametrize("what", RECOVERIES)
def test_what_failed_is_stored_in_the_end(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the recovery that it needs, and no more than that."""
    monkeypatch.setattr(orthia.journal.engine.attempts, "pause_seconds", lambda _: 0.0)
    errors, calls, items, confirms = RECOVERIES[what]
    store = ScriptedStore(failing(*errors), confirms=confirms)
    writing = write(store, *items)
    assert (sum(writing.sizes), writing.failures) == (len(items), [])
    assert store.calls == [*calls.split(), "close"]


@pytest.mark.parametrize(
    "failures",
    [
        [DEADLOCK] * (TRANSIENT_ATTEMPTS - 1),
        [*[LOST] * (ATTEMPTS - 1), DEADLOCK, *[LOST] * (ATTEMPTS - 1)],
        [*[DEADLOCK] * (TRANSIENT_ATTEMPTS - 1), LOST],
    ],
)
def test_what_others_have_a_part_in_does_not_make_a_batch_suspect(
    failures: list[StoreError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No probe is stored, so that nobody is refused for the deadlocks of others."""
    monkeypatch.setattr(orthia.journal.engine.attempts, "pause_seconds", lambda _: 0.0)
    store = ScriptedStore(failing(*failures))
    assert run(store) == (1, [])
    assert store.calls.count("store") == len(failures) + 1
    assert store.calls.count("connect") == failures.count(LOST)


def test_a_store_that_stores_nothing_for_long_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """A full disk was seen as a lease that was lost, half a minute after clients stood still."""
    now = iter(range(0, 100, 2))
    full = StoreUnavailable("no room is left")
    store = ScriptedStore(failing(*[full] * 5))  # the fourth is the probe's
    with caplog.at_level(logging.WARNING, "orthia.journal"):
        assert run(store, clock=lambda: float(next(now))) == (1, [])
    said = [one.getMessage() for one in caplog.records]
    told = [one for one in said if "has stored nothing" in one]
    assert told == [
        "the journal has stored nothing for 2 s: no room is left; retrying",
        "the journal has stored nothing for 6 s: no room is left; retrying",
    ]


def test_a_batch_found_but_not_confirmed_for_the_fence_is_not_completed() -> None:
    """Fenced is fenced."""
    lost = failing(Committed(UnknownOutcome("lost")))
    stored, (error,) = run(ScriptedStore(lost, confirms=[Fenced(3)]))
    assert (stored, type(error)) == (0, Fenced)


def test_a_refused_batch_fails_the_journal_clearly() -> None:
    """A batch the database will not take is not confirmed, not dropped, and named."""
    stored, (error,) = run(ScriptedStore(failing(PermanentStoreError("no such column"))))
    assert stored == 0
    assert isinstance(error, JournalError)
    assert "no such column" in str(error)
    assert "first row messages seq 1" in str(error)


def test_a_fenced_writer_never_touches_the_store_again() -> None:
    """After a refusal by the fence nothing is sent but the end of the connection."""
    store = ScriptedStore(failing(Fenced(3)))
    stored, (error,) = run(store)
    assert (stored, type(error)) == (0, Fenced)
    assert store.calls == ["store", "close"]


def test_retries_end_with_the_lease() -> None:
    """A batch that keeps failing is given up when the lease is over, and not confirmed."""
    store = ScriptedStore(lambda _: StoreUnavailable("down"))
    stored, (error,) = run(store, still_valid=lambda: store.calls.count("store") < 3)
    assert stored == 0
    assert isinstance(error, JournalError | LeaseExpired)
    assert store.calls.count("store") == 3


def test_a_journal_at_rest_asks_nothing_of_its_store_once_the_lease_is_over() -> None:
    """Another node may be live by then, and have ended the session: it is not opened again."""

    store = ScriptedStore()
    store.keep_alive_seconds = 0.001
    writing = Writing(store)
    writing.is_valid = False
    writing.writer.start()
    writing.wait_asked(4)
    writing.end()
    assert store.calls == ["close"]


def test_an_error_of_our_own_is_not_swallowed() -> None:
    """A writer that dies of a bug says so instead of leaving everybody waiting."""

    stored, (error,) = run(ScriptedStore(failing(RuntimeError("a bug"))))
    assert stored == 0
    assert "RuntimeError: a bug" in str(error)


def test_abandoning_ends_the_retries_silently() -> None:
    """A node that stops for an IO error is not held up by a store that does not answer."""
    store = ScriptedStore(lambda _: StoreUnavailable("down"))
    writing = Writing(store)
    writing.writer.start()
    writing.submit(ONE)
    writing.wait(lambda: "connect" in store.calls)
    writing.writer.abandon()
    assert writing.writer.join(120)
    assert (writing.told, writing.failures, writing.writer.drained) == ([], [], False)


class Slow:
    """A rule: a batch waits until the test says that it may go on."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.sizes: list[tuple[int, int]] = []

    def __call__(self, batch: Batch) -> None:
        """Wait."""
        self.sizes.append((batch.size, batch.payload_bytes))
        assert self.go_on.wait(120)


def test_a_batch_that_is_stored_after_an_abandoning_stop_is_not_confirmed() -> None:
    """A commit under way when the node stops for an IO error completes nobody."""
    slow = Slow()
    writing = Writing(ScriptedStore(slow))
    writing.writer.start()
    writing.submit(ONE)
    writing.wait(lambda: slow.sizes)
    writing.writer.abandon()
    slow.go_on.set()
    assert writing.writer.join(120)
    assert (writing.told, writing.failures, writing.writer.drained) == ([], [], False)


def batch_sizes(limits: JournalLimits, payloads: list[bytes]) -> list[tuple[int, int]]:
    """Return rows and bytes of the batches that messages go in which gathered behind a slow one."""
    slow = Slow()
    writing = Writing(ScriptedStore(slow), limits)
    writing.writer.start()
    writing.submit(ONE)
    writing.wait(lambda: slow.sizes)
    writing.submit(*(AppendedMessage(seq, 7, data, None) for seq, data in enumerate(payloads, 2)))
    slow.go_on.set()
    writing.end()
    return slow.sizes[1:]


def test_batches_grow_behind_a_slow_one() -> None:
    """What gathers while a batch is stored goes in one transaction."""
    assert batch_sizes(JournalLimits(), [b"xx"] * 100) == [(100, 200)]


def test_batches_are_bounded_by_rows_and_bytes() -> None:
    """A batch stops growing at either bound."""
    assert batch_sizes(JournalLimits(max_batch_rows=40), [b"x"] * 100) == [
        *((40, 40), (40, 40), (20, 20))
    ]
    assert batch_sizes(JournalLimits(max_batch_bytes=25), [b"x" * 10] * 6) == [(3, 30), (3, 30)]


def test_a_marker_is_never_a_row_the_batch_deletes() -> None:
    """What tells whether a batch is stored is a row that is there if it is."""
    batch = Batch()
    for seq in (5, 6):
        batch.add(AppendedMessage(seq, 7, b"", None))
    deletion = Unit(None, 6)
    deletion.deletes.append(5)
    batch.add(deletion)
    assert batch.marker() == Marker(JournalTable.MESSAGES, 6)


@pytest.mark.parametrize("failures", [1, ATTEMPTS, 1_000])
def test_no_batch_is_suspect_for_want_of_room(failures: int) -> None:
    """A probe would find some, and clients be refused until an operator makes room."""
    assert not is_suspect(NoRoom("full"), failures=failures, lease_valid=True)
    assert after_failure(NoRoom(""), unresolved=False, lease_valid=True) is NextStep.RECONNECT
