"""A node whose event loop hangs: decided on what a thread sees, and with the loop blocked."""

import asyncio
import itertools
import linecache
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orthia.broker.node.critical_analyzer import CriticalAnalyzer, LoopJudge, Step
from orthia.config.settings import Role
from tests.process.clients import QUEUE, Producer, served_through_it
from tests.process.file_nodes import FileCluster, FileNodeProcess, file_cluster
from tests.process.locker_stores import HANDS_OVER

pytestmark = pytest.mark.extended

TIMEOUT_MS = 2_000
_BLOCKS = """
import pathlib, signal, sys, time

def block(number, frame):
    released = pathlib.Path(__file__).with_name("released")
    while not released.exists():
        time.sleep(0.01)

signal.signal(signal.SIGUSR1, block)
"""


def _judge() -> LoopJudge:
    return LoopJudge(timeout_seconds=10, check_period_seconds=2, look_seconds=0.5)


def test_a_loop_that_answers_is_asked_again_after_the_period() -> None:
    """One probe each period, and nothing else."""
    judge = _judge()
    steps = [judge.look(now / 2, answered=True) for now in range(10)]
    assert [index for index, step in enumerate(steps) if step is Step.PROBE] == [4, 8]
    assert set(steps) == {Step.PROBE, Step.WAIT}


def test_a_loop_that_does_not_answer_is_told_once() -> None:
    """After the time-out, counted from the probe; and again when it answers after all."""
    judge = _judge()
    steps = [judge.look(now / 2, answered=False) for now in range(100)]
    assert [index for index, step in enumerate(steps) if step is not Step.WAIT] == [4, 24]
    assert (steps[4], steps[24]) == (Step.PROBE, Step.WEDGED)
    assert judge.look(50, answered=True) is Step.RECOVERED
    assert judge.look(52, answered=True) is Step.WAIT


def test_a_loop_that_hangs_again_is_told_again() -> None:
    """Each time that it hangs, also after it had recovered once: a policy may only log it."""
    judge = _judge()
    looks = iter(range(1_000))
    for _ in range(2):
        hangs = [judge.look(next(looks) / 2, answered=False) for _ in range(40)]
        assert [step for step in hangs if step is not Step.WAIT] == [Step.PROBE, Step.WEDGED]
        assert judge.look(next(looks) / 2, answered=True) is Step.RECOVERED


def test_what_the_whole_process_loses_is_not_the_loops_fault() -> None:
    """A process that is stopped for an hour looks late, and the loop has had no time to answer."""
    judge = _judge()
    steps = [judge.look(now / 2, answered=False) for now in range(6)]
    assert steps[4] is Step.PROBE
    assert judge.look(3_600, answered=False) is Step.WAIT
    assert judge.look(7_200, answered=False) is Step.WAIT
    assert judge.unanswered_seconds <= 2.5


def test_a_loop_that_was_not_watched_for_a_while_is_asked_anew() -> None:
    """A probe from before a failback says nothing of the loop after it."""
    judge = _judge()
    for now in range(6):
        judge.look(now / 2, answered=False)
    judge.forget()
    assert [judge.look(100 + now / 2, answered=False) for now in range(5)][-1] is Step.PROBE
    assert judge.unanswered_seconds == 0


def test_a_wedged_loop_is_told_though_no_file_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may hang of a file system, which must not hang who watches it; where it is is told."""
    told: queue.SimpleQueue[str] = queue.SimpleQueue()
    answers = threading.Event()

    def hanging(name: str, read: Callable[..., Any]) -> Callable[..., Any]:
        def hang(*args: Any, **options: Any) -> Any:
            if threading.current_thread().name == "orthia-critical-analyzer":
                told.put(f"the analyzer hangs in {name}")
                answers.wait()
            return read(*args, **options)

        return hang

    for module, name in (
        *((os, "stat"), (os, "open"), (linecache, "checkcache")),
        *((linecache, "getlines"), (linecache, "updatecache")),
    ):
        monkeypatch.setattr(module, name, hanging(name, getattr(module, name)))
    loop = asyncio.new_event_loop()
    analyzer = CriticalAnalyzer(
        loop,
        timeout_ms=20,
        check_period_ms=1,
        is_serving=lambda: True,
        wedged=lambda _, where: told.put(where),
        clock=itertools.count().__next__,
    )
    analyzer.start()
    try:
        where = told.get(timeout=120)
    finally:
        answers.set()
        analyzer.stop()
        analyzer._thread.join()
        loop.close()
    name = test_a_wedged_loop_is_told_though_no_file_can_be_read.__name__
    assert f'  File "{__file__}", line ' in where
    assert f", in {name}" in where


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[FileCluster]:
    """Give a cluster of nodes whose loop a signal blocks until ``_release``."""
    (tmp_path / "blocks").mkdir()
    (tmp_path / "blocks" / "sitecustomize.py").write_text(_BLOCKS)
    core = (
        f"<critical-analyzer-timeout>{TIMEOUT_MS}</critical-analyzer-timeout>"
        "<critical-analyzer-check-period>200</critical-analyzer-check-period>"
    )
    with file_cluster(tmp_path, core) as made:
        yield made


def _node(nodes: FileCluster, role: Role = Role.LIVE, core: str = "") -> FileNodeProcess:
    node = nodes.node(role, role.value, policy=HANDS_OVER, core=core)
    node.environment = {"PYTHONPATH": os.pathsep.join([str(nodes.directory / "blocks"), *_PATH])}
    node.start()
    return node


def _wait_live(node: FileNodeProcess) -> None:
    """Wait until the node serves and knows it: only then the analyzer watches its loop."""
    node.wait_serving()
    node.wait_log("serving under token")


_PATH = [path for path in [os.environ.get("PYTHONPATH", "")] if path]


def _release(nodes: FileCluster) -> None:
    (nodes.directory / "blocks" / "released").touch()


def test_a_node_whose_loop_hangs_costs_its_lock(nodes: FileCluster) -> None:
    """It ends with 74 and says where the loop was; the backup serves what was receipted."""
    live = _node(nodes)
    _wait_live(live)
    backup = _node(nodes, Role.BACKUP)
    backup.wait_log("AMQ221031")
    with served_through_it(live, backup):
        live.signal(signal.SIGUSR1)
        assert live.exit_code() == 74
        backup.wait_serving()
    assert "ORT100025" in live.log
    assert "sitecustomize.py" in live.log


def test_a_policy_of_log_only_says_so(nodes: FileCluster) -> None:
    """The node serves on when its loop does, and says for how long it did not."""
    live = _node(nodes, core="<critical-analyzer-policy>LOG</critical-analyzer-policy>")
    _wait_live(live)
    live.signal(signal.SIGUSR1)
    live.wait_log("ORT100025")
    _release(nodes)
    live.wait_log("the event loop answers again, after ")
    with Producer([live.port], QUEUE) as producer:
        producer.wait_receipts(20)
    assert live.terminate() == 0


def test_a_policy_of_halt_begins_no_next_life(nodes: FileCluster) -> None:
    """It ends with 74 though the io-error-policy would have it begin anew."""
    core = (
        "<critical-analyzer-policy>HALT</critical-analyzer-policy>"
        '<io-error-policy xmlns="urn:orthia">restart-as-backup</io-error-policy>'
    )
    live = _node(nodes, core=core)
    _wait_live(live)
    live.signal(signal.SIGUSR1)
    assert live.exit_code() == 74
    assert "critical-analyzer-policy HALT" in live.log
    assert "sitecustomize.py" in live.log


def test_a_node_that_does_not_watch_its_loop_waits_for_it(nodes: FileCluster) -> None:
    """With critical-analyzer false a loop that hangs for longer than the time-out is let be."""
    live = _node(nodes, core="<critical-analyzer>false</critical-analyzer>")
    _wait_live(live)
    live.signal(signal.SIGUSR1)
    threading.Event().wait(2 * TIMEOUT_MS / 1000)
    _release(nodes)
    with Producer([live.port], QUEUE) as producer:
        producer.wait_receipts(20)
    assert live.terminate() == 0
