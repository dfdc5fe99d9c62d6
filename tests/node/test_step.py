"""A node's state machine: what follows from each event at each stage, as a table."""

from dataclasses import replace
from pathlib import Path

import pytest

from orthia.broker.node.effects import (
    AwaitLiveLock,
    Effect,
    Emit,
    Handover,
    Interrupt,
    ReleaseLiveLock,
    ResumeLiveLock,
    Serve,
    Show,
    ShowLoop,
)
from orthia.broker.node.events import (
    AcceptorsTried,
    Activated,
    BackupStopped,
    Begun,
    Completed,
    CompletionFailed,
    Drained,
    FailbackAsked,
    HandoverAsked,
    JournalFailed,
    Loaded,
    LockWasLost,
    LoopWedged,
    NodeEvent,
    Opened,
    PartDied,
    Paused,
    Prepared,
    Released,
    ServedEnough,
    ShutDownDone,
    StopRequested,
    StoreGone,
    WhoWaitsAsked,
    WorkBroke,
    WorkEvent,
    WorkInterrupted,
    WorkRefused,
)
from orthia.broker.node.exit_codes import ExitCode
from orthia.broker.node.restarts import Life
from orthia.broker.node.state import NodeState, Phase, Stage, Terms
from orthia.broker.node.step import OutOfPlace, step
from orthia.config.settings import CriticalAnalyzerPolicy, HaPolicy, IoErrorPolicy, Role
from orthia.nodemanager.abc import FormerLife
from orthia.nodemanager.events import (
    ConnectorsStopped,
    FailbackPutOff,
    FencedWriteRefused,
    LoopUnanswered,
    NodeStopped,
    RestartsAsBackup,
    ServiceClosing,
    StartFailed,
)
from orthia.nodemanager.failback import Failbacks
from tools.documents.node_states import reference

BACKUP = HaPolicy(Role.BACKUP)
EVENTS: dict[str, NodeEvent] = {
    type(event).__name__: event
    for event in (
        Begun(),
        Paused(),
        Prepared(),
        AcceptorsTried(),
        Activated("b@host", 7),
        Loaded(),
        Opened(),
        Completed(100.0),
        FailbackAsked(200.0),
        HandoverAsked(200.0),
        ServedEnough(),
        WhoWaitsAsked(is_written=True),
        Drained(),
        Released(300.0),
        BackupStopped(),
        WorkInterrupted(),
        StoreGone("no answer"),
        WorkRefused(ExitCode.CONFIGURATION, "it is wrong"),
        WorkBroke(ExitCode.SOFTWARE, "it broke"),
        StopRequested(),
        LockWasLost("expired"),
        JournalFailed("refused", was_fenced=True),
        CompletionFailed("half done"),
        LoopWedged(12.0, "where it is"),
        PartDied("a thread died"),
        ShutDownDone(),
    )
}
GOOD_WAY = [
    *("Begun", "Paused", "Prepared", "AcceptorsTried", "Activated", "Loaded", "Opened"),
    *("Completed", "ServedEnough", "Drained", "Released", "BackupStopped"),
]

WORDS = {
    "waiting": "PAUSING PREPARING TRYING_ACCEPTORS WAITING",
    "locked": "LOADING OPENING COMPLETING SERVING ASKING",
    "ending": "CLOSING LETTING_GO LEAVING ENDED",
    "lost": "LockWasLost CompletionFailed",
    "closes": "ServiceClosing CloseService",
    "fails": "EndInTime ShutDown",
    "said": "ShowLoop LoopUnanswered",
    "wedges": "EndInTime ShowLoop LoopUnanswered ShutDown",
}
"""What several words in the table stand for."""
TABLE = """
NEW                                | Begun                 | PAUSING          | Pause
PAUSING                            | Paused                | PREPARING        | PrepareStore
PREPARING                          | Prepared              | TRYING_ACCEPTORS | TryAcceptors
TRYING_ACCEPTORS                   | AcceptorsTried        | WAITING          | Show AwaitLiveLock
WAITING                            | Activated             | LOADING          | LoadJournal
LOADING                            | Loaded                | OPENING          | OpenService
OPENING                            | Opened                | COMPLETING       | CompleteActivation
COMPLETING         | Completed     | SERVING    | Show ShowTakeover Serve
SERVING                            | ServedEnough          | DRAINING         | Show closes
SERVING            | FailbackAsked | DRAINING   | FailbackRequested Show closes
SERVING                            | HandoverAsked         | DRAINING         | Show closes
ASKING                             | WhoWaitsAsked         | SERVING          | Serve
DRAINING                           | Drained               | RELEASING        | ReleaseLiveLock
RELEASING                          | Released              | LEAVING          | StopBackup
CLOSING                            | Drained               | LETTING_GO       | ReleaseLiveLock
LETTING_GO                         | Released              | LEAVING          | StopBackup
LEAVING            | BackupStopped | ENDED      | NodeStopped StopManager CloseStore Finish
FAILING            | ShutDownDone  | FAILED     | NodeStopped Wake StopManager Finish

waiting LOADING                    | WorkInterrupted       | LETTING_GO       | ReleaseLiveLock
OPENING                            | WorkInterrupted       | CLOSING          | CloseService
COMPLETING SERVING ASKING DRAINING | WorkInterrupted       | CLOSING          | closes
RELEASING                          | WorkInterrupted       | LETTING_GO       | ReleaseLiveLock

waiting LOADING    | WorkRefused WorkBroke | LETTING_GO | StartFailed ReleaseLiveLock
OPENING            | WorkRefused WorkBroke | CLOSING    | StartFailed CloseService
COMPLETING DRAINING                | WorkRefused WorkBroke | CLOSING          | StartFailed closes
RELEASING          | WorkRefused WorkBroke | LETTING_GO | StartFailed ReleaseLiveLock
SERVING ASKING                     | WorkBroke             | CLOSING          | StartFailed closes
SERVING ASKING                     | WorkRefused           | FAILING          | fails

waiting                            | StoreGone             | FAILING          | fails
locked                             | StoreGone             | FAILING          | fails
DRAINING                           | StoreGone             | CLOSING          | closes
RELEASING                          | StoreGone             | LETTING_GO       | ReleaseLiveLock

NEW waiting                        | lost JournalFailed PartDied | FAILING          | fails
locked                             | lost PartDied         | FAILING          | fails
locked             | JournalFailed | FAILING    | FencedWriteRefused fails
DRAINING RELEASING                 | lost                  | =                |
DRAINING RELEASING                 | JournalFailed         | =                | FencedWriteRefused
DRAINING RELEASING                 | PartDied              | FAILING          | fails
CLOSING LETTING_GO                 | lost PartDied         | FAILING          | fails
CLOSING LETTING_GO | JournalFailed | FAILING    | FencedWriteRefused fails
LEAVING                            | lost                  | =                |
LEAVING                            | JournalFailed         | =                |
LEAVING                            | PartDied              | FAILING          | fails
ENDED                              | lost                  | =                |
ENDED                              | JournalFailed         | =                |
ENDED                              | PartDied              | FAILED           | EndInTime
FAILING FAILED                     | lost PartDied         | =                |
FAILING FAILED                     | JournalFailed         | =                | FencedWriteRefused

NEW waiting                        | LoopWedged            | FAILING          | wedges
locked                             | LoopWedged            | FAILING          | wedges
CLOSING LETTING_GO                 | LoopWedged            | FAILING          | wedges
DRAINING RELEASING LEAVING         | LoopWedged            | =                | said
ENDED FAILING FAILED               | LoopWedged            | =                | said

NEW waiting locked DRAINING RELEASING | StopRequested         | =                | Interrupt
ending FAILING FAILED              | StopRequested         | =                | Interrupt
"""
"""Of a backup in its first life. What is not here cannot happen, but for work that ends late."""

Row = tuple[Stage, str, Stage, list[str]]


def rows() -> list[Row]:
    """Read the table."""
    found = []
    for line in TABLE.strip().splitlines():
        if line:
            stages, events, after, effects = (_words(cell) for cell in line.split("|"))
            for name in stages:
                stage = Stage[name]
                then = stage if after == ["="] else Stage[after[0]]
                found += [(stage, event, then, effects) for event in events]
    return found


def _words(cell: str) -> list[str]:
    return " ".join(WORDS.get(word, word) for word in cell.split()).split()


def names(effects: tuple[Effect, ...]) -> list[str]:
    """Return what effects are called; those that log, as their events."""
    return [
        type(effect.event).__name__ if isinstance(effect, Emit) else type(effect).__name__
        for effect in effects
    ]


def after(state: NodeState, *events: str | NodeEvent) -> tuple[NodeState, tuple[Effect, ...]]:
    """Return the state after events, and the effects of the last."""
    effects: tuple[Effect, ...] = ()
    for event in events:
        state, effects = step(state, EVENTS[event] if isinstance(event, str) else event)
    return state, effects


def at(stage: Stage, terms: Terms | None = None) -> NodeState:
    """Return a node at a stage, as it came there."""
    state = NodeState(terms or Terms(BACKUP))
    if stage in {Stage.CLOSING, Stage.LETTING_GO}:
        state, _ = after(state, *GOOD_WAY[:6], "WorkInterrupted")
        return state if stage is Stage.CLOSING else after(state, "Drained")[0]
    if stage is Stage.ASKING:
        return replace(at(Stage.SERVING, terms), stage=stage)
    if stage in {Stage.FAILING, Stage.FAILED}:
        state, _ = after(state, *GOOD_WAY[:8], "PartDied")
        return state if stage is Stage.FAILING else after(state, "ShutDownDone")[0]
    for event in GOOD_WAY:
        if state.stage is stage:
            break
        state, _ = after(state, event)
    assert state.stage is stage
    return state


@pytest.mark.parametrize(
    ("stage", "event", "then", "effects"),
    rows(),
    ids=lambda value: value.name if isinstance(value, Stage) else str(value),
)
def test_what_follows(stage: Stage, event: str, then: Stage, effects: list[str]) -> None:
    """Next stage and effects, in their order."""
    state, followed = after(at(stage), event)
    assert (state.stage, names(followed)) == (then, effects)


def test_nothing_else_can_happen() -> None:
    """But that work ends of which a node wants to hear no more: it has failed meanwhile."""
    told = {(stage, event) for stage, event, _, _ in rows()}
    assert len(told) == len(rows())
    for stage in Stage:
        for name, event in EVENTS.items():
            if (stage, name) in told:
                continue
            state = at(stage)
            if state.failure is not None and isinstance(event, WorkEvent):
                assert step(state, event) == (state, ())
                continue
            with pytest.raises(OutOfPlace, match=f"{stage.name} met {name}"):
                step(state, event)


@pytest.mark.parametrize(
    ("event", "phase"),
    list(
        zip(
            GOOD_WAY,
            [
                *[Phase.STARTING] * 3,
                *[Phase.BACKUP] * 4,
                Phase.LIVE,
                *[Phase.STOPPING] * 4,
            ],
            strict=True,
        )
    ),
)
def test_what_probes_see(event: str, phase: Phase) -> None:
    """A node is live from when all is written to when it begins to stop."""
    state, _ = after(NodeState(Terms(BACKUP)), *GOOD_WAY[: GOOD_WAY.index(event) + 1])
    assert state.phase is phase


def test_a_live_node_waits_as_one() -> None:
    """And looks for no failback."""
    state = at(Stage.WAITING, Terms())
    assert state.phase is Phase.WAITING_LIVE
    state, effects = after(state, "Activated", "Loaded", "Opened", "Completed")
    assert effects[-1] == Serve(watches_failback=False)


@pytest.mark.parametrize(("allows", "watches"), [(True, True), (False, False)])
def test_a_backup_looks_for_failback_if_it_allows_it(allows: bool, watches: bool) -> None:
    """As ``allow-failback`` says."""
    state = at(Stage.COMPLETING, Terms(replace(BACKUP, allow_failback=allows)))
    assert after(state, "Completed")[1][-1] == Serve(watches)


@pytest.mark.parametrize(
    ("failover_on_shutdown", "handover"), [(True, Handover.CRASH), (False, Handover.PAUSE)]
)
def test_a_stop_hands_over_as_the_policy_says(
    failover_on_shutdown: bool, handover: Handover
) -> None:
    """``failover-on-shutdown`` has the backup take over."""
    terms = Terms(HaPolicy(failover_on_shutdown=failover_on_shutdown))
    assert after(at(Stage.DRAINING, terms), "Drained")[1] == (ReleaseLiveLock(handover),)


def test_a_node_that_never_served_gives_up_its_claim() -> None:
    """A backup would wait for it."""
    assert after(at(Stage.LOADING), "WorkRefused")[1][-1] == ReleaseLiveLock(Handover.GIVE_UP)
    assert after(at(Stage.PREPARING), "WorkRefused")[1][-1] == ReleaseLiveLock(Handover.CRASH)


def test_a_backup_that_handed_back_is_a_backup_again() -> None:
    """It leaves the state: the live node takes the lock at once."""
    state, _ = after(at(Stage.SERVING), "FailbackAsked")
    state, released = after(state, "Drained")
    assert released == (ReleaseLiveLock(Handover.CRASH),)
    state, effects = after(state, "Released")
    assert (state.stage, state.phase) == (Stage.WAITING, Phase.BACKUP)
    assert names(effects) == ["Show", "AwaitLiveLock"]
    assert (state.term, state.served_as, state.journal_is_open) == (None, None, False)
    assert state.failbacks.handed_back_seconds == 300.0


@pytest.mark.parametrize("role", Role)
def test_a_node_that_hands_over_is_a_backup_afterwards(role: Role) -> None:
    """Also one that was configured as the live one: it would ask for its place back at once."""
    terms = Terms(HaPolicy(role=role, failover_on_shutdown=False))
    state, _ = after(at(Stage.SERVING, terms), HandoverAsked(200.0))
    state, released = after(state, "Drained")
    assert released == (ReleaseLiveLock(Handover.CRASH),)
    state, effects = after(state, "Released")
    assert (state.stage, state.phase) == (Stage.WAITING, Phase.BACKUP)
    assert AwaitLiveLock(Role.BACKUP) in effects


def test_a_backup_that_is_not_to_restart_ends_when_it_handed_back() -> None:
    """As ``restart-backup`` says."""
    state = at(Stage.SERVING, Terms(replace(BACKUP, restart_backup=False)))
    state, effects = after(state, "FailbackAsked", "Drained", "Released", "BackupStopped")
    assert effects[0] == Emit(NodeStopped(ExitCode.OK, "stopped while waiting"))


def test_who_is_put_off_has_to_ask_again() -> None:
    """Said once; when the time has come, whoever asks is asked whether it is still there."""
    failbacks = Failbacks(short_terms=2, lasted_seconds=9.0, not_before_seconds=260.0)
    state = replace(at(Stage.SERVING), failbacks=failbacks)
    state, effects = after(state, "FailbackAsked")
    assert effects == (Emit(FailbackPutOff(60_000.0, 2, 9_000.0)), Serve(watches_failback=True))
    state, effects = after(state, "FailbackAsked")
    assert effects == (Serve(watches_failback=True),)
    state, effects = after(state, FailbackAsked(261.0))
    assert names(effects) == ["AskWhoWaits"]
    state, effects = after(state, WhoWaitsAsked(is_written=False), FailbackAsked(262.0))
    assert names(effects) == ["AskWhoWaits"], "the store did not hear of it"
    state, _ = after(state, WhoWaitsAsked(is_written=True), FailbackAsked(263.0))
    assert state.stage is Stage.DRAINING


def test_a_stop_is_heeded_once() -> None:
    """Whoever asks twice gets no second interruption."""
    state, effects = after(at(Stage.SERVING), "StopRequested")
    assert effects == (Interrupt(),)
    assert after(state, "StopRequested") == (state, ())


def test_a_fenced_write_is_told_under_its_token() -> None:
    """Before the critical error."""
    _, effects = after(at(Stage.SERVING), "JournalFailed")
    assert effects[0] == Emit(FencedWriteRefused(7, "refused"))
    state, effects = after(at(Stage.SERVING), JournalFailed("the disk is full", was_fenced=False))
    assert names(effects) == ["EndInTime", "ShutDown"]
    assert state.exit_reason == "journal: the disk is full"


@pytest.mark.parametrize(
    ("policy", "effects"),
    [
        (CriticalAnalyzerPolicy.SHUTDOWN, "EndInTime ShowLoop LoopUnanswered ShutDown"),
        (CriticalAnalyzerPolicy.HALT, "ShowLoop LoopUnanswered Halt"),
        (CriticalAnalyzerPolicy.LOG, "ShowLoop LoopUnanswered"),
    ],
)
def test_a_wedged_loop_is_what_the_policy_makes_of_it(
    policy: CriticalAnalyzerPolicy, effects: str
) -> None:
    """``critical-analyzer-policy``; the line names it. Nothing comes before what ends the node."""
    terms = Terms(analyzer_policy=policy, analyzer_timeout_ms=10_000)
    state, followed = after(at(Stage.SERVING, terms), "LoopWedged")
    assert names(followed) == effects.split()
    assert ShowLoop("where it is") in followed
    assert Emit(LoopUnanswered(12_000.0, 10_000, policy.value)) in followed
    if policy is CriticalAnalyzerPolicy.SHUTDOWN:
        assert state.failure == "the event loop has not answered for 12.0 s"


def test_a_node_that_serves_does_not_fail_to_start() -> None:
    """A row of its store that somebody deletes is a critical error of a node that serves."""
    state, effects = after(at(Stage.SERVING), "WorkRefused")
    assert (state.failure, state.exit_code) == ("it is wrong", ExitCode.IO_ERROR)
    assert "StartFailed" not in names(effects)


def test_what_keeps_a_node_from_starting_is_said_and_is_its_exit_code() -> None:
    """Then whatever it has is given back."""
    state, effects = after(at(Stage.OPENING), "WorkRefused")
    assert effects[0] == Emit(StartFailed("it is wrong"))
    _, effects = after(state, "Drained", "Released", "BackupStopped")
    assert effects[0] == Emit(NodeStopped(ExitCode.CONFIGURATION, "it is wrong"))


FORMER = FormerLife("b@host", 7, 50.0)


def test_a_life_that_resumes_tries_no_port_and_keeps_what_it_was() -> None:
    """Should it fail to open, the next life resumes all the same."""
    terms = Terms(BACKUP, Life(former=FORMER), after_io_error=IoErrorPolicy.STOP_CONNECTORS)
    state, effects = after(NodeState(terms), "Begun", "Paused")
    assert effects[0] == Show(Phase.CONNECTORS_STOPPED)
    state, effects = after(state, "Prepared")
    assert effects == (ResumeLiveLock(FORMER),)
    state, _ = after(state, Activated("b@host", 8))
    state, effects = after(state, "Loaded", "WorkInterrupted")
    assert effects[0] == Emit(ServiceClosing(8))
    life = state.next_life(60.0)
    assert life is not None
    assert life.former == FormerLife("b@host", 8, 60.0)


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (IoErrorPolicy.SHUTDOWN, NodeStopped(ExitCode.IO_ERROR, "expired")),
        (IoErrorPolicy.RESTART_AS_BACKUP, RestartsAsBackup()),
        (IoErrorPolicy.STOP_CONNECTORS, ConnectorsStopped(7, 500)),
    ],
)
def test_what_follows_an_io_error_is_said(
    policy: IoErrorPolicy, said: NodeStopped | RestartsAsBackup | ConnectorsStopped
) -> None:
    """Either the process stops, or what its next life is."""
    terms = Terms(after_io_error=policy, resume_check_ms=500)
    _, effects = after(at(Stage.SERVING, terms), "LockWasLost", "ShutDownDone")
    assert effects[0] == Emit(said)
    stopped, effects = after(
        at(Stage.SERVING, terms), "LockWasLost", "StopRequested", "ShutDownDone"
    )
    assert effects[0] == Emit(NodeStopped(ExitCode.IO_ERROR, "expired"))
    assert stopped.next_life(0.0) is None


def test_the_committed_diagram_is_the_generated_one() -> None:
    """docs/node-states.md is what python -m tools.documents.node_states writes."""
    assert (Path(__file__).parents[2] / "docs" / "node-states.md").read_text() == reference()
