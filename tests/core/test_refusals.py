"""Clients that are refused leave a line in the log, and a number, and do not fill it."""

import pytest

from orthia.broker.core.errors import (
    AuthenticationFailed,
    DestinationRefused,
    LimitExceeded,
    NotAuthorized,
    Refusal,
)
from orthia.broker.core.limits.refusals import MOST_REASONS, QUIET_SECONDS, Refusals, refusal_of
from orthia.broker.protocols.stomp.frames import ProtocolError


def test_the_first_of_a_kind_is_told_at_once(caplog: pytest.LogCaptureFixture) -> None:
    """With address, reason and who it is, on one line whatever the client wrote."""
    refusals = Refusals()
    who = " (acceptor 'amqp')"
    refusals.note(Refusal.PROTOCOL, "10.0.0.7", "no\nsuch\x1b[31m frame", 5.0, who)
    refusals.note(Refusal.AUTHORIZATION, "10.0.0.8", "may not", 5.0)
    assert caplog.messages == [
        "a client at 10.0.0.7 was refused: no such [31m frame (acceptor 'amqp')",
        "a client at 10.0.0.8 was refused: may not",
    ]


def test_one_client_hides_no_other_that_is_refused_for_another_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A few reasons of a kind are told at once; what is told again is a number."""
    refusals = Refusals()
    for second in range(30):
        refusals.note(Refusal.PROTOCOL, "10.0.0.7", "speaks CORE", float(second))
    refusals.note(Refusal.PROTOCOL, "10.0.0.8", "speaks HTTP", 30.0)
    assert caplog.messages == [
        "a client at 10.0.0.7 was refused: speaks CORE",
        "a client at 10.0.0.8 was refused: speaks HTTP",
    ]
    refusals.note(Refusal.PROTOCOL, "10.0.0.7", "speaks CORE", 31.0)
    refusals.tick(QUIET_SECONDS + 1)
    refusals.note(Refusal.PROTOCOL, "10.0.0.7", "speaks CORE", QUIET_SECONDS + 2)
    refusals.note(Refusal.PROTOCOL, "10.0.0.8", "speaks HTTP", QUIET_SECONDS + 2)
    assert caplog.messages[2:] == [
        "30 more clients were refused likewise within 60 s, the last at 10.0.0.7: speaks CORE",
        "a client at 10.0.0.8 was refused: speaks HTTP",
    ]


def test_a_client_that_tries_for_ever_fills_no_log(caplog: pytest.LogCaptureFixture) -> None:
    """Those that follow are a number, once in a while; each is counted for the metric."""
    counted: list[str] = []
    refusals = Refusals(counted.append)
    for number in range(1_000):
        refusals.note(Refusal.CONNECTIONS, "10.0.0.7", f"full {number}", number / 1_000)
        refusals.tick(number / 1_000)
    assert len(caplog.messages) == MOST_REASONS
    refusals.tick(QUIET_SECONDS + 1)
    assert caplog.messages[MOST_REASONS:] == [
        f"{1_000 - MOST_REASONS} more clients were refused likewise within 60 s,"
        " the last at 10.0.0.7: full 999"
    ]
    refusals.tick(3 * QUIET_SECONDS)
    assert len(caplog.messages) == MOST_REASONS + 1
    refusals.note(Refusal.CONNECTIONS, "10.0.0.9", "full again", 3 * QUIET_SECONDS)
    assert caplog.messages[MOST_REASONS + 1 :] == ["a client at 10.0.0.9 was refused: full again"]
    assert counted == ["connections"] * 1_001


def test_failed_logins_are_told_by_who_watches_them(caplog: pytest.LogCaptureFixture) -> None:
    """Counted here, told there."""
    counted: list[str] = []
    Refusals(counted.append).note(Refusal.AUTHENTICATION, "10.0.0.7", "wrong", 0.0)
    assert (caplog.messages, counted) == ([], ["authentication"])


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (AuthenticationFailed(""), Refusal.AUTHENTICATION),
        (NotAuthorized(""), Refusal.AUTHORIZATION),
        (DestinationRefused(""), Refusal.DESTINATION),
        (LimitExceeded(""), Refusal.LIMIT),
        (ProtocolError(""), Refusal.PROTOCOL),
    ],
)
def test_an_error_says_of_which_kind_it_is(error: Exception, kind: Refusal) -> None:
    """What a client is told is counted under what it did."""
    assert refusal_of(error) is kind  # type: ignore[arg-type]
