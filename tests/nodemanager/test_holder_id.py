"""What a holder id says, and to whom."""

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orthia.nodemanager.locks.holder_id import HolderId, Timers

TIMERS = Timers(2_000, 20_000)
timers = st.builds(Timers, st.integers(0, 10**9), st.integers(0, 10**9))


@given(
    st.text(min_size=1, max_size=200),
    st.sampled_from(["", "no-lock", "database-locker", "a" * 20]),
    st.booleans(),
    st.none() | timers,
)
def test_what_was_said_is_read(
    name: str, kind: str, crash_detection: bool, published: Timers | None
) -> None:
    """Whatever the node is called; and it fits into the column, with the beginning of the name."""
    published = None if kind else published
    said = HolderId.new(name, crash_detection=crash_detection, kind=kind, timers=published)
    assert said.name is not None
    assert name.startswith(said.name)
    assert len(said.name) >= min(len(name), 9)
    assert (said.kind, said.has_presence, said.timers) == (kind, crash_detection, published)
    assert len(said) <= 128
    assert said.is_here
    assert said == HolderId(str(said))


def test_no_two_are_alike() -> None:
    """Not even of one process."""
    assert HolderId.new("a", crash_detection=True) != HolderId.new("a", crash_detection=True)


@given(st.text(max_size=130))
def test_an_id_of_an_unknown_form_says_no_timers_or_is_well_formed(text: str) -> None:
    """A row that somebody wrote by hand is no error."""
    said = HolderId(text)
    assert said.timers is None or text.rpartition("@")[2].count("/") >= 2


def test_the_holder_id_of_an_older_version_publishes_no_timers() -> None:
    """So its absence is not noticed before its lease ends."""
    place = "host:4711:6f0c4a52-5a52-4c52-8a52-0c524a525a52"
    old = HolderId(f"node-a@{place}")
    assert old == HolderId.of("node-a", place)
    assert (old.name, old.kind, old.has_presence, old.timers) == ("node-a", "", True, None)
    assert old.watched_period_ms is None
    lease_only = HolderId(f"{old}:lease-only")
    assert lease_only == HolderId.of("node-a", place, has_presence=False)
    assert (lease_only.name, lease_only.has_presence) == ("node-a", False)
    no_lock = HolderId(f"{old}:no-lock:lease-only")
    assert no_lock == HolderId.of("node-a", place, kind="no-lock", has_presence=False)
    assert (no_lock.place, no_lock.kind, no_lock.has_presence) == (place, "no-lock", False)


def test_a_node_that_is_called_like_another_host_is_not_there() -> None:
    """Where a process is says its place, whatever the node's name has in it."""
    here = socket.gethostname()[:40]
    assert HolderId(f"a@{here}:1:x").is_here
    assert not HolderId(f"a@{here}:@elsewhere:1:x").is_here
    assert not HolderId(f"{here}:1:x").is_here


@pytest.mark.parametrize("kind", ["", "shared-file-locker"])
def test_a_node_of_an_older_version_reads_an_id_with_timers_as_its_own(kind: str) -> None:
    """It looks for the kind after the third colon behind the @, and for the end of the text."""
    text = HolderId.new("a", crash_detection=False, kind=kind, timers=TIMERS)
    tail = text.rpartition("@")[2].split(":")[3:]
    assert tail == [*([kind] if kind else []), "lease-only"]
    assert text.endswith(":lease-only")


def test_the_period_that_is_watched_is_the_holders() -> None:
    """Of one that has a presence lock, and renews."""
    assert HolderId.of("a", "h:1:x", timers=TIMERS).watched_period_ms == 2_000
    lease_only = HolderId.of("a", "h:1:x", has_presence=False, timers=TIMERS)
    assert lease_only.watched_period_ms is None
    assert HolderId.of("a", "h:1:x", timers=Timers(0, 20_000)).watched_period_ms is None
