"""No order of events leads a node to what must not be: ``step`` against what its effects mean."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from orthia.broker.node import effects
from orthia.broker.node.effects import Effect, Work
from orthia.broker.node.events import (
    BackupStopped,
    Begun,
    Completed,
    Drained,
    FailbackAsked,
    Loaded,
    NodeEvent,
    PartDied,
    Released,
    ServedEnough,
    ShutDownDone,
    WorkEvent,
)
from orthia.broker.node.exit_codes import ExitCode
from orthia.broker.node.restarts import Life
from orthia.broker.node.state import NodeState, Phase, Terms
from orthia.broker.node.step import LAST_STAGES, OutOfPlace, step
from orthia.config.settings import CriticalAnalyzerPolicy, HaPolicy, IoErrorPolicy, Role
from orthia.nodemanager.abc import FormerLife
from orthia.nodemanager.events import NodeStopped
from tests.node.test_step import BACKUP, EVENTS

GOOD_ENDS: dict[type[Work], list[str]] = {
    effects.Pause: ["Paused"],
    effects.PrepareStore: ["Prepared"],
    effects.TryAcceptors: ["AcceptorsTried"],
    effects.AwaitLiveLock: ["Activated"],
    effects.ResumeLiveLock: ["Activated"],
    effects.LoadJournal: ["Loaded"],
    effects.OpenService: ["Opened"],
    effects.CompleteActivation: ["Completed"],
    effects.Serve: ["ServedEnough", "FailbackAsked", "HandoverAsked"],
    effects.AskWhoWaits: ["WhoWaitsAsked"],
    effects.CloseService: ["Drained"],
    effects.ReleaseLiveLock: ["Released"],
    effects.StopBackup: ["BackupStopped"],
}
BAD_ENDS = ["WorkInterrupted", "StoreGone", "WorkRefused", "WorkBroke"]
FROM_OTHERS = [
    *("StopRequested", "LockWasLost", "JournalFailed", "CompletionFailed", "LoopWedged"),
    "PartDied",
]
ONCE = (effects.ShutDown, effects.EndInTime, effects.Finish, effects.StopManager)
TERMS = st.builds(
    Terms,
    st.builds(
        HaPolicy,
        role=st.sampled_from(Role),
        allow_failback=st.booleans(),
        restart_backup=st.booleans(),
        failover_on_shutdown=st.booleans(),
    ),
    life=st.sampled_from([Life(), Life(former=FormerLife("b@host", 6, 1.0))]),
    after_io_error=st.sampled_from(IoErrorPolicy),
    analyzer_policy=st.sampled_from([CriticalAnalyzerPolicy.SHUTDOWN, CriticalAnalyzerPolicy.LOG]),
)


@dataclass
class Watched:
    """A node as its effects show it, told by what was done of them and not by its state."""

    state: NodeState
    work: Work | None = None
    has_lock: bool = False
    journal_is_open: bool = False
    is_closed: bool = False
    is_released: bool = False
    shows: Phase = Phase.STARTING
    done: list[Effect] = field(default_factory=list)

    @property
    def has_failed(self) -> bool:
        """Whether the IO-error shutdown was ordered."""
        return any(isinstance(one, effects.EndInTime) for one in self.done)

    def take(self, event: NodeEvent) -> None:
        """Have it happen, and judge what follows."""
        if isinstance(event, WorkEvent):
            self._has_ended(event)
        had_failed = self.has_failed
        self.state, followed = step(self.state, event)
        for effect in followed:
            if isinstance(effect, Work):
                assert not had_failed, f"{effect} of a node that failed"
                assert isinstance(event, WorkEvent), f"{effect} by another thread"
                assert self.work is None, f"{effect} beside {self.work}"
                self._may_begin(effect)
                self.work = effect
            elif isinstance(effect, effects.Show):
                assert not had_failed, "shown after it was lost"
                self._may_show(effect.phase)
                self.shows = effect.phase
            elif isinstance(effect, (*ONCE, effects.CloseStore, effects.Interrupt)):
                assert not any(isinstance(one, type(effect)) for one in self.done), effect
            if isinstance(effect, effects.Emit) and isinstance(effect.event, NodeStopped):
                assert not any(isinstance(one, effects.StopManager) for one in self.done)
            self.done.append(effect)
        if self.has_failed:
            assert self.state.phase is Phase.FAILED
            assert self.state.exit_code == ExitCode.IO_ERROR

    def _has_ended(self, event: WorkEvent) -> None:
        self.work = None
        if event == EVENTS["Activated"]:
            self.has_lock, self.is_released = True, False
        elif isinstance(event, Loaded):
            self.journal_is_open, self.is_closed = True, False
        elif isinstance(event, Drained):
            self.journal_is_open, self.is_closed = False, True
        elif isinstance(event, Released):
            self.has_lock, self.is_released = False, True

    def _may_begin(self, work: Work) -> None:
        match work:
            case effects.AwaitLiveLock() | effects.ResumeLiveLock():
                assert not self.has_lock, "two lives at once"
                assert not self.journal_is_open, "two lives at once"
                # Whoever is interrupted as it waits gives back what it may have got meanwhile.
                self.is_released = False
            case effects.LoadJournal():
                assert self.has_lock
                assert not self.journal_is_open
            case effects.OpenService() | effects.CompleteActivation() | effects.Serve():
                assert self.has_lock
                assert self.journal_is_open
            case effects.CloseService():
                assert not self.is_closed, "closed twice"
            case effects.ReleaseLiveLock():
                assert not self.journal_is_open, "released before it was drained"
                assert not self.is_released, "released twice"
            case effects.StopBackup():
                assert not self.has_lock
            case _:
                pass

    def _may_show(self, phase: Phase) -> None:
        if phase is Phase.LIVE:
            assert self.has_lock
            assert self.journal_is_open


@settings(max_examples=1_000, deadline=None)
@given(TERMS, st.data())
def test_no_order_of_events_leads_to_what_must_not_be(terms: Terms, data: st.DataObject) -> None:
    """Work ends well or not, and whatever else happens comes at any time, or again and again."""
    watched = Watched(NodeState(terms))
    watched.take(Begun())
    for _ in range(40):
        choices = list(FROM_OTHERS)
        work, ends_in_time = watched.work, watched.state.stage not in LAST_STAGES
        if work is not None:
            choices += GOOD_ENDS[type(work)] * 8
            if ends_in_time:  # else the thread dies of its error, and says so
                choices += BAD_ENDS
            if work == effects.Serve(watches_failback=False):
                choices = [one for one in choices if one != "FailbackAsked"]
        shutting_down = any(isinstance(one, effects.ShutDown) for one in watched.done)
        if shutting_down and not any(isinstance(one, effects.Finish) for one in watched.done):
            choices += ["ShutDownDone"] * 4
        watched.take(EVENTS[data.draw(st.sampled_from(choices))])


@settings(max_examples=300, deadline=None)
@given(TERMS, st.lists(st.sampled_from(list(EVENTS)), max_size=30))
def test_what_is_out_of_place_changes_nothing(terms: Terms, order: list[str]) -> None:
    """Whatever comes in whatever order: a mistake is an error, and never half a step."""
    state = NodeState(terms)
    for name in order:
        before = state
        try:
            state, _ = step(state, EVENTS[name])
        except OutOfPlace:
            assert state is before
        if before.failure is not None:
            assert (state.failure, state.phase) == (before.failure, Phase.FAILED)


@given(TERMS, st.sampled_from([Released(1.0), Drained(), BackupStopped()]))
def test_an_error_at_the_very_end_is_the_end(terms: Terms, end: WorkEvent) -> None:
    """The activation thread dies of it; the node shuts down as after an IO error, once."""
    state = NodeState(terms)
    for name in ("Begun", "Paused", "WorkInterrupted"):
        state, _ = step(state, EVENTS[name])
    state, followed = step(state, PartDied("orthia-activation died"))
    assert [type(one).__name__ for one in followed] == ["EndInTime", "ShutDown"]
    assert step(state, end) == (state, ())
    assert step(state, PartDied("again")) == (state, ())
    assert isinstance(step(state, ShutDownDone())[1][-1], effects.Finish)


def test_a_node_comes_through_a_failback_and_a_stop() -> None:
    """What the orders above are made of does lead somewhere."""
    watched = Watched(NodeState(Terms(BACKUP)))
    way = ["Begun", "Paused", "Prepared", "AcceptorsTried"]
    serving = ["Activated", "Loaded", "Opened"]
    for name in [*way, *serving]:
        watched.take(EVENTS[name])
    watched.take(Completed(1.0))
    watched.take(FailbackAsked(2.0))
    for name in ("Drained", "Released", *serving):
        watched.take(EVENTS[name])
    watched.take(Completed(500.0))
    assert watched.shows is Phase.LIVE
    for event in (ServedEnough(), Drained(), Released(501.0), BackupStopped()):
        watched.take(event)
    assert isinstance(watched.done[-1], effects.Finish)
