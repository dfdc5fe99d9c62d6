"""Heart-beats: what is agreed, when one is sent, when a client is gone."""

import pytest

from orthia.broker.protocols.stomp.frames import ProtocolError
from orthia.broker.protocols.stomp.timeouts import MIN_INTERVAL_MS, HeartBeats, negotiate


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        (None, (0, 0)),
        ("0,0", (0, 0)),
        ("1000,0", (0, 1000)),
        ("0,2000", (2000, 0)),
        ("1000,2000", (2000, 1000)),
        (" 1000 , 2000 ", (2000, 1000)),
        (f"{10**17},{10**17}", (2**31, 2**31)),
        ("1,1", (MIN_INTERVAL_MS, MIN_INTERVAL_MS)),
    ],
)
def test_the_broker_agrees_to_what_the_client_asks(
    asked: str | None, answered: tuple[int, int]
) -> None:
    """The client's pair is mirrored; no interval is below the least the broker keeps."""
    assert negotiate(asked) == answered


@pytest.mark.parametrize(
    "header", ["", "1000", "1,2,3", "a,b", "-1,0", "1.5,0", "\u0661,0", "9" * 5_000 + ",0"]
)
def test_a_malformed_header_is_refused(header: str) -> None:
    """The error shows the header and what it should be."""
    with pytest.raises(ProtocolError, match="milliseconds"):
        negotiate(header)


def test_a_beat_is_due_before_the_client_misses_it() -> None:
    """The broker beats at least once in each interval it promised, with time to spare."""
    beats = HeartBeats(1_000, 0, 0.0)
    assert not beats.is_due(0.4)
    assert beats.is_due(0.6)
    assert not beats.is_due(0.9)
    assert beats.is_due(1.2)


def test_a_client_is_gone_after_twice_its_interval() -> None:
    """Silence longer than that ends it; anything it sends begins the time anew."""
    beats = HeartBeats(0, 1_000, 0.0)
    assert not beats.is_gone(1.9)
    beats.read(1.9)
    assert not beats.is_gone(3.8)
    assert beats.is_gone(4.0)


def test_without_agreement_nothing_is_due_and_nobody_is_gone() -> None:
    """Zero means never."""
    beats = HeartBeats(0, 0, 0.0)
    assert not beats.is_due(1e9)
    assert not beats.is_gone(1e9)


def test_a_time_in_which_nobody_listened_is_not_silence() -> None:
    """It is left out; what came since counts from when it came."""
    beats = HeartBeats(0, 1_000, 0.0)
    beats.forgive(10.0, 11.0)
    assert not beats.is_gone(11.9)
    assert beats.is_gone(12.1)
    beats.read(20.0)
    beats.forgive(10.0, 20.5)
    assert beats.is_gone(22.6)


def test_an_acceptor_says_how_many_intervals_a_client_may_be_silent() -> None:
    """heartBeatToConnectionTtlModifier; a client without heart-beats is not asked by it."""
    assert not HeartBeats(0, 1_000, 0.0, silence_factor=3.5).is_gone(3.4)
    assert HeartBeats(0, 1_000, 0.0, silence_factor=3.5).is_gone(3.6)
    assert not HeartBeats(0, 0, 0.0, silence_factor=3.5).is_gone(1e9)
