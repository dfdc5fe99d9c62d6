"""What the writer does after a failure, decision by decision, and that it does so."""

import logging
import threading
from collections.abc import Callable

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


@pytest.mark.parametrize(
    ("failure", "recovery"),
    [
        (TransientStoreError("deadlock"), []),
        (StoreUnavailable("lost"), ["connect"]),
        (UnknownOutcome("lost"), ["connect", "is_stored"]),
    ],
)
def test_a_batch_is_repeated_after(failure: StoreError, recovery: list[str]) -> None:
    """A failure that may pass is followed by the same batch, after the recovery it needs."""
    store = ScriptedStore(failing(failure))
    assert run(store) == (1, [])
    assert store.calls == ["store", *recovery, "store", "close"]


DEADLOCK, LOST = TransientStoreError("deadlock"), StoreUnavailable("lost")


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


def test_a_batch_that_turns_out_to_be_stored_is_not_repeated() -> None:
    """An unknown outcome that was a commit is a success."""
    store = ScriptedStore(failing(Committed(UnknownOutcome("lost"))))
    assert run(store) == (1, [])
    assert store.calls == ["store", "connect", "is_stored", "confirm", "close"]


def test_a_confirmation_of_unknown_outcome_is_repeated() -> None:
    """The batch is looked for again, too: only what is answered is known."""
    lost = UnknownOutcome("lost")
    confirms = [lost, StoreUnavailable("down")]
    store = ScriptedStore(failing(Committed(lost)), confirms=confirms)
    assert run(store) == (1, [])
    again = ["connect", "is_stored", "confirm"]
    assert store.calls == ["store", *again, *again, *again, "close"]


def test_a_batch_found_but_not_confirmed_for_the_fence_is_not_completed() -> None:
    """Fenced is fenced."""
    lost = failing(Committed(UnknownOutcome("lost")))
    stored, (error,) = run(ScriptedStore(lost, confirms=[Fenced(3)]))
    assert (stored, type(error)) == (0, Fenced)


def test_a_late_first_attempt_is_recognised() -> None:
    """A duplicate key after an unknown outcome means that the first attempt was just slow."""
    store = ScriptedStore(failing(UnknownOutcome("lost"), DuplicateKey("seq")))
    assert run(store) == (1, [])
    assert store.calls == [
        *("store", "connect", "is_stored", "store", "connect", "is_stored", "store", "close")
    ]


def test_a_late_first_attempt_is_recognised_whatever_else_failed_since() -> None:
    """A deadlock in between says nothing of the attempt whose outcome is unknown."""
    errors = [UnknownOutcome("lost"), TransientStoreError("dead"), DuplicateKey("seq")]
    store = ScriptedStore(failing(*errors))
    assert run(store) == (1, [])
    assert store.calls == [
        *("store", "connect", "is_stored", "store", "store"),
        *("connect", "is_stored", "store", "close"),
    ]


@pytest.mark.parametrize("meanwhile", [[], [TransientStoreError("deadlock")]])
def test_acknowledgements_whose_commit_was_lost_are_confirmed(meanwhile: list[StoreError]) -> None:
    """Their second attempt finds nothing to delete, and so waits for nobody: no standby, either."""
    acknowledgement = Unit(None, 0)
    acknowledgement.deletes.append(5)
    store = ScriptedStore(failing(UnknownOutcome("lost"), *meanwhile))
    assert run(store, item=acknowledgement) == (1, [])
    assert store.calls == [
        "store",
        "connect",
        *["store"] * len(meanwhile),
        "store",
        "confirm",
        "close",
    ]


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


def test_parts_of_what_may_be_stored_are_confirmed_too() -> None:
    """Acknowledgements have no row to look for: repeated apart, they may change nothing."""
    store = ScriptedStore(failing(*[UnknownOutcome("lost")] * ATTEMPTS))
    writing = write(store, deletion(1), deletion(2))
    assert (writing.failures, writing.sizes) == ([], [1, 1])
    probed = ["connect", "store"]
    assert store.calls[-7:] == [*probed, *["store", "confirm"] * 2, "close"]


def test_a_probe_that_loses_the_connection_is_followed_by_another() -> None:
    """The batch was only to be repeated: on PostgreSQL a closed connection ended the node."""
    deadlocks = [TransientStoreError("deadlock")] * TRANSIENT_ATTEMPTS
    store = ScriptedStore(failing(*deadlocks, StoreUnavailable("lost")))
    assert run(store) == (1, [])
    looked = ["connect", "is_stored", "store"]
    assert store.calls == [*["store"] * TRANSIENT_ATTEMPTS, *looked, *looked, "close"]


@pytest.mark.parametrize("failures", [1, ATTEMPTS, 1_000])
def test_no_batch_is_suspect_for_want_of_room(failures: int) -> None:
    """A probe would find some, and clients be refused until an operator makes room."""
    assert not is_suspect(NoRoom("full"), failures=failures, lease_valid=True)
    assert after_failure(NoRoom(""), unresolved=False, lease_valid=True) is NextStep.RECONNECT
