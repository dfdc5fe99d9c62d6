"""Holds a node's state: takes events on any thread, carries out effects on the right one.

| Thread | Carries out |
|---|---|
| activation | work, one after the other, and tells how each ended |
| IO error, asleep from the start | the IO-error shutdown: without memory no thread is to be had |
| end, asleep from the start | the process's end, if the IO-error shutdown does not come to it |
| whichever tells an event | all else that follows from it |

A node fails once: whoever then has no memory left to carry out what follows ends the process. What
wakes the two threads that are asleep, and what the last one does, takes no memory.
"""

import contextlib
import threading
from collections.abc import Callable
from typing import Final, Protocol

from orthia.broker.node.effects import Effect, EndInTime, ShutDown, Work
from orthia.broker.node.events import Begun, NodeEvent, ShutDownDone, WorkEvent
from orthia.broker.node.state import NodeState
from orthia.broker.node.step import LAST_STAGES, step

IO_ERROR_GRACE_SECONDS: Final = 3.0
"""How long an IO-error shutdown may take to log and close before the process ends regardless."""


class _Shell(Protocol):
    """The world of a node: what does what effects say."""

    def perform(self, work: Work) -> WorkEvent:
        """Do ``work``, however long that takes; raises what ``event_of`` translates."""

    def event_of(self, error: Exception) -> WorkEvent:
        """Return the event for work that raised ``error``; log unexpected errors."""

    def carry_out(self, effect: Effect) -> None:
        """Carry out an effect at once."""

    def shut_down(self, reason: str) -> None:
        """Cut off clients and journal, and log why, without touching the store."""

    def end_process(self) -> None:
        """End it, though threads may hang in a call to the store."""


class _Alarm:
    """Wakes one thread, once; as an event of ``threading``, but takes no memory."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def set_off(self) -> None:
        """Wake the thread; called once."""
        self._lock.release()

    def wait(self, seconds: float = -1) -> None:
        """Wait until it is set off, for so many seconds if that is not negative."""
        self._lock.acquire(True, seconds)  # noqa: FBT003 - names would take a dictionary


class Driver:
    """One node's state, and its threads."""

    def __init__(self, state: NodeState, shell: _Shell) -> None:
        """Begin with ``state``; no thread runs yet."""
        self._state = state
        self._shell = shell
        self._lock = threading.RLock()
        self._reason = ""
        self._failing = _Alarm()
        self._ending = _Alarm()
        self._grace = _Alarm()  # never set off: it is only waited for
        self._activation = self._thread("orthia-activation", self._activate)
        self._standing_by = [
            self._thread("orthia-io-error", self._shut_down),
            self._thread("orthia-end", self._end_in_time),
        ]

    @property
    def state(self) -> NodeState:
        """What the node is now; any thread."""
        return self._state

    def stand_by(self) -> None:
        """Start the threads that an IO-error shutdown needs."""
        for thread in self._standing_by:
            thread.start()

    def begin(self) -> None:
        """Run the node's life on its activation thread."""
        self._activation.start()

    def tell(self, event: NodeEvent) -> None:
        """Handle an event and carry out the effects; any thread. Raises OutOfPlace."""
        self._take(event)

    def _take(self, event: NodeEvent) -> Work | None:
        """Handle an event; return the work that follows, of an event that ends other work.

        With a MemoryError the process ends if the node has failed, since what follows from that
        may be left undone; else it is raised.
        """
        try:
            return self._carry_out(self._note(event))
        except MemoryError:
            if self._state.failure is not None:
                self._shell.end_process()
            raise

    def _note(self, event: NodeEvent) -> tuple[Effect, ...]:
        with self._lock:
            while True:
                before = self._state
                after, effects = step(before, event)
                # Where memory is short, the collector may have told an event in between, on this
                # very thread: an object that it removed had no memory to end in good order.
                if self._state is before:
                    self._state = after
                    break
        return effects

    def _carry_out(self, effects: tuple[Effect, ...]) -> Work | None:
        work = None
        for effect in effects:
            if isinstance(effect, Work):
                work = effect
            elif isinstance(effect, EndInTime):
                self._ending.set_off()
            elif isinstance(effect, ShutDown):
                self._reason = effect.reason
                self._failing.set_off()
            else:
                self._shell.carry_out(effect)
        return work

    def _thread(self, name: str, run: Callable[[], None]) -> threading.Thread:
        return threading.Thread(target=run, name=name, daemon=True)

    def _activate(self) -> None:
        work = self._take(Begun())
        while work is not None:
            work = self._take(self._done(work))

    def _done(self, work: Work) -> WorkEvent:
        try:
            return self._shell.perform(work)
        except Exception as error:
            if self._state.stage in LAST_STAGES:
                raise  # the end of this thread is the end of the node
            return self._shell.event_of(error)

    def _shut_down(self) -> None:
        self._failing.wait()
        self._shell.shut_down(self._reason)
        self.tell(ShutDownDone())

    def _end_in_time(self) -> None:
        with contextlib.suppress(MemoryError):
            self._ending.wait()
            self._grace.wait(IO_ERROR_GRACE_SECONDS)
        self._shell.end_process()
