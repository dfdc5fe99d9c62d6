"""When nobody served, from forged logs: each way in which a service can end."""

from dataclasses import dataclass, replace

import pytest

from orthia.nodemanager import events
from orthia.nodemanager.locks.lease import Lock, State
from orthia.pipeline.history.account import Account, account_of
from orthia.pipeline.history.outages import LiveLock, Outage
from orthia.pipeline.history.rows import rows_of
from tests.pipeline.forging import OPENING_SECONDS, Node, holder, live_lock, lives, us

NODE_STOPPED = events.NodeStopped(0, "stopped")
STORE_GONE = events.NodeStopped(74, "no store")
LOST = events.LeaseLost(Lock.LIVE, 1, "the local deadline has passed", 31_000.0)


@dataclass(frozen=True)
class Told:
    """An outage in seconds: between when it began, between how long it was."""

    begin: tuple[float, float]
    seconds: tuple[float, float]
    cause: str
    is_open: bool = False


def told(outage: Outage) -> Told:
    """Return an outage as the tables below have it."""
    begin = tuple((at - us(0)) / 1_000_000 for at in outage.begin)
    long = (outage.least_us / 1_000_000, outage.most_us / 1_000_000)
    return Told((begin[0], begin[1]), long, outage.cause, outage.is_open)


def account(*nodes: Node, now: LiveLock | None = None, until: float = 300) -> Account:
    """Return the account of a pair until so many seconds after noon."""
    return account_of(lives(*nodes), now, None, us(until))


def a() -> Node:
    """Return the node that serves first, since noon."""
    return Node("a").becomes_live(-OPENING_SECONDS, 1)


def b() -> Node:
    """Return the node that waits."""
    return Node("b").says(1, events.BackupLockObtained(Lock.BACKUP, 1))


A, B = holder("a"), holder("b")
SERVED_BY_B = live_lock(300, B, 2, renewed=299)

TOLD = [
    pytest.param(
        [
            a(),
            b()
            .says(100.8, events.CrashDetected(A, 2_500.0, 15_000.0))
            .becomes_live(102.6, 2, A, renewed=98, gone=100.1),
        ],
        Told((98, 100.1), (2.525, 4.64), "crash detected"),
        id="kill -9: from the last renewal to the end of its session",
    ),
    pytest.param(
        [a(), b().becomes_live(118.1, 2, A, renewed=98, gone=118)],
        Told((98, 102), (16.125, 20.14), "lease expired"),
        id="kill -9 without crash detection: two renewals did not come",
    ),
    pytest.param(
        [
            a()
            .says(130, events.LeaseLost(Lock.LIVE, 1, "paused", 32_000.0))
            .says(131, NODE_STOPPED),
            b().becomes_live(118.1, 2, A, renewed=98, gone=118),
        ],
        Told((98, 102), (16.125, 20.14), "lease expired"),
        id="frozen, and awake after the takeover",
    ),
    pytest.param(
        [
            a()
            .says(80, events.ServiceClosing(1))
            .says(80.5, events.LockReleased(Lock.LIVE, 1))
            .says(80.6, NODE_STOPPED),
            b().becomes_live(80.7, 2, A, renewed=80.4, gone=80.6),
        ],
        Told((80, 80.5), (0.225, 0.74), "released"),
        id="an orderly stop: until the last receipt was sent",
    ),
    pytest.param(
        [
            a()
            .says(60, events.LeaseLost(Lock.LIVE, 1, "renewal failed", 1_500.0))
            .says(60.1, events.CriticalIOError("no store"))
            .says(60.2, events.NodeStopped(74, "no store")),
            b().becomes_live(90, 2, A, renewed=58.5, gone=78.5),
        ],
        Told((58.5, 60), (30.025, 31.54), "lost"),
        id="the database stopped",
    ),
    pytest.param(
        [
            a()
            .says(70, events.LoopUnanswered(20_000.0, 20_000, "SHUTDOWN"))
            .says(70.1, events.CriticalIOError("the event loop"))
            .says(70.2, events.NodeStopped(74, "the event loop")),
            b().becomes_live(90, 2, A, renewed=69, gone=89),
        ],
        Told((50, 50), (40.025, 40.04), "wedged"),
        id="a loop that did not answer",
    ),
    pytest.param(
        [
            a(),
            b()
            .obtains(118, 2, A, renewed=98, gone=118)
            .says(119, events.StartFailed("the port is taken")),
            Node("c").becomes_live(130, 3, B, renewed=119, gone=119.1),
        ],
        Told((98, 102), (28.025, 32.04), "lease expired"),
        id="the first to take over did not serve",
    ),
]


@pytest.mark.parametrize(("nodes", "expected"), TOLD)
def test_an_outage_is_between_proof_of_life_and_proof_of_death(
    nodes: list[Node], expected: Told
) -> None:
    """And ends when the acceptors are open."""
    last = nodes[-1]
    now = live_lock(300, last.holder, 3 if last.name == "c" else 2, renewed=299)
    found = account(*nodes, now=now)
    (outage,) = found.outages
    shown = told(outage)
    assert shown.cause == expected.cause
    assert shown.begin == pytest.approx(expected.begin)
    assert shown.seconds == pytest.approx(expected.seconds)
    assert not outage.is_open
    assert found.serving == last.name


OPEN = [
    pytest.param(
        [a()],
        live_lock(300, A, 1, renewed=99.5),
        Told((99.5, 103.5), (196.5, 200.5), "lease expired, and nobody after it", is_open=True),
        id="killed, and nobody back",
    ),
    pytest.param(
        [a()],
        live_lock(115, A, 1, renewed=99.5),
        Told((99.5, 103.5), (11.5, 15.5), "no renewal", is_open=True),
        id="killed a moment ago: the lease still runs",
    ),
    pytest.param(
        [
            a()
            .says(80, events.ServiceClosing(1))
            .says(80.5, events.LockReleased(Lock.LIVE, 1))
            .says(80.6, NODE_STOPPED)
        ],
        live_lock(300, None, 1),
        Told((80, 80.5), (219.5, 220), "released, and nobody after it", is_open=True),
        id="an orderly stop, and nobody there",
    ),
    pytest.param(
        [
            a()
            .says(80, events.ServiceClosing(1))
            .says(80.5, events.LockReleased(Lock.LIVE, 1))
            .says(80.6, NODE_STOPPED),
            b(),
        ],
        live_lock(300, None, 1, state=State.PAUSED),
        Told(
            (80, 80.5),
            (219.5, 220),
            "released, and backups stay passive (failover-on-shutdown is false)",
            is_open=True,
        ),
        id="an orderly stop without failover",
    ),
    pytest.param(
        [a(), b().obtains(118, 2, A, renewed=98, gone=118)],
        live_lock(300, B, 2, renewed=299),
        Told((98, 102), (198, 202), "lease expired, and b has not served", is_open=True),
        id="whoever took over does not serve",
    ),
    pytest.param(
        [a().says(60, LOST).says(60.1, events.NodeStopped(74, "no store"))],
        live_lock(300, A, 1, renewed=29),
        Told((29, 33), (267, 271), "lost, and nobody after it", is_open=True),
        id="alone, frozen, and ended when it woke",
    ),
]


CRASH = events.CrashDetected(A, 2_500.0, 15_000.0)
EXPIRED = events.LeaseExpired(A, 20_100.0, 100.0, "held", B)
WITHOUT_TIMERS = "a@host:1:uuid"
CAUSES = [
    pytest.param(b().obtains(102.6, 2, A, 98, 100.1), "unknown", id="no crash, and no lease out"),
    pytest.param(
        b().says(100.8, CRASH).obtains(102.6, 2, A, 98, 100.1).without(2),
        "crash detected",
        id="a crash, and its event is lost",
    ),
    pytest.param(
        b().says(100, events.BackupStarted()).obtains(100.1, 2, A, 99, 100).without(2),
        "unknown",
        id="handed over in good order, of which no event is left",
    ),
    pytest.param(b().obtains(118.1, 2, A, 98.2, 118), "lease expired", id="by clocks that differ"),
    pytest.param(b().obtains(118.1, 2, A), "unknown", id="nothing was seen of it"),
    pytest.param(
        b().obtains(118.1, 2, A, 98, 118).opens(119, 2).without(2), "unknown", id="event is lost"
    ),
    pytest.param(b().obtains(100, 2, WITHOUT_TIMERS, 99, 99.9), "lock free", id="no lease"),
    pytest.param(
        b().says(118.1, EXPIRED).obtains(118.1, 2, A),
        "lease expired",
        id="frozen, as whoever took over says",
    ),
    pytest.param(
        b().says(118.1, EXPIRED).obtains(118.1, 2, A, 98, 118).opens(119, 2).without(2),
        "lease expired",
        id="frozen, and the event of the lock is lost",
    ),
]


@pytest.mark.parametrize(("second", "cause"), CAUSES)
def test_a_cause_is_what_whoever_took_over_saw(second: Node, cause: str) -> None:
    """Of a node whose own log does not say how it ended."""
    found = account(a(), second, now=SERVED_BY_B)
    assert [one.cause for one in found.takeovers][1:] == [cause]
    # Also if nothing is left of the node before.
    (alone,) = account(second, now=SERVED_BY_B).takeovers
    assert alone.cause in (cause, "first start")


def test_of_the_first_takeover_that_is_known_its_node_saw_the_outage_begin() -> None:
    """Between the last renewal of whoever is not in the log, and when its lock was free."""
    second = b().becomes_live(118.1, 2, A, renewed=98, gone=118)
    (first,) = account(second, now=SERVED_BY_B).takeovers
    assert first.begin == (us(98), us(118))


def test_an_outage_ends_between_the_loaded_journal_and_the_word_of_the_open_acceptors() -> None:
    """Clients are served before the node comes to say so. Without its timings: since it may be."""
    second = b().becomes_live(118.1, 2, A, renewed=98, gone=118)
    (outage,) = account(a(), second, now=SERVED_BY_B).outages
    assert outage.end == (us(118.125), us(118.14))
    second.says(119, events.ClockDrift(1.0, 250)).without(5)
    (outage,) = account(a(), second, now=SERVED_BY_B).outages
    assert outage.end == (us(118.1), us(118.14))


def test_a_write_is_a_later_proof_of_life_than_a_renewal() -> None:
    """Of a node that was killed: its end lies between the last that it stored, and its silence."""
    second = b().becomes_live(118.1, 2, A, renewed=98, gone=118)
    now = replace(SERVED_BY_B, writes={1: us(99.9), 2: us(299.5)})
    (outage,) = account(a(), second, now=now).outages
    assert told(outage).begin == pytest.approx((99.9, 102))
    # What is from before it had the lock, or from when the next one had it, is no proof.
    for at in (-10, 119):
        (outage,) = account(a(), second, now=replace(now, writes={1: us(at)})).outages
        assert told(outage).begin == pytest.approx((98, 102))
    # Both are dead: the same.
    gone = replace(live_lock(300, A, 1, renewed=99.5), writes={1: us(100.2)})
    (outage,) = account(a(), now=gone).outages
    assert told(outage).begin == pytest.approx((100.2, 103.5))
    silent = replace(live_lock(115, A, 1, renewed=99.5), writes={1: us(100.2)})
    (outage,) = account(a(), now=silent, until=115).outages
    assert told(outage).begin == pytest.approx((100.2, 103.5))


def test_what_a_node_stores_after_its_acceptors_closed_is_no_service() -> None:
    """It says itself between when it ended."""
    stopped = a().says(80, events.ServiceClosing(1)).says(80.5, events.LockReleased(Lock.LIVE, 1))
    now = replace(live_lock(300, None, 1), writes={1: us(80.4)})
    (outage,) = account(stopped, now=now).outages
    assert told(outage).begin == pytest.approx((80, 80.5))


@pytest.mark.parametrize(("nodes", "now", "expected"), OPEN)
def test_what_the_store_says_now_closes_the_history(
    nodes: list[Node], now: LiveLock, expected: Told
) -> None:
    """Nobody who is dead says anything: an outage that goes on is one."""
    until = (now.now - us(0)) / 1_000_000
    found = account(*nodes, now=now, until=until)
    (outage,) = found.outages
    assert (told(outage).cause, outage.is_open) == (expected.cause, True)
    assert told(outage).begin == pytest.approx(expected.begin)
    assert told(outage).seconds == pytest.approx(expected.seconds)
    assert found.serving is None
    assert found.availability is not None
    least, most = found.availability
    if outage.is_planned:
        assert expected.cause.startswith("released")
        assert (least, most, found.out_most_us) == (1.0, 1.0, 0)
        assert found.planned_most_us == expected.seconds[1] * 1_000_000
        return
    assert least == pytest.approx(1 - expected.seconds[1] / until)
    assert most == pytest.approx(1 - expected.seconds[0] / until)


@pytest.mark.parametrize(
    "now", [live_lock(300, A, 1, renewed=299), live_lock(300, A, 1, renewed=296.5)]
)
def test_a_pair_that_serves_was_out_at_no_time(now: LiveLock) -> None:
    """Its lease was renewed less than two periods ago."""
    found = account(a(), now=now)
    assert (list(found.outages), found.availability, found.serving) == ([], (1.0, 1.0), "a")


def test_the_open_outage_comes_first_and_then_the_longest() -> None:
    """It is what an operator has to do with now."""
    second = b().becomes_live(118.1, 2, A, renewed=98, gone=118)
    third = Node("c").becomes_live(150, 3, B, renewed=149.9, gone=149.95)
    found = account(a(), second, third, now=live_lock(300, third.holder, 3, renewed=291))
    assert [one.is_open for one in found.outages] == [True, False, False]
    assert [one.most_us for one in found.outages] == [9_000_000, 20_140_000, 140_000]


def test_a_waiting_node_does_not_make_its_own_wait_an_outage() -> None:
    """The other one served meanwhile, and handed over."""
    second = (
        Node("b")
        .becomes_live(-OPENING_SECONDS, 1)
        .says(93, events.FailbackRequested())
        .says(93.1, events.LockReleased(Lock.LIVE, 1))
    )
    first = (
        Node("a")
        .says(0.5, events.WaitingForLiveLock(Lock.LIVE, B))
        .becomes_live(93.2, 2, B, renewed=93.05, gone=93.15)
    )
    # The one that handed over waits now, and stops much later.
    second.says(93.3, events.BackupLockObtained(Lock.BACKUP, 1)).says(250, NODE_STOPPED)
    found = account(first, second, now=live_lock(300, A, 2, renewed=299))
    (outage,) = found.outages
    assert told(outage).seconds == pytest.approx((0.125, 0.24))
    assert (outage.cause, list(found.overlaps)) == ("released", [])


@pytest.mark.parametrize(
    ("end", "cause"),
    [
        (events.LockReleased(Lock.LIVE, 1), "unknown: released, and the log ends"),
        (LOST, "unknown: lost, and the log ends"),
    ],
)
def test_files_alone_do_not_tell_that_nobody_came_after_a_service(
    end: events.Event, cause: str
) -> None:
    """Whoever took over has a file of its own, and of this one nobody knows how old it is."""
    ended = a().says(60, end).says(60.1, events.BackupStarted())
    ended.says(60.2, events.BackupAnnounced("nobody yet"))
    (outage,) = account(ended, until=100).outages
    assert (outage.is_known, outage.cause, outage.least_us) == (False, cause, 0)
    # Later it saw who serves.
    ended.says(80, events.BackupAnnounced(B))
    found = account(ended, until=100)
    assert [one.is_known for one in found.outages] == [False]
    assert (found.serving, found.out_least_us) == (None, 0)
    # The store knows.
    (outage,) = account(ended, now=live_lock(300, None, 1)).outages
    assert (outage.is_known, outage.is_open) == (True, True)


def test_what_a_file_says_later_tells_that_its_node_served_until_then() -> None:
    """The period is over before the log is."""
    later = a().says(200, events.RenewalSlow(Lock.LIVE, 1, 2_100.0, 2_000))
    found = account(later, until=100)
    assert (list(found.outages), found.serving, found.availability) == ([], "a", (1.0, 1.0))


def test_one_nodes_file_alone_is_named_and_its_neighbours_time_is_unknown() -> None:
    """Under token 2 somebody served, or did not."""
    first = (
        a()
        .says(100, events.ServiceClosing(1))
        .says(100, events.LockReleased(Lock.LIVE, 1))
        .becomes_live(200, 3, B, renewed=199, gone=199.5)
    )
    found = account(first, now=live_lock(300, A, 3, renewed=299))
    assert {one.kind for one in found.doubts} == {"token missing", "log missing"}
    (outage,) = found.outages
    assert told(outage).seconds == pytest.approx((0.525, 100.04))
    assert found.availability == pytest.approx((1 - 100.04 / 300, 1 - 0.525 / 300))


def test_the_store_knows_a_holder_that_the_log_does_not() -> None:
    """Whether it serves nobody can tell; that its log is missing is said."""
    found = account(a(), now=live_lock(300, B, 2, renewed=299))
    (outage,) = found.outages
    assert (outage.is_known, outage.cause) == (False, f"unknown: no log of {B}")
    assert {one.kind for one in found.doubts} == {"log missing", "token missing"}
    assert found.availability == pytest.approx((0.0, 1.0), abs=1e-3)


def test_a_pair_that_never_served_is_out() -> None:
    """A backup waits for a live node that was never started."""
    found = account(b(), now=live_lock(300, None, 0, state=State.NOT_STARTED))
    (outage,) = found.outages
    assert (outage.is_open, outage.is_known) == (True, True)
    assert found.availability == (0.0, 0.0)


def test_lost_rows_are_named_and_what_they_hid_is_a_range() -> None:
    """The event of the open acceptors is gone; a later one shows that it must have been."""
    second = b().becomes_live(118.1, 2, A, renewed=98, gone=118)
    second.says(130, events.RenewalSlow(Lock.LIVE, 2, 2_100.0, 2_000)).without(3, 4, 5)
    found = account(a(), second, now=SERVED_BY_B)
    (doubt,) = found.doubts
    assert doubt.kind == "events missing"
    assert "3 to 5" in doubt.what
    (outage,) = found.outages
    assert told(outage).seconds == pytest.approx((118.1 - 102, 130 - 98))


def test_a_period_that_is_over_was_served_by_who_served_at_its_end() -> None:
    """The log goes on to another node."""
    second = b().becomes_live(118.1, 2, A, renewed=98, gone=118)
    for until, node in ((90, "a"), (110, None), (119, "b"), (300, "b")):
        assert account(a(), second, now=SERVED_BY_B, until=until).serving == node
        assert account(a(), second, until=until).serving == (node if until < 110 else None)


def test_doubts_and_overlaps_are_counted_as_they_are_shown() -> None:
    """Of a period that is over: not those of later."""
    second = b().becomes_live(118.1, 2, A, renewed=98, gone=118)
    second.says(250, events.ClockDrift(1.0, 250)).says(251, events.ClockDrift(1.0, 250))
    went_on = a().says(130, events.RenewalSlow(Lock.LIVE, 1, 2_100.0, 2_000))
    of_lives = lives(went_on, second.without(second.events[-2].seq))
    for until, count in ((90, 0), (300, 1)):
        found = account_of(of_lives, SERVED_BY_B, None, us(until))
        rows = list(rows_of("pair", found, of_lives))
        (pair,) = (row for name, row in rows if name == "availability")
        shown = [name for name, _ in rows]
        assert (pair["doubts"], shown.count("doubts")) == (count, count)
        assert (pair["overlaps"], shown.count("overlaps")) == (count, count)


@pytest.mark.parametrize("off", [-10, 10], ids=["back", "forward"])
def test_an_outage_across_a_step_is_uncertain_by_as_much(off: float) -> None:
    """It was 20 s, and the database's clock was set meanwhile."""
    stopped = a().says(80, events.ServiceClosing(1)).says(80, events.LockReleased(Lock.LIVE, 1))
    second = b().says(79, events.ClockDrift(1.0, 250))
    second.clock_is_off = off
    second.becomes_live(100, 2, A, renewed=79.9, gone=80)
    until = 300 + off
    found = account(stopped, second, now=live_lock(until, B, 2, renewed=until - 1), until=until)
    # Handed over in good order, so as it was planned.
    assert found.planned_least_us <= 20_040_000 <= found.planned_most_us
    assert found.planned_most_us <= found.end - found.begin


def test_a_step_of_both_clocks_is_seen_if_it_is_back() -> None:
    """As in a log of before nodes kept the database's time on a stopwatch."""
    both = a().says(50, events.ClockDrift(1.0, 250)).says(20, events.ClockDrift(1.0, 250))
    found = account(both, now=live_lock(300, A, 1, renewed=299))
    assert [(one.kind, one.at) for one in found.doubts] == [("clock stepped", us(20))]


def test_a_clock_that_was_set_back_is_named_and_makes_no_conflict() -> None:
    """Though what the first holder said before is later, by the clock, than the next one's."""
    hour = 3_600
    first = a()
    second = b()
    for node in (first, second):
        node.clock_is_off = -hour
        node.says(600, events.ClockDrift(hour * 1_000.0, 250))
    second.becomes_live(1_200, 2, A, renewed=1_190, gone=1_199)
    now = live_lock(100_000, B, 2, renewed=99_999)

    def shown(*nodes: Node) -> tuple[list[tuple[str, bool]], set[str]]:
        of_lives = lives(*nodes)
        rows = list(rows_of("pair", account_of(of_lives, now, None, us(100_000)), of_lives))
        of_locks = [row for name, row in rows if name == "overlaps" and row["lock"] == "live"]
        doubts = {row["kind"] for name, row in rows if name == "doubts"}
        return [(row["evidence"], row["conflict"]) for row in of_locks], doubts

    seen = {"clock stepped", "time runs back"}
    assert shown(first, second) == ([("clock stepped", False)], seen)
    # One that went on after the step, beside the next, is a conflict still.
    first.says(1_300, events.RenewalSlow(Lock.LIVE, 1, 2_100.0, 2_000))
    assert shown(first, second) == ([("renewed", True)], seen)


def test_a_token_that_was_declined_is_not_missing() -> None:
    """The next holder saw the same one before it."""
    second = b().becomes_live(118.1, 3, A, renewed=98, gone=118)
    found = account(a(), second, now=live_lock(300, B, 3, renewed=299))
    assert list(found.doubts) == []
    assert told(found.outages[0]).seconds == pytest.approx((16.125, 20.14))


def test_a_token_that_is_given_back_unused_is_no_takeover() -> None:
    """Its node says so: the state was no longer one to serve in."""
    second = b().says(118.05, events.LockReleased(Lock.LIVE, 2))
    second.becomes_live(118.1, 3, A, renewed=98, gone=118)
    found = account(a(), second, now=live_lock(300, B, 3, renewed=299))
    assert list(found.doubts) == []
    assert told(found.outages[0]).seconds == pytest.approx((16.125, 20.14))
    only = b().says(118.05, events.LockReleased(Lock.LIVE, 2))
    (outage,) = account(a(), only, now=live_lock(300, None, 2)).outages
    assert (outage.is_open, outage.cause) == (True, "released, and nobody after it")


def test_a_holder_that_is_gone_too_and_left_no_log_makes_an_open_outage_uncertain() -> None:
    """It may have served until its lease ran out."""
    (outage,) = account(a(), now=live_lock(300, B, 2, renewed=150)).outages
    assert (outage.is_open, outage.cause) == (True, "unknown: token 2 is not in the log")
    assert told(outage).begin == pytest.approx((0.003, 170))


def test_a_node_that_stood_still_and_went_on_was_out_meanwhile() -> None:
    """Nobody was there to take over; its renewals tell how long."""
    paused = a().says(160, events.RenewalBeyondExpiration(Lock.LIVE, 1, 62_000.0, 20_000))
    found = account(paused, now=live_lock(300, A, 1, renewed=299))
    (outage,) = found.outages
    assert told(outage).seconds == pytest.approx((58, 62))
    late = a().says(160, events.RenewalGap(Lock.LIVE, 1, 12_000.0, 2_000, 20_000))
    (outage,) = account(late, now=live_lock(300, A, 1, renewed=299)).outages
    assert (told(outage).seconds, outage.is_known) == ((0, 12), False)


def test_a_log_without_what_nodes_write_today_is_read_too() -> None:
    """Of a crash the lease's end was told before; of an expired lease only its timers."""
    crash = b().says(100.8, events.CrashDetected(A, 2_500.0, 17_200.0)).becomes_live(100.9, 2)
    (outage,) = account(a(), crash, now=SERVED_BY_B).outages
    assert told(outage).begin == pytest.approx((98, 100.9))
    expired = b().becomes_live(118.1, 2)
    (outage,) = account(a().says(90, events.ClockDrift(1.0, 2)), expired, now=SERVED_BY_B).outages
    assert told(outage).begin == pytest.approx((90, 102.1))


def test_an_overlap_is_a_conflict_if_the_older_holder_went_on() -> None:
    """It renewed, served, gave back what was not its own; or it only found out late."""
    later = 130.0
    second = b().becomes_live(118.1, 2, A, renewed=98, gone=118)

    def evidence(node: Node) -> tuple[str, bool]:
        (found,) = account(node, second, now=SERVED_BY_B).overlaps
        return found.evidence, found.is_conflict

    renewed = events.RenewalSlow(Lock.LIVE, 1, 2_100.0, 2_000)
    gap = events.RenewalGap(Lock.LIVE, 1, 2_500.0, 2_000, 20_000)
    assert evidence(a().says(later, renewed)) == ("renewed", True)
    assert evidence(a().says(later, gap)) == ("renewed", True)
    assert evidence(a().says(later, events.LockReleased(Lock.LIVE, 1))) == ("released", True)
    woke = a().says(later, events.LeaseLost(Lock.LIVE, 1, "paused", 32_000.0))
    assert evidence(woke) == ("noticed late", False)
    opened_late = Node("a").obtains(0, 1).opens(later, 1)
    assert evidence(opened_late) == ("served", True)
    # A renewal that hung in the frozen process, and was answered before the other began.
    slow = events.RenewalSlow(Lock.LIVE, 1, 32_000.0, 2_000)
    assert evidence(a().says(later, slow)) == ("noticed late", False)


def test_a_token_that_two_held_is_a_conflict() -> None:
    """No store gives a token out twice."""
    twice = Node("b").becomes_live(118.1, 1, A, renewed=98, gone=118)
    found = account(a(), twice, now=live_lock(300, B, 1, renewed=299))
    assert [(one.evidence, one.is_conflict) for one in found.overlaps] == [("one token", True)]


def test_tokens_that_run_against_time_are_named() -> None:
    """A log that was written by others, or by clocks that were set."""
    first = Node("a").becomes_live(200, 1)
    second = Node("b").becomes_live(100, 2)
    found = account(first, second, now=SERVED_BY_B)
    assert "time runs back" in {one.kind for one in found.doubts}
    assert found.availability is not None
    assert 0 <= found.availability[0] <= found.availability[1] <= 1


def test_an_event_from_before_the_database_answered_keeps_its_place() -> None:
    """It is placed by the node's clock, but not after what followed it."""
    node = Node("late").says(600, events.BackupStarted(), knows_time=False)
    node.becomes_live(1, 1)
    assert [one.at for one in node.life().events][:2] == [us(1), us(1)]


# --- planned downtime


def closed(at: float = 80) -> Node:
    """Return the first node, stopped in good order."""
    released = events.LockReleased(Lock.LIVE, 1)
    return a().says(at, events.ServiceClosing(1)).says(at + 0.5, released)


def told_of(found: Account) -> tuple[str, int, int]:
    """Return what a report says of now, and how many outages and planned ones it counts."""
    rows = dict(rows_of("pair", found, []))
    row = rows["availability"]
    return str(row["now"]), row["outages"], row["planned_outages"]


def test_a_pair_that_was_stopped_is_not_out() -> None:
    """Nor is the gap an outage when it is started again, by whichever node."""
    found = account(closed(), now=live_lock(300, None, 1))
    assert told_of(found) == ("stopped", 0, 1)
    second = Node("b").becomes_live(280, 2, A, renewed=80, gone=80.5)
    found = account(closed(), second, now=live_lock(300, second.holder, 2, renewed=299))
    assert told_of(found) == ("served by b", 0, 1)
    assert found.availability == (1.0, 1.0)
    assert (found.planned_least_us, found.planned_most_us) == (199_525_000, 200_040_000)


@pytest.mark.parametrize(("at", "planned"), [(81, 1), (150, 0)])
def test_a_hand_over_is_planned_if_the_one_that_waited_took_it_at_once(
    at: float, planned: int
) -> None:
    """A backup that is there and serves a minute later was not well."""
    second = b().becomes_live(at, 2, A, renewed=80, gone=80.5)
    found = account(closed(), second, now=SERVED_BY_B)
    assert told_of(found) == ("served by b", 1 - planned, planned)


def test_a_failure_after_an_orderly_stop_is_an_outage() -> None:
    """Of whoever took the lock and did not come to serve, before somebody did."""
    second = b().obtains(81, 2, A, renewed=80, gone=80.5).says(82, STORE_GONE)
    third = Node("c").becomes_live(105, 3, B, renewed=84, gone=104)
    found = account(closed(), second, third, now=live_lock(300, third.holder, 3, renewed=299))
    assert told_of(found) == ("served by c", 1, 0)
    # It is one of its own to have been killed, however the pair was stopped before.
    assert told_of(account(a(), now=live_lock(300, A, 1, renewed=99)))[0] == "OUT"


def test_what_an_operator_planned_counts_for_that_much() -> None:
    """Of an outage that begins or ends beyond it the rest is one; without an outage it is none."""
    second = b().becomes_live(118.1, 2, A, renewed=98, gone=118)
    nodes = lives(a(), second)

    def planned(*windows: tuple[float, float]) -> Account:
        wanted = [(us(begin), us(end)) for begin, end in windows]
        return account_of(nodes, SERVED_BY_B, None, us(300), wanted)

    whole = planned((90, 120), (200, 250))
    assert (told_of(whole), whole.availability) == (("served by b", 0, 1), (1.0, 1.0))
    half = planned((90, 110), (109, 112))
    assert told_of(half) == ("served by b", 1, 0)
    assert (half.out_least_us, half.planned_most_us) == (6_125_000, 14_000_000)
    assert half.availability == pytest.approx((1 - 6.14 / 286, 1 - 6.125 / 290))
