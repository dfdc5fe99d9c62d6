"""Whether the acceptors' addresses can be bound, checked before clients depend on it.

A waiting node opens no port, and would learn only at its takeover that another process has one. So
each address is tried when the node starts: bound as for listening, and released.
``AcceptorNotFree`` is what may pass by itself: a port in use, an address that this host does not
have yet (one that moves with the live node), a name server that does not answer. Anything else
stays wrong until a person changes something.
"""

import contextlib
import errno
import os
import socket
import threading
from collections.abc import Callable
from typing import Final

from orthia.config.clock import monotonic_seconds
from orthia.config.errors import OrthiaError
from orthia.config.settings import AcceptorSettings
from orthia.nodemanager import Interrupted

LONGEST_WAIT_SECONDS: Final = 10.0
"""How long a node waits for a port: an ending process needs less, and while this node holds the
live lock no other can serve. Then it releases the lock to another backup and exits with 75."""
_RETRY_SECONDS: Final = 0.2
_MAY_PASS: Final = frozenset({errno.EADDRINUSE, errno.EADDRNOTAVAIL})


class AcceptorError(OrthiaError):
    """An acceptor cannot listen where it is configured to."""


class AcceptorNotFree(AcceptorError):  # noqa: N818 - named for the state
    """An acceptor cannot listen at present; that may pass by itself."""

    def __init__(self, acceptor: AcceptorSettings, reason: str) -> None:
        super().__init__(_message(acceptor, reason))
        self.acceptor = acceptor
        self.reason = reason


def acceptor_error(acceptor: AcceptorSettings, error: OSError) -> AcceptorError:
    """Return the error of an ``acceptor`` that cannot listen because of ``error``."""
    reason = _reason(error)
    by_name = isinstance(error, socket.gaierror)
    may_pass = error.errno == socket.EAI_AGAIN if by_name else error.errno in _MAY_PASS
    if may_pass:
        return AcceptorNotFree(acceptor, reason)
    return AcceptorError(_message(acceptor, reason))


def try_acceptors(acceptors: tuple[AcceptorSettings, ...]) -> AcceptorNotFree | None:
    """Return why the first acceptor cannot listen at present; None if all can.

    Blocks while a name server does. Raises AcceptorError for what does not pass by itself.
    """
    not_free = None
    for acceptor in acceptors:
        try:
            _bind(acceptor)
        except UnicodeError as error:  # the host is not a valid name
            raise AcceptorError(_message(acceptor, str(error))) from None
        except OSError as error:
            found = acceptor_error(acceptor, error)
            if not isinstance(found, AcceptorNotFree):
                raise found from None
            not_free = not_free or found
    return not_free


def await_acceptors(
    acceptors: tuple[AcceptorSettings, ...],
    *,
    stopped: threading.Event,
    told: Callable[[AcceptorNotFree], None],
) -> None:
    """Wait until every acceptor can listen; call ``told`` once with the reason of the wait.

    Raises AcceptorNotFree after ``LONGEST_WAIT_SECONDS``, Interrupted once ``stopped`` is set, and
    AcceptorError.
    """
    give_up_seconds: float | None = None
    while (not_free := try_acceptors(acceptors)) is not None:
        now = monotonic_seconds()
        if give_up_seconds is None:
            give_up_seconds = now + LONGEST_WAIT_SECONDS
            told(not_free)
        elif now >= give_up_seconds:
            raise not_free
        if stopped.wait(_RETRY_SECONDS):
            raise Interrupted("stopped while waiting for a port")


def _bind(acceptor: AcceptorSettings) -> None:
    """Bind every address of the acceptor, as asyncio does, and release them; raises OSError."""
    found = socket.getaddrinfo(
        acceptor.host or None, acceptor.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    with contextlib.ExitStack() as bound:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            try:
                one = bound.enter_context(socket.socket(family, kind, protocol))
            except OSError as error:
                if error.errno == errno.EAFNOSUPPORT:
                    continue  # a host without IPv6, whose names still resolve to such addresses
                raise
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.bind(address)


def _message(acceptor: AcceptorSettings, reason: str) -> str:
    said = f"acceptor {acceptor.name!r} cannot listen on {acceptor.host}:{acceptor.port}: {reason}"
    advice = _advice(acceptor, reason)
    return f"{said}; {advice}" if advice else said


def _advice(acceptor: AcceptorSettings, reason: str) -> str:
    """Return what to do, where the reason alone does not say."""
    if reason == os.strerror(errno.EADDRINUSE):
        return f"`ss -ltnp 'sport = :{acceptor.port}'` shows which process has the port"
    if reason == os.strerror(errno.EADDRNOTAVAIL):
        return f"no network interface of this host has {acceptor.host} (`ip address`)"
    if reason == os.strerror(errno.EACCES):
        return "give the acceptor a port from 1024 on, or let this user open lower ones"
    return ""


def _reason(error: OSError) -> str:
    if error.errno is not None and not isinstance(error, socket.gaierror):
        return os.strerror(error.errno)  # asyncio's text repeats the address
    return error.strerror or str(error)
