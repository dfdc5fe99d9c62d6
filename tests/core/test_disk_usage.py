"""How full a disk may be: the rule, and the watch that asks it again and again."""

import logging
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from orthia.broker.node.disk_usage import Disk, DiskLimits, DiskWatch
from tests.core.test_server import PATIENCE
from tests.support.waiting import wait_until

HERE = Path("/store")


def disk(used: int, total: int = 1_000) -> Disk:
    """Return a disk of which so many bytes are used."""
    return Disk(HERE, total, total - used)


@pytest.mark.parametrize(
    ("limits", "used", "left"),
    [
        (DiskLimits(90, -1), 0, 900),
        (DiskLimits(90, -1), 900, 0),
        (DiskLimits(90, -1), 901, -1),
        (DiskLimits(-1, 50), 950, 0),
        (DiskLimits(-1, 50), 951, -1),
        (DiskLimits(90, 200), 850, -50),
        (DiskLimits(-1, -1), 1_000, 0),
        (DiskLimits(100, -1), 1_000, 0),
    ],
)
def test_the_limits_leave_so_much(limits: DiskLimits, used: int, left: int) -> None:
    """The stricter one counts; below 0 there is a problem."""
    assert limits.left(disk(used)) == left
    assert (limits.problem(disk(used)) is not None) == (left < 0)


def test_a_problem_says_what_is_the_case_and_what_to_do() -> None:
    """The disk, how full it is, the limit and the way out."""
    text = DiskLimits(90, -1).problem(disk(931))
    assert text is not None
    for part in ("/store", "93.1 % full", "69 bytes free", "max-disk-usage 90", "free disk space"):
        assert part in text
    text = DiskLimits(-1, 70).problem(disk(931))
    assert text is not None
    assert "min-disk-free 70" in text


class Watched:
    """A watch of disks that the test fills."""

    def __init__(self, directory: Path, period_ms: int = 10) -> None:
        self.used = 0
        self.told: list[str | None] = []
        self.looked = threading.Event()
        self.problem: Exception | None = None
        self.watch = DiskWatch(
            [directory],
            DiskLimits(90, -1),
            period_ms=period_ms,
            reusable=lambda: 0,
            told=self.told.append,
        )
        self.watch._disks = self._disks  # type: ignore[method-assign]

    def _disks(self) -> list[Disk]:
        self.looked.set()
        if self.problem is not None:
            raise self.problem
        return [disk(0, 5_000), disk(self.used)]

    def look(self) -> None:
        """Wait for a look that began from here on."""
        for _ in range(2):
            self.looked.clear()
            assert self.looked.wait(PATIENCE)


def test_each_change_is_told_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The first look comes before anybody is served; the fullest disk counts."""
    watched = Watched(tmp_path)
    watched.used = 950
    with caplog.at_level(logging.WARNING, "orthia.broker"):
        watched.watch.start()
        assert watched.told[0] is not None
        watched.look()
        watched.used = 900
        wait_until(lambda: watched.told[-1] is None, what="the end is told")
        watched.problem = OSError(5, "Input/output error")
        watched.look()
        watched.problem = None
        watched.used = 999
        wait_until(lambda: watched.told[-1] is not None, what="it is told again")
        watched.watch.stop()
        thread = watched.watch._thread
        assert thread is not None
        thread.join(PATIENCE)  # it logs after it has told, and the stop waits for a second only
    texts = [one.getMessage() for one in caplog.records if one.name == "orthia.broker"]
    # Of a disk that is full for long that is said again and again.
    first, end, unseen, second = (text for text in texts if not text.startswith("for "))
    assert "95.0 % full" in first
    assert "again: accepting messages" in end
    assert "Input/output error" in unseen
    assert "99.9 % full" in second


def test_a_full_disk_that_empties_while_nobody_can_look_is_noticed(tmp_path: Path) -> None:
    """What it was before it could not be looked at still counts: messages are taken again."""
    watched = Watched(tmp_path)
    watched.used = 950
    watched.watch.start()
    watched.problem = OSError(5, "Input/output error")
    watched.look()
    assert watched.told[-1] is not None
    watched.used = 100
    watched.problem = None
    wait_until(lambda: watched.told[-1] is None, what="the end is told")
    watched.watch.stop()


def test_a_disk_that_is_nearly_full_is_looked_at_sooner(tmp_path: Path) -> None:
    """However long the period is: what is left could be gone before its end."""
    watched = Watched(tmp_path, period_ms=3_600_000)
    watched.used = 899
    watched.watch.start()
    assert watched.told == []
    watched.used = 901
    wait_until(lambda: watched.told, what="the next look")
    watched.watch.stop()


def test_a_look_that_ends_after_the_stop_tells_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would close the store of the node's next life, whose own watch sees no change."""
    monkeypatch.setattr("orthia.broker.node.disk_usage._JOIN_SECONDS", 0.01)
    watched = Watched(tmp_path)
    begun, hangs = threading.Event(), threading.Event()

    def hanging() -> list[Disk]:
        begun.set()
        assert hangs.wait(60)
        return [disk(999)]

    watched.watch.start()
    monkeypatch.setattr(watched.watch, "_disks", hanging)
    assert begun.wait(60)
    thread = watched.watch._thread
    assert thread is not None
    watched.watch.stop()
    hangs.set()
    thread.join(60)
    assert not thread.is_alive()
    assert watched.told == []


def test_a_real_disk_is_looked_at(tmp_path: Path) -> None:
    """What the store's files have free counts as room; nothing is told while there is some."""
    told: list[str | None] = []
    reusable = 0
    watch = DiskWatch(
        [tmp_path, tmp_path],
        DiskLimits(90, -1),
        period_ms=1_000,
        reusable=lambda: reusable,
        told=told.append,
    )
    (before,) = watch._disks()
    reusable = before.total // 100
    (after,) = watch._disks()
    assert 0 < before.used_percent < 100
    assert after.used_percent < before.used_percent


def test_the_reserve_of_root_is_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what is free some is kept for root: a node that is not root cannot write there."""
    fake = SimpleNamespace(f_frsize=4_096, f_blocks=1_000, f_bfree=150, f_bavail=50)
    monkeypatch.setattr("orthia.broker.node.disk_usage.os.statvfs", lambda _: fake)
    limits = DiskLimits(90, -1)
    watch = DiskWatch([tmp_path], limits, period_ms=1_000, reusable=lambda: 0, told=lambda _: None)
    (seen,) = watch._disks()
    assert (seen.free, seen.total) == (50 * 4_096, 900 * 4_096)
    assert limits.problem(seen) is not None


def test_nothing_is_looked_at_without_a_limit(tmp_path: Path) -> None:
    """Nor where the store has no files of its own."""
    others = set(threading.enumerate())  # another test's node may run on in this process
    for directories, limits in (([tmp_path], DiskLimits(-1, -1)), ([], DiskLimits(90, 1))):
        watch = DiskWatch(
            directories, limits, period_ms=1, reusable=lambda: 0, told=lambda _: pytest.fail("told")
        )
        watch.start()
        started = set(threading.enumerate()) - others
        assert "disk-usage" not in [one.name for one in started]
        watch.stop()
