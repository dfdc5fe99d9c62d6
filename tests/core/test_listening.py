"""What keeps an acceptor from listening, and whether it may pass by itself."""

import errno
import socket
import threading

import pytest

from orthia.broker.connections import listening
from orthia.broker.connections.listening import (
    AcceptorError,
    AcceptorNotFree,
    acceptor_error,
    await_acceptors,
    try_acceptors,
)
from orthia.broker.node.exit_codes import ExitCode, code_of
from orthia.config.settings import AcceptorSettings
from orthia.nodemanager import Interrupted

ACCEPTOR = AcceptorSettings("stomp", "127.0.0.1", 61_613)
ALONE = "127.0.0.87"
"""An address that nobody else listens on: a port that is let go stays free."""


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (OSError(errno.EADDRINUSE, "in use"), True),
        (OSError(errno.EADDRNOTAVAIL, "an address that moves with the live node"), True),
        (socket.gaierror(socket.EAI_AGAIN, "the name server is away"), True),
        (socket.gaierror(socket.EAI_NONAME, "unknown"), False),
        (PermissionError(errno.EACCES, "denied"), False),
        (OSError(errno.EAFNOSUPPORT, "no IPv6"), False),
    ],
)
def test_what_passes_by_itself_is_worth_another_start(error: OSError, *, passes: bool) -> None:
    """A taken port is for the service manager to try again, a wrong one for a person to mend."""
    found = acceptor_error(ACCEPTOR, error)
    assert isinstance(found, AcceptorNotFree) == passes
    assert code_of(found) is (ExitCode.LOCK_NOT_ACQUIRED if passes else ExitCode.CONFIGURATION)
    assert str(found).startswith("acceptor 'stomp' cannot listen on 127.0.0.1:61613: ")


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EADDRINUSE, "; `ss -ltnp 'sport = :61613'` shows which process has the port"),
        (errno.EADDRNOTAVAIL, "; no network interface of this host has 127.0.0.1 (`ip address`)"),
        (errno.EACCES, "; give the acceptor a port from 1024 on, or let this user open lower ones"),
    ],
)
def test_the_error_says_what_to_look_at(number: int, advice: str) -> None:
    """The system's words alone do not."""
    assert str(acceptor_error(ACCEPTOR, OSError(number, "said"))).endswith(advice)


def test_trying_leaves_a_port_free() -> None:
    """What was tried can be listened on, also where somebody listened a moment ago."""
    with socket.create_server((ALONE, 0)) as taken:
        port = taken.getsockname()[1]
        acceptor = AcceptorSettings("stomp", ALONE, port)
        found = try_acceptors((AcceptorSettings("other", ALONE, 0), acceptor))
        assert found is not None
        assert (found.acceptor, found.reason) == (acceptor, "Address already in use")
        with socket.create_connection((ALONE, port)), taken.accept()[0]:
            pass  # leaves the port in TIME_WAIT
    assert try_acceptors((acceptor,)) is None
    with socket.create_server((ALONE, port)):
        pass


def test_what_does_not_pass_comes_before_what_may() -> None:
    """An error is told at once, though another acceptor is to be waited for."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        busy = AcceptorSettings("busy", "127.0.0.1", taken.getsockname()[1])
        wrong = AcceptorSettings("wrong", 64 * "x", 61_613)
        with pytest.raises(AcceptorError, match="'wrong' cannot listen"):
            try_acceptors((busy, wrong))


def test_a_port_of_the_other_family_is_free() -> None:
    """As it is for whoever listens on it: IPv6 alone, though IPv4 has the same number."""
    with socket.create_server(("0.0.0.0", 0)) as taken:  # noqa: S104 - of this test's own network
        port = taken.getsockname()[1]
        try:
            with socket.create_server(("::", port), family=socket.AF_INET6):
                pass
        except OSError:
            pytest.skip("this host has no IPv6")
        assert try_acceptors((AcceptorSettings("stomp", "::", port),)) is None


def test_a_port_that_stays_taken_is_told_once_and_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A node that waits for ever for its port would have the live lock and serve nobody."""
    monkeypatch.setattr(listening, "LONGEST_WAIT_SECONDS", 0.5)
    monkeypatch.setattr(listening, "_RETRY_SECONDS", 0.01)
    told: list[AcceptorNotFree] = []
    with socket.create_server(("127.0.0.1", 0)) as taken:
        acceptor = AcceptorSettings("stomp", "127.0.0.1", taken.getsockname()[1])
        with pytest.raises(AcceptorNotFree, match="Address already in use"):
            await_acceptors((acceptor,), stopped=threading.Event(), told=told.append)
    assert [found.acceptor for found in told] == [acceptor]


def test_a_port_is_had_as_soon_as_it_is_free() -> None:
    """The process before needed a moment to end."""
    told: list[AcceptorNotFree] = []
    taken = socket.create_server((ALONE, 0))
    acceptor = AcceptorSettings("stomp", ALONE, taken.getsockname()[1])

    def is_told(found: AcceptorNotFree) -> None:
        told.append(found)
        taken.close()

    await_acceptors((acceptor,), stopped=threading.Event(), told=is_told)
    assert len(told) == 1


def test_a_node_that_is_stopped_waits_no_longer_for_its_port() -> None:
    """It was asked to end, and ends in good order."""
    stopped = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        acceptor = AcceptorSettings("stomp", "127.0.0.1", taken.getsockname()[1])
        with pytest.raises(Interrupted):
            await_acceptors((acceptor,), stopped=stopped, told=lambda _: stopped.set())
