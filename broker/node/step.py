"""A node as a state machine: ``step`` returns what follows from an event, without side effects.

A life in good order, each stage with the work it is at:

    PAUSING - PREPARING - TRYING_ACCEPTORS - WAITING - LOADING - OPENING - COMPLETING - SERVING
      - DRAINING - RELEASING - LEAVING - ENDED

From RELEASING a backup that hands back goes to WAITING again. A life that resumes the one before
leaves TRYING_ACCEPTORS out. Work that ends in an error before LEAVING leads to CLOSING, if the
journal is open, LETTING_GO and LEAVING; or, if it is an IO error, to FAILING.

Failures come at any time and from any thread. They lead to FAILING, from which nothing leads back:
work that ends then is of no consequence. While a node drains or releases, a lost lock or a journal
that fails is no failure: there is nothing left to protect, and the lock goes anyway.

A pair of stage and event that is in no table cannot happen: ``OutOfPlace``.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from orthia.broker.node.effects import (
    AskWhoWaits,
    AwaitLiveLock,
    CloseService,
    CloseStore,
    CompleteActivation,
    Effect,
    Emit,
    EndInTime,
    Finish,
    Halt,
    Handover,
    Interrupt,
    LoadJournal,
    OpenService,
    Pause,
    PrepareStore,
    ReleaseLiveLock,
    ResumeLiveLock,
    Serve,
    Show,
    ShowLoop,
    ShowTakeover,
    ShutDown,
    StopBackup,
    StopManager,
    TryAcceptors,
    Wake,
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
from orthia.broker.node.state import ON_THE_WAY, NodeState, Phase, Stage, Term
from orthia.config.errors import OrthiaError
from orthia.config.settings import CriticalAnalyzerPolicy, Role
from orthia.nodemanager.events import (
    ConnectorsStopped,
    FailbackPutOff,
    FailbackRequested,
    FencedWriteRefused,
    LoopUnanswered,
    NodeStopped,
    RestartsAsBackup,
    ServiceClosing,
    StartFailed,
)

Outcome = tuple[NodeState, tuple[Effect, ...]]
_Rule = Callable[[NodeState, Any], Outcome]

LAST_STAGES: Final = frozenset({Stage.CLOSING, Stage.LETTING_GO, Stage.LEAVING, Stage.ENDED})
"""The stages in which the node ends: only the end of its thread tells of an error there."""


class OutOfPlace(OrthiaError):  # noqa: N818 - named for what is the case
    """An event came in a stage in which it cannot happen: a mistake in this program."""

    def __init__(self, stage: Stage, event: NodeEvent) -> None:
        super().__init__(f"a node that is {stage.name} met {event}; please report this")


def step(state: NodeState, event: NodeEvent) -> Outcome:
    """Return the state after ``event`` and the effects to carry out; raises OutOfPlace."""
    kind = type(event)
    rule = _AT_ANY_TIME.get(kind) or _AT_STAGE[state.stage].get(kind)
    if rule is None:
        if state.failure is not None and isinstance(event, WorkEvent):
            return state, ()
        raise OutOfPlace(state.stage, event)
    return rule(state, event)


# --- the way to serving


def _begin(state: NodeState, _: Begun) -> Outcome:
    return state.at(Stage.PAUSING), (Pause(state.terms.life.pause_seconds),)


def _prepare(state: NodeState, _: Paused) -> Outcome:
    if state.terms.life.former is None:
        return state.at(Stage.PREPARING), (PrepareStore(),)
    phase = Phase.CONNECTORS_STOPPED
    return state.at(Stage.PREPARING, phase), (Show(phase), PrepareStore())


def _prepared(state: NodeState, _: Prepared) -> Outcome:
    former = state.terms.life.former
    if former is None:
        return state.at(Stage.TRYING_ACCEPTORS), (TryAcceptors(),)
    return state.at(Stage.WAITING), (ResumeLiveLock(former),)


def _await_live_lock(state: NodeState, _: AcceptorsTried | Released) -> Outcome:
    role = state.terms.ha.role
    phase = Phase.WAITING_LIVE if role is Role.LIVE else Phase.BACKUP
    return state.at(Stage.WAITING, phase), (Show(phase), AwaitLiveLock(role))


def _load(state: NodeState, event: Activated) -> Outcome:
    term = Term(event.holder_id, event.token)
    # Should a life that resumes fail to open, it is still a node that served.
    served_as = term if state.resumes else state.served_as
    state = replace(state, stage=Stage.LOADING, term=term, served_as=served_as)
    return state, (LoadJournal(),)


def _open(state: NodeState, _: Loaded) -> Outcome:
    return replace(state, stage=Stage.OPENING, journal_is_open=True), (OpenService(),)


def _complete(state: NodeState, _: Opened) -> Outcome:
    state = replace(state, stage=Stage.COMPLETING, served_as=state.term)
    return state, (CompleteActivation(state.terms.ha.role),)


def _completed(state: NodeState, event: Completed) -> Outcome:
    failbacks = state.failbacks.serves_again(event.now_seconds)
    shown = (ShowTakeover(state.term.token),) if state.term is not None else ()
    state, serve = _serve(replace(state, phase=Phase.LIVE, failbacks=failbacks))
    return state, (Show(Phase.LIVE), *shown, *serve)


def _serve(state: NodeState) -> Outcome:
    ha = state.terms.ha
    watches_failback = ha.role is Role.BACKUP and ha.allow_failback
    return state.at(Stage.SERVING), (Serve(watches_failback),)


# --- failback


def _failback_asked(state: NodeState, event: FailbackAsked) -> Outcome:
    failbacks, now = state.failbacks, event.now_seconds
    if not failbacks.may_hand_back(now):
        if failbacks.was_put_off:
            return _serve(state)
        wait_ms = (failbacks.not_before_seconds - now) * 1000
        put_off = FailbackPutOff(wait_ms, failbacks.short_terms, failbacks.lasted_seconds * 1000)
        state, serve = _serve(replace(state, failbacks=failbacks.put_off()))
        return state, (Emit(put_off), *serve)
    if failbacks.was_put_off:
        # It asked long ago and may be gone by now: then nobody would serve after a handing back.
        return state.at(Stage.ASKING), (AskWhoWaits(),)
    state, drain = _drain(state, hands_back=True)
    return state, (Emit(FailbackRequested()), *drain)


def _handover_asked(state: NodeState, _: HandoverAsked) -> Outcome:
    """Hand over as in a failback, and wait as a backup from then on: else it would ask back."""
    terms = replace(state.terms, ha=replace(state.terms.ha, role=Role.BACKUP))
    return _drain(replace(state, terms=terms), hands_back=True)


def _who_waits_asked(state: NodeState, event: WhoWaitsAsked) -> Outcome:
    if event.is_written:
        state = replace(state, failbacks=state.failbacks.asked_again())
    return _serve(state)


# --- the orderly end


def _stop(state: NodeState, _: ServedEnough) -> Outcome:
    return _drain(state, hands_back=False)


def _drain(state: NodeState, *, hands_back: bool) -> Outcome:
    state = replace(state, stage=Stage.DRAINING, phase=Phase.STOPPING, hands_back=hands_back)
    return state, (Show(Phase.STOPPING), *_close(state))


def _close(state: NodeState) -> tuple[Effect, ...]:
    served = state.served_as
    said = (Emit(ServiceClosing(served.token)),) if served is not None else ()
    return (*said, CloseService())


def _release(state: NodeState, _: Drained) -> Outcome:
    leaves_state = state.hands_back or state.terms.ha.failover_on_shutdown
    state = replace(state, stage=Stage.RELEASING, journal_is_open=False)
    return state, (ReleaseLiveLock(Handover.CRASH if leaves_state else Handover.PAUSE),)


def _released(state: NodeState, event: Released) -> Outcome:
    state = replace(state, term=None)
    if not state.hands_back:
        return _leave(state, event)
    state = replace(state, failbacks=state.failbacks.handed_back(event.now_seconds))
    if state.terms.ha.restart_backup:
        return _await_live_lock(replace(state, served_as=None, hands_back=False), event)
    return _leave(replace(state, exit_reason=_NOT_WAITING), event)


_NOT_WAITING: Final = "stopped while waiting"


def _interrupted(state: NodeState, _: WorkInterrupted) -> Outcome:
    return _wind_up(replace(state, exit_code=ExitCode.OK, exit_reason=_NOT_WAITING))


def _broke(state: NodeState, event: WorkRefused | WorkBroke) -> Outcome:
    state, effects = _wind_up(replace(state, exit_code=event.exit_code, exit_reason=event.reason))
    return state, (Emit(StartFailed(event.reason)), *effects)


def _refused(state: NodeState, event: WorkRefused) -> Outcome:
    if state.phase is Phase.LIVE:
        return _fail(state, event.reason)  # such as a deleted row of its store
    return _broke(state, event)


def _store_gone(state: NodeState, event: StoreGone) -> Outcome:
    if state.phase is Phase.STOPPING:
        return _wind_up(state)
    return _fail(state, event.reason)


def _wind_up(state: NodeState) -> Outcome:
    """Close what is open and release the locks."""
    if state.journal_is_open:
        return state.at(Stage.CLOSING), _close(state)
    return _let_go(state)


def _let_go(state: NodeState, _: Drained | None = None) -> Outcome:
    handover = Handover.GIVE_UP if state.phase in ON_THE_WAY else Handover.CRASH
    state = replace(state, stage=Stage.LETTING_GO, journal_is_open=False)
    return state, (ReleaseLiveLock(handover),)


def _leave(state: NodeState, _: Released) -> Outcome:
    return replace(state, stage=Stage.LEAVING, term=None), (StopBackup(),)


def _end(state: NodeState, _: BackupStopped) -> Outcome:
    stopped = NodeStopped(state.exit_code, state.exit_reason)
    return state.at(Stage.ENDED), (Emit(stopped), StopManager(), CloseStore(), Finish())


# --- what comes at any time


def _stop_requested(state: NodeState, _: StopRequested) -> Outcome:
    if state.stop_requested:
        return state, ()
    return replace(state, stop_requested=True), (Interrupt(),)


def _died(state: NodeState, event: PartDied) -> Outcome:
    return _fail(state, event.reason)


def _failed(state: NodeState, event: LockWasLost | CompletionFailed) -> Outcome:
    return _fail_unless_stopping(state, event.reason)


def _journal_failed(state: NodeState, event: JournalFailed) -> Outcome:
    token = state.term.token if state.term is not None and event.was_fenced else None
    state, effects = _fail_unless_stopping(state, f"journal: {event.reason}")
    if token is None:
        return state, effects
    return state, (Emit(FencedWriteRefused(token, event.reason)), *effects)


def _loop_wedged(state: NodeState, event: LoopWedged) -> Outcome:
    terms, seconds = state.terms, event.unanswered_seconds
    policy = terms.analyzer_policy
    said = (
        ShowLoop(event.where),
        Emit(LoopUnanswered(seconds * 1000, terms.analyzer_timeout_ms, policy.value)),
    )
    if policy is CriticalAnalyzerPolicy.HALT:
        return state, (*said, Halt())
    effects: tuple[Effect, ...] = ()
    if policy is CriticalAnalyzerPolicy.SHUTDOWN:
        reason = f"the event loop has not answered for {seconds:.1f} s"
        state, effects = _fail_unless_stopping(state, reason)
    # The end in time goes first: what hangs the loop may hang whoever says so.
    return state, (*effects[:1], *said, *effects[1:])


def _fail_unless_stopping(state: NodeState, reason: str) -> Outcome:
    """Fail, unless the node is stopping: then there is nothing left to protect."""
    if state.phase is Phase.STOPPING or state.stage is Stage.ENDED:
        return state, ()
    return _fail(state, reason)


def _fail(state: NodeState, reason: str) -> Outcome:
    """Begin the IO-error shutdown, once, whatever the stage."""
    if state.failure is not None:
        return state, ()
    failed = replace(
        state,
        stage=Stage.FAILING,
        phase=Phase.FAILED,
        failure=reason,
        exit_code=ExitCode.IO_ERROR,
        exit_reason=reason,
    )
    if state.stage is Stage.ENDED:
        return failed.at(Stage.FAILED), (EndInTime(),)  # all else is done
    return failed, (EndInTime(), ShutDown(reason))


def _shut_down(state: NodeState, _: ShutDownDone) -> Outcome:
    life = state.next_life(0.0)  # when it begins does not decide which it is
    said: Effect
    if life is None:
        said = Emit(NodeStopped(state.exit_code, state.exit_reason))
    elif life.former is None:
        said = Emit(RestartsAsBackup())
    else:
        said = Emit(ConnectorsStopped(life.former.token, state.terms.resume_check_ms))
    return state.at(Stage.FAILED), (said, Wake(), StopManager(), Finish())


_WAYS_OUT: Final[Mapping[type[NodeEvent], _Rule]] = {
    WorkInterrupted: _interrupted,
    StoreGone: _store_gone,
    WorkRefused: _refused,
    WorkBroke: _broke,
}
_AT_STAGE: Final[Mapping[Stage, Mapping[type[NodeEvent], _Rule]]] = {
    Stage.NEW: {Begun: _begin},
    Stage.PAUSING: {Paused: _prepare, **_WAYS_OUT},
    Stage.PREPARING: {Prepared: _prepared, **_WAYS_OUT},
    Stage.TRYING_ACCEPTORS: {AcceptorsTried: _await_live_lock, **_WAYS_OUT},
    Stage.WAITING: {Activated: _load, **_WAYS_OUT},
    Stage.LOADING: {Loaded: _open, **_WAYS_OUT},
    Stage.OPENING: {Opened: _complete, **_WAYS_OUT},
    Stage.COMPLETING: {Completed: _completed, **_WAYS_OUT},
    Stage.SERVING: {
        FailbackAsked: _failback_asked,
        HandoverAsked: _handover_asked,
        ServedEnough: _stop,
        **_WAYS_OUT,
    },
    Stage.ASKING: {WhoWaitsAsked: _who_waits_asked, **_WAYS_OUT},
    Stage.DRAINING: {Drained: _release, **_WAYS_OUT},
    Stage.RELEASING: {Released: _released, **_WAYS_OUT},
    Stage.CLOSING: {Drained: _let_go},
    Stage.LETTING_GO: {Released: _leave},
    Stage.LEAVING: {BackupStopped: _end},
    Stage.ENDED: {},
    Stage.FAILING: {ShutDownDone: _shut_down},
    Stage.FAILED: {},
}
_AT_ANY_TIME: Final[Mapping[type[NodeEvent], _Rule]] = {
    StopRequested: _stop_requested,
    LockWasLost: _failed,
    JournalFailed: _journal_failed,
    CompletionFailed: _failed,
    LoopWedged: _loop_wedged,
    PartDied: _died,
}
