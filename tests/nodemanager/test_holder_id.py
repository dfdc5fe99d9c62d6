"""What a holder id says, and to whom."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orthia.nodemanager.holder_id import HolderId, Timers, is_here, new_holder_id

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
    text = new_holder_id(name, crash_detection=crash_detection, kind=kind, timers=published)
    said = HolderId.parse(text)
    assert said.name is not None
    assert name.startswith(said.name)
    assert len(said.name) >= min(len(name), 9)
    assert said == HolderId(said.name, kind, crash_detection, published)
    assert len(text) <= 128
    assert is_here(text)


def test_no_two_are_alike() -> None:
    """Not even of one process."""
    assert new_holder_id("a", crash_detection=True) != new_holder_id("a", crash_detection=True)


@given(st.text(max_size=130))
def test_an_id_of_an_unknown_form_says_no_timers_or_is_well_formed(text: str) -> None:
    """A row that somebody wrote by hand is no error."""
    said = HolderId.parse(text)
    assert said.timers is None or text.rpartition("@")[2].count("/") >= 2


def test_the_holder_id_of_an_older_version_publishes_no_timers() -> None:
    """So its absence is not noticed before its lease ends."""
    old = "node-a@host:4711:6f0c4a52-5a52-4c52-8a52-0c524a525a52"
    assert HolderId.parse(old) == HolderId("node-a")
    assert HolderId.parse(old).watched_period_ms is None
    assert HolderId.parse(old + ":lease-only") == HolderId("node-a", has_presence=False)
    assert HolderId.parse(old + ":no-lock:lease-only") == HolderId(
        "node-a", "no-lock", has_presence=False
    )


@pytest.mark.parametrize("kind", ["", "shared-file-locker"])
def test_a_node_of_an_older_version_reads_an_id_with_timers_as_its_own(kind: str) -> None:
    """It looks for the kind after the third colon behind the @, and for the end of the text."""
    text = new_holder_id("a", crash_detection=False, kind=kind, timers=TIMERS)
    tail = text.rpartition("@")[2].split(":")[3:]
    assert tail == [*([kind] if kind else []), "lease-only"]
    assert text.endswith(":lease-only")


def test_the_period_that_is_watched_is_the_holders() -> None:
    """Of one that has a presence lock, and renews."""
    assert HolderId(timers=TIMERS).watched_period_ms == 2_000
    assert HolderId(has_presence=False, timers=TIMERS).watched_period_ms is None
    assert HolderId(timers=Timers(0, 20_000)).watched_period_ms is None
