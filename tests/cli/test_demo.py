"""``orthia demo`` as its user sees it: the story it tells, and that it would tell of a loss."""

import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.extended

SHORTER = """if True:
    import sys
    from orthia.broker.cli import demo, main
    demo = sys.modules["orthia.broker.cli.demo"]
    demo._BEFORE_KILL, demo._CONSUMED_BEFORE_KILL, demo._AFTER_TAKEOVER = 300, 100, 200
    # A machine that stands still is to end neither the live node nor what its consumer waits for.
    demo.EXPIRATION_MS, demo._QUIET_SECONDS = 60_000, 10.0
    {trouble}
    sys.argv = ["orthia", "demo"]
    main()
"""
LOST_ONE = """
    add = demo._Delivered.add
    demo._Delivered.add = lambda all, one: b" 7 " in one.body[:20] or add(all, one)
"""
SWAPPED_TWO = """
    add, held = demo._Delivered.add, []
    def late(all, one):
        if b" 7 " in one.body[:20]:
            held.append(one)
            return
        add(all, one)
        while held:
            add(all, held.pop())
    demo._Delivered.add = late
"""


def play(trouble: str = "") -> "subprocess.CompletedProcess[str]":
    """Play a story of some hundred messages."""
    return subprocess.run(
        [sys.executable, "-c", SHORTER.format(trouble=trouble)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_the_demo_shows_a_takeover_that_loses_nothing() -> None:
    """Its figures agree with each other, and the log it prints is of this takeover."""
    played = play()
    assert played.returncode == 0, played.stdout + played.stderr
    assert "Nothing acknowledged was lost." in played.stdout
    assert "kill -9 of the live node" in played.stdout
    said = re.search(r"receipted (\d+), delivered (\d+), lost 0,", played.stdout)
    assert said is not None
    receipted, delivered = map(int, said.groups())
    assert delivered >= receipted >= 500
    assert "AMQ221010" in played.stdout  # the backup is active: the failover log's line
    assert "asked to stop, exited with 0" in played.stdout


@pytest.mark.parametrize(
    ("trouble", "told"),
    [(LOST_ONE, "receipted and lost: [7]"), (SWAPPED_TWO, "in another order")],
    ids=["a loss", "disorder"],
)
def test_the_demo_tells_of_what_went_wrong(trouble: str, told: str) -> None:
    """One message of some hundred that its consumers do not get, or get late, is a failure."""
    played = play(trouble)
    assert played.returncode == 1, played.stdout + played.stderr
    assert "the demo failed: " in played.stderr
    assert told in played.stderr
    assert "Nothing acknowledged was lost." not in played.stdout
