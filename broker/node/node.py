"""A node from its start to its exit code: one process, one event loop, one state machine.

``state.py`` says what a node is, ``step.py`` what follows from what happens to it, ``driver.py``
which thread does that, ``shell.py`` and ``service.py`` how. Here is the process around it.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
from typing import Final

import uvloop

from orthia.broker.connections.descriptors import raise_limit
from orthia.broker.core.errors import Refusal
from orthia.broker.management.attributes import ha_policy_of
from orthia.broker.management.http.node_server import NodeServer
from orthia.broker.management.metrics import NodeMetrics
from orthia.broker.management.queue_metrics import QueueNames
from orthia.broker.management.running_node import NodeStatus
from orthia.broker.node.configuration_watch import ConfigurationWatch
from orthia.broker.node.critical_analyzer import CriticalAnalyzer
from orthia.broker.node.driver import Driver
from orthia.broker.node.events import LoopWedged, PartDied, StopRequested
from orthia.broker.node.garbage import GarbageCollector
from orthia.broker.node.out_of_memory import OutOfMemory, UnraisableErrors, end_at_once
from orthia.broker.node.restarts import Life, begin
from orthia.broker.node.service import Service
from orthia.broker.node.shell import NodeShell
from orthia.broker.node.state import NodeState, Phase, Terms
from orthia.broker.node.turn_meter import LOOK_SECONDS, TurnMeter
from orthia.config.clock import monotonic_seconds
from orthia.config.configuration_file import ConfigurationFile
from orthia.config.settings import HealthSettings, Settings
from orthia.nodemanager.errors import NotHeld

LOGGER = logging.getLogger("orthia.broker")
_SWITCH_INTERVAL_SECONDS: Final = 0.0005
"""How soon the journal's writer gets the interpreter from a busy loop; CPython's default of 5 ms
would be a large part of a commit."""
_LONG_TURN: Final = "_ORTHIA_LONG_TURN_SECONDS"
"""Seconds of one turn of the loop above which the log says where it was: 1; tests set less."""


class BrokerNode:
    """One node of a pair; ``run`` blocks until it is over."""

    def __init__(
        self,
        settings: Settings,
        life: Life | None = None,
        file: ConfigurationFile | None = None,
    ) -> None:
        """Make the node of ``settings``, in its first life if not in ``life``.

        With the ``file`` that they were read from, the node follows its changes while it runs.
        """
        life = life or Life(began_seconds=monotonic_seconds())
        read = settings
        self._settings = settings = life.settings(settings)
        self._metrics = NodeMetrics(
            (phase.value for phase in Phase),
            (reason.value for reason in Refusal),
            _queue_names(settings),
        )
        self._out_of_memory = OutOfMemory(self._part_died)
        self._unraisable = UnraisableErrors(self._unraisable_error)
        self._service = Service(settings, self._metrics, self._part_died)
        self._watch: ConfigurationWatch | None = None
        if file is not None and settings.source is not None:
            self._watch = ConfigurationWatch(
                file,
                read,
                settings,
                apply=self._service.reconfigure,
                show=self._metrics.configuration_read,
            )
        self._finished: asyncio.Event | None = None
        self._shell = NodeShell(
            settings,
            life,
            self._metrics,
            tell=lambda event: self._driver.tell(event),
            service=self._service,
            out_of_memory=self._out_of_memory,
            finish=self._finish,
            end_process=self._end_process,
        )
        self._driver = Driver(NodeState(Terms.of(settings, life)), self._shell)
        self._metrics.role_is(self._phase.value)

    # --- what the process calls

    def run(self) -> int:
        """Run the node in the main thread and return its exit code."""
        sys.setswitchinterval(_SWITCH_INTERVAL_SECONDS)
        raise_limit(self._settings.stomp_limits.max_connections)
        for one in self._settings.not_applied:
            LOGGER.warning("THIS CHANGES WHAT HAPPENS TO YOUR MESSAGES: not applied: %s", one)
        for warning in self._settings.warnings:
            LOGGER.warning("%s", warning)
        self._driver.stand_by()
        self._unraisable.start()
        threading.excepthook = self._thread_died
        sys.excepthook = self._out_of_memory.hook_failed
        sys.unraisablehook = self._unraisable.hook
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._main())
        logging.shutdown()
        if self._driver.state.failure is not None:
            # Threads may hang in a database call for ever; nothing is left to be done for them.
            sys.stdout.flush()
            self._end_process()
        sys.unraisablehook = sys.__unraisablehook__
        self._unraisable.stop()
        return self._driver.state.exit_code

    def _end_process(self) -> None:
        """End after an IO error; or begin the next life, if the policy says so."""
        try:
            life = self._driver.state.next_life(monotonic_seconds())
            if life is not None:
                begin(life)
        finally:
            end_at_once()

    def request_stop(self) -> None:
        """Stop in good order; may be called on any thread."""
        self._driver.tell(StopRequested())

    async def _main(self) -> None:
        loop = asyncio.get_running_loop()
        self._service.runs_on(loop)
        loop.set_exception_handler(self._out_of_memory.loop_failed)
        self._finished = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.request_stop)
        seen = self._service.show_in(self._metrics, self._status)
        http = None
        if self._settings.health is not None:
            http = NodeServer(
                self._settings.health,
                seen,
                loop,
                self._out_of_memory.loop_failed,
                lambda: self._service.managed,
                self._settings.failover_log_directory,
                await asyncio.to_thread(self._service.secure_http),
                ha_policy_of(self._settings),
            )
            http.start()
            self._service.publishes(http.published_url)
            LOGGER.info("the console is at %s", http.console_url)
        self._driver.begin()
        if self._watch is not None:
            self._watch.start()
        long_seconds = float(os.environ.get(_LONG_TURN, "1"))
        meter = TurnMeter(
            loop,
            long_seconds=long_seconds,
            look_seconds=min(LOOK_SECONDS, long_seconds / 10),
            measured=self._metrics.loop_turned,
            too_long=_say_long_turn,
        )
        meter.start()
        garbage = GarbageCollector(loop.call_later, lambda: self._service.connections)
        garbage.start()
        analyzer = self._analyzer(loop) if self._settings.critical_analyzer else None
        if analyzer is not None:
            analyzer.start()
        await self._finished.wait()
        if self._watch is not None:
            self._watch.stop()
        if analyzer is not None:
            analyzer.stop()
        meter.stop()
        garbage.stop()
        if http is not None:
            http.close()

    def _analyzer(self, loop: asyncio.AbstractEventLoop) -> CriticalAnalyzer:
        return CriticalAnalyzer(
            loop,
            timeout_ms=self._settings.critical_analyzer_timeout,
            check_period_ms=self._settings.critical_analyzer_check_period,
            # Before and after it serves, the activation thread has its own bound for what it asks.
            is_serving=lambda: self._phase is Phase.LIVE,
            wedged=lambda seconds, where: self._driver.tell(LoopWedged(seconds, where)),
        )

    def _finish(self) -> None:
        """Let the main thread continue."""
        if self._finished is not None:
            self._service.post(self._finished.set)

    # --- what is seen of it

    @property
    def _phase(self) -> Phase:
        return self._driver.state.phase

    def _status(self) -> NodeStatus:
        """Return what the node is at the moment; any thread."""
        state, manager = self._driver.state, self._shell.manager
        is_live, token = state.phase is Phase.LIVE, None
        if manager is not None and is_live:
            # Its lock can be lost at any moment, which its phase follows.
            with contextlib.suppress(NotHeld):
                token = manager.fencing_token
        return NodeStatus(
            name=self._settings.name,
            phase=state.phase.value,
            is_live=is_live,
            is_failed=state.phase is Phase.FAILED,
            failure=state.failure,
            holder_id=manager.holder_id if manager else None,
            token=token,
            is_lease_valid=manager is not None and manager.is_lease_valid(),
            lease_seconds_remaining=manager.lease_seconds_remaining() if manager else None,
        )

    # --- what is gone without which no node is a node

    def _part_died(self, reason: str) -> None:
        self._driver.tell(PartDied(reason))

    def _thread_died(self, what: threading.ExceptHookArgs) -> None:
        """End the node with any of its threads: none of them is one that it can do without."""
        try:
            if issubclass(what.exc_type, MemoryError):
                self._out_of_memory.make_room()
            name = what.thread.name if what.thread is not None else "a thread"
            self._part_died(f"{name} died: {what.exc_type.__name__}: {what.exc_value}")
            # Not by the hook of Python, which waits for whoever reads standard error.
            error = what.exc_value or what.exc_type()
            LOGGER.critical("%s died", name, exc_info=(what.exc_type, error, what.exc_traceback))
        except MemoryError:
            self._out_of_memory.met()

    def _unraisable_error(self, what: "sys.UnraisableHookArgs") -> None:
        """Log an error nobody could catch; end the node if it is one of memory.

        Or if a thread has died before its first line, for want of memory. Whoever started that
        thread waits for it for ever: this is all that is ever heard of it.
        """
        try:
            if "in thread started by" in (what.err_msg or ""):
                self._part_died(f"a thread could not begin: {what.exc_type.__name__}")
                return
            if issubclass(what.exc_type, MemoryError):
                self._out_of_memory.met()
            error = what.exc_value or what.exc_type()
            LOGGER.error(
                "%s: %r",
                what.err_msg or "unraisable exception in",
                what.object,
                exc_info=(what.exc_type, error, what.exc_traceback),
            )
        except MemoryError:
            self._out_of_memory.met()


def _say_long_turn(seconds: float, where: str) -> None:
    LOGGER.warning(
        "the event loop computed for %.3f s in one turn, and all clients waited; it was at\n%s",
        seconds,
        where,
    )


def _queue_names(settings: Settings) -> QueueNames:
    """Return under which names the metrics show queues."""
    health = settings.health or HealthSettings()
    return QueueNames(health.queue_metrics, settings.name if health.artemis_metrics else None)
