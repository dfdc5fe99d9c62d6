"""What keeps an acceptor from listening, and whether it may pass by itself."""

import errno
import socket

import pytest

from broker.exit_codes import ExitCode, code_of
from broker.listening import AcceptorError, AcceptorNotFree, acceptor_error, try_acceptors
from config.settings import AcceptorSettings

ACCEPTOR = AcceptorSettings("stomp", "127.0.0.1", 61_613)


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


def test_trying_leaves_a_port_free() -> None:
    """What was tried can be listened on, also where somebody listened a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        acceptor = AcceptorSettings("stomp", "127.0.0.1", port)
        found = try_acceptors((AcceptorSettings("other", "127.0.0.1", 0), acceptor))
        assert found is not None
        assert (found.acceptor, found.reason) == (acceptor, "Address already in use")
        with socket.create_connection(("127.0.0.1", port)), taken.accept()[0]:
            pass  # leaves the port in TIME_WAIT
    assert try_acceptors((acceptor,)) is None
    with socket.create_server(("127.0.0.1", port)):
        pass


def test_what_does_not_pass_comes_before_what_may() -> None:
    """An error is told at once, though another acceptor is to be waited for."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        busy = AcceptorSettings("busy", "127.0.0.1", taken.getsockname()[1])
        wrong = AcceptorSettings("wrong", 64 * "x", 61_613)
        with pytest.raises(AcceptorError, match="'wrong' cannot listen"):
            try_acceptors((busy, wrong))
