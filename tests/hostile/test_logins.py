"""Guessing passcodes is slow, costs nobody else anything, and is told once."""

import asyncio
import logging
import re
import select
import socket
import struct
import time
from contextlib import ExitStack
from dataclasses import replace

import pytest

from orthia.broker.core.errors import AuthenticationFailed, LimitExceeded
from orthia.broker.management.abc import Caller
from orthia.broker.node.operator_logins import HttpLogins
from orthia.broker.protocols.stomp.connection import StompConnection
from orthia.broker.protocols.stomp.options import StompOptions
from orthia.broker.security import logins
from orthia.broker.security.logins import (
    BURST_SECONDS,
    FORGET_SECONDS,
    FREE_FAILURES,
    MAX_WAITING,
    MAX_WAITING_AT_ADDRESS,
    MAX_WAITING_OPERATORS_AT_ADDRESS,
    USER_PLACES,
    LoginGuard,
    LoginWait,
    _place,
)
from orthia.config.secrets import Secret
from orthia.config.security_settings import SecuritySetting, User
from orthia.config.settings import ClientLimits
from tests.core.support import SETTINGS, CoreUnderTest
from tests.core.test_server import ServerUnderTest, read_to_the_end, serving
from tests.stomp.support import Client, SocketDouble
from tests.support.waiting import wait_until

EVERYTHING = ("send", "consume", "createAddress", "createDurableQueue")
SECURED = replace(
    SETTINGS,
    security_enabled=True,
    users=(
        User("ada", Secret("l0vel@ce"), frozenset({"staff"})),
        User("bob", Secret("bu1lder"), frozenset({"staff"})),
        User("eve", Secret("bu1lder"), frozenset({"staff"})),
        User("nobody", Secret("n0thing"), frozenset()),
    ),
    security_settings=(SecuritySetting("#", {each: frozenset({"staff"}) for each in EVERYTHING}),),
)


OTHER = next(name for name in ("bob", "eve") if _place(name) != _place("ada"))
"""A user who is not remembered in the same place as ada."""


def names_apart(count: int) -> list[str]:
    """Return names that are remembered in places of their own, which are not ada's or OTHER's."""
    names = {_place(name): name for name in map(str, range(USER_PLACES))}
    names |= {_place("ada"): "", _place(OTHER): ""}
    return [name for name in names.values() if name][:count]


def fail(guard: LoginGuard, address: str, login: str, times: int, now: float = 0.0) -> None:
    """Have so many logins fail."""
    for _ in range(times):
        guard.failed(address, login, now)


def seconds(wait: LoginWait | None) -> float:
    """Return how long a login waits."""
    return 0.0 if wait is None else wait.seconds


def test_the_wait_grows_to_its_bound() -> None:
    """A few mistakes are free; then each doubles the wait, up to max-login-delay."""
    guard = LoginGuard(5_000)
    waits = []
    for _ in range(FREE_FAILURES + 8):
        wait = guard.begin("10.0.0.1", "ada", 0.0)
        waits.append(seconds(wait))
        if wait is not None:
            guard.end(wait)
        guard.failed("10.0.0.1", "ada", 0.0)
    assert waits[:FREE_FAILURES] == [0.0] * FREE_FAILURES
    assert waits[FREE_FAILURES : FREE_FAILURES + 6] == [0.25, 0.5, 1.0, 2.0, 4.0, 5.0]
    assert waits[-1] == 5.0


def test_what_failed_long_ago_is_forgotten() -> None:
    """An address, and a user, begin anew."""
    guard = LoginGuard(5_000)
    fail(guard, "10.0.0.1", "ada", 50)
    assert seconds(guard.begin("10.0.0.1", "ada", FORGET_SECONDS + 1)) == 0.0


def test_a_user_who_is_guessed_from_elsewhere_waits_little() -> None:
    """Whatever others do, the wait of the right user is a fifth, and the right passcode ends it."""
    guard = LoginGuard(5_000)
    for number in range(1_000):
        guard.failed(f"10.0.{number // 250}.{number % 250}", "ada", 0.0)
    wait = guard.begin("192.168.0.1", "ada", 0.0)
    assert wait is not None
    assert wait.seconds == 1.0
    guard.end(wait)
    guard.succeeded("192.168.0.1", "ada")
    assert seconds(guard.begin("192.168.0.1", "ada", 0.0)) == 0.0


def test_a_guessers_own_account_does_not_help_it() -> None:
    """A right login in between leaves its address as slow as it was."""
    guard = LoginGuard(5_000)
    fail(guard, "10.0.0.1", "ada", 50)
    guard.succeeded("10.0.0.1", "mallory")
    assert seconds(guard.begin("10.0.0.1", "ada", 0.0)) == 5.0


def test_few_wait_at_a_time_for_a_user_and_others_are_not_kept_out() -> None:
    """Parallel guesses at one user are refused at once; another user of the address may wait."""
    guard = LoginGuard(5_000)
    fail(guard, "10.0.0.1", "ada", 50)
    waits = [guard.begin("10.0.0.1", "ada", 0.0) for _ in range(MAX_WAITING)]
    assert {*map(seconds, waits)} == {5.0}
    with pytest.raises(LimitExceeded, match="try again in 5 s"):
        guard.begin("10.0.0.1", "ada", 0.0)
    assert seconds(guard.begin("10.0.0.1", OTHER, 0.0)) == 5.0
    assert waits[0] is not None
    guard.end(waits[0])
    assert seconds(guard.begin("10.0.0.1", "ada", 0.0)) == 5.0


def test_one_address_that_tries_many_names_is_as_slow() -> None:
    """Few of its logins wait at a time, whatever names they say; other addresses are not asked."""
    guard = LoginGuard(5_000)
    fail(guard, "10.0.0.1", "ada", 50)
    *names, one_more = names_apart(MAX_WAITING_AT_ADDRESS + 1)
    waits = [guard.begin("10.0.0.1", name, 0.0) for name in names]
    assert {*map(seconds, waits)} == {5.0}
    with pytest.raises(LimitExceeded, match="logins failed from this address, and 32 more wait"):
        guard.begin("10.0.0.1", one_more, 0.0)
    assert seconds(guard.begin("10.0.0.2", names[0], 0.0)) == 0.0
    assert waits[0] is not None
    guard.end(waits[0])
    assert seconds(guard.begin("10.0.0.1", "ada", 0.0)) == 5.0


def test_who_logged_in_from_an_address_does_not_wait_for_who_guesses_there() -> None:
    """Guesses at other names behind the same proxy keep a known user neither waiting nor out."""
    guard = LoginGuard(5_000)
    guard.succeeded("2001:db8:0:1::7", OTHER)
    for number in range(200):
        guard.failed(f"2001:db8:0:1::{number:x}", "ada", 0.0)
    *names, never_seen = names_apart(MAX_WAITING_AT_ADDRESS // MAX_WAITING + 1)
    for name in names:
        for _ in range(MAX_WAITING):
            guard.begin("2001:db8:0:1::8", name, 0.0)
    assert seconds(guard.begin("2001:db8:0:1::9", OTHER, 0.0)) == 0.0
    with pytest.raises(LimitExceeded):
        guard.begin("2001:db8:0:1::9", never_seen, 0.0)
    fail(guard, "10.0.0.1", OTHER, 50)
    assert seconds(guard.begin("2001:db8:0:1::9", OTHER, 0.0)) == 1.0, (
        "guessed at elsewhere: it waits here"
    )


def test_guesses_at_known_users_keep_no_newcomer_out() -> None:
    """Each of them has places of its own; a user that was known as the wait began frees none."""
    guard = LoginGuard(5_000)
    *names, never_seen = names_apart(MAX_WAITING_AT_ADDRESS // MAX_WAITING + 1)
    waits = []
    for name in names:
        guard.succeeded("10.0.0.1", name)
        fail(guard, "10.0.0.1", name, 50)
        waits += [guard.begin("10.0.0.1", name, 0.0) for _ in range(MAX_WAITING)]
    newcomer = guard.begin("10.0.0.1", never_seen, 0.0)
    assert seconds(newcomer) == 5.0
    guard.forget(names)
    for wait in (*waits, newcomer):
        assert wait is not None
        guard.end(wait)
    assert not guard._waiting
    assert not guard._waiting_at


def test_a_known_user_is_guessed_at_as_slowly() -> None:
    """Where a user logs in from, its name is no way around the wait."""
    guard = LoginGuard(5_000)
    guard.succeeded("10.0.0.1", "ada")
    fail(guard, "10.0.0.1", "ada", 50)
    guard.succeeded("10.0.0.1", "ada")
    assert seconds(guard.begin("10.0.0.1", "ada", 0.0)) == 5.0


def test_the_known_users_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pair that logged in longest ago is forgotten first."""
    monkeypatch.setattr(logins, "MAX_KNOWN", 10)
    guard = LoginGuard(5_000)
    for number in range(100):
        guard.succeeded(f"10.0.0.{number}", "ada")
    assert len(guard._known) == 10
    assert ("10.0.0.99", "ada") in guard._known


def test_one_user_puts_no_other_out_of_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one that comes from very many addresses its own earliest are forgotten."""
    monkeypatch.setattr(logins, "MAX_KNOWN", 10)
    monkeypatch.setattr(logins, "MAX_KNOWN_OF_ONE", 5)
    guard = LoginGuard(5_000)
    guard.succeeded("10.0.1.1", OTHER)
    for number in (*range(100), 96):
        guard.succeeded(f"10.0.0.{number}", "ada")
    assert guard.known_as("10.0.1.1", OTHER) == OTHER
    assert [number for number in range(100) if guard.known_as(f"10.0.0.{number}", "ada")] == [
        *range(95, 100)
    ]
    guard.succeeded("10.0.0.100", "ada")
    guard.succeeded("10.0.0.101", "ada")
    assert guard.known_as("10.0.0.96", "ada") == "ada", "it has logged in since"
    assert guard.known_as("10.0.0.97", "ada") is None


def test_a_user_that_is_gone_is_known_nowhere() -> None:
    """Nor is one with another password; the others stay."""
    guard = LoginGuard(5_000)
    for name in ("ada", OTHER):
        for number in range(3):
            guard.succeeded(f"10.0.0.{number}", name)
    guard.forget(["ada", "nobody"])
    guard.forget(["ada"])
    for number in range(3):
        assert guard.known_as(f"10.0.0.{number}", "ada") is None
        assert guard.known_as(f"10.0.0.{number}", OTHER) == OTHER
    guard.succeeded("10.0.0.1", "ada")
    assert guard.known_as("10.0.0.1", "ada") == "ada"


def test_the_addresses_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that failed longest ago is forgotten; of IPv6 a network counts as one."""
    monkeypatch.setattr(logins, "MAX_ADDRESSES", 100)
    guard = LoginGuard(5_000)
    for number in range(10_000):
        guard.failed(f"10.{number // 250}.{number % 250}.1", str(number), 0.0)
    assert guard.remembered == 100
    for number in range(1_000):
        guard.failed(f"2001:db8::{number:x}", str(number), 0.0)
    assert seconds(guard.begin("2001:db8::ffff", "x", 0.0)) == 5.0
    assert guard.remembered == 100


def test_a_burst_is_logged_once_and_summed_up(caplog: pytest.LogCaptureFixture) -> None:
    """One line for the first, one a minute for the rest, then quiet."""
    guard = LoginGuard(5_000)
    with caplog.at_level(logging.DEBUG):
        fail(guard, "10.0.0.1", "ada", 500)
        fail(guard, "10.0.0.2", "l0vel@ce", 20)
        for second in range(1, 300):
            guard.tick(float(second))
    first, summary = (record.getMessage() for record in caplog.records)
    assert first.startswith("a login from 10.0.0.1 as an unknown user failed")
    assert summary.startswith("519 more logins failed within 60 s, from 2 addresses; 499 of them")
    assert "l0vel@ce" not in caplog.text
    fail(guard, "10.0.0.1", "ada", 1, BURST_SECONDS * 6)
    assert len(caplog.records) == 3


def test_a_login_that_names_nobody_is_told_as_that(caplog: pytest.LogCaptureFixture) -> None:
    """As of AMQP's ANONYMOUS: there is no passcode that could be wrong."""
    LoginGuard(5_000).failed("10.0.0.1", None, 0.0)
    assert caplog.messages == [
        "a login from 10.0.0.1 without a user name failed: only known users are let in; further"
        " failures are logged once in 60 s"
    ]


# --- on real sockets


def have_failed(server: ServerUnderTest, address: str, login: str) -> None:
    """Have logins failed so often that the wait is at its bound."""
    server.call(lambda: fail(server.server.clients.logins, address, login, 50, time.monotonic()))


def log_in(server: ServerUnderTest, login: str, passcode: str, source: str) -> socket.socket:
    """Open a socket from an address of this machine and say CONNECT."""
    client = socket.create_connection(
        ("127.0.0.1", server.port), timeout=240, source_address=(source, 0)
    )
    client.sendall(
        f"CONNECT\naccept-version:1.2\nlogin:{login}\npasscode:{passcode}\n\n\0".encode()
    )
    return client


def answer_to(server: ServerUnderTest, login: str, passcode: str, source: str) -> bytes:
    """Log in and return the beginning of the answer."""
    with log_in(server, login, passcode, source) as client:
        return client.recv(4096)


def test_guesses_in_parallel_are_slow_and_others_are_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Of many at once few are even looked at; from elsewhere the right user is in meanwhile."""
    with (
        caplog.at_level(logging.DEBUG),
        serving(SECURED, max_login_delay=10_000) as server,
        ExitStack() as stack,
    ):
        assert b"login or passcode is wrong" in answer_to(server, "ada", "gu3ss", "127.0.0.2")
        have_failed(server, "127.0.0.2", "ada")
        began = time.monotonic()

        def is_too_late() -> bool:
            return time.monotonic() - began > 9  # guesses are answered after ten

        guesses = [
            stack.enter_context(log_in(server, "ada", "gu3ss", "127.0.0.2")) for _ in range(60)
        ]
        # All but a few are refused at once, and none of those that wait is answered yet.
        refused: list[socket.socket] = []
        while len(refused) < len(guesses) - MAX_WAITING:
            ready = select.select([one for one in guesses if one not in refused], [], [], 240)[0]
            assert ready
            for one in ready:
                assert b"try again in 10 s" in one.recv(4096) or is_too_late()
                refused.append(one)
        assert answer_to(server, "ada", "l0vel@ce", "127.0.0.3").startswith(b"CONNECTED")
        assert answer_to(server, OTHER, "bu1lder", "127.0.0.3").startswith(b"CONNECTED")
        waiting = [one for one in guesses if one not in refused]
        answered = select.select(waiting, [], [], 0)[0]
        assert not answered or is_too_late(), "a guess was answered before its time"
        assert answer_to(server, OTHER, "bu1lder", "127.0.0.2").startswith(b"CONNECTED")
    failures = [one for one in caplog.records if "a login from" in one.getMessage()]
    assert len(failures) == 1
    assert "as user 'ada' failed" in failures[0].getMessage()
    assert not re.search("gu3ss|l0vel@ce|bu1lder", caplog.text)


def test_a_user_that_disconnects_can_come_again_at_once() -> None:
    """Its place is free when its DISCONNECT is answered, though its socket is not closed yet."""
    with serving(SECURED, max_connections_per_user=1) as server, ExitStack() as stack:
        for _ in range(5):
            client = stack.enter_context(log_in(server, "ada", "l0vel@ce", "127.0.0.2"))
            assert client.recv(4096).startswith(b"CONNECTED")
            client.sendall(b"DISCONNECT\nreceipt:bye\n\n\0")
            assert b"receipt-id:bye" in read_to_the_end(client)


def test_what_follows_a_connect_that_waits_is_done_after_it() -> None:
    """A client that sends on without waiting for CONNECTED loses nothing by the wait."""
    with serving(SECURED, max_login_delay=300) as server:
        for _ in range(FREE_FAILURES + 1):
            answer_to(server, "ada", "wrong", "127.0.0.2")
        with log_in(server, "ada", "l0vel@ce", "127.0.0.2") as client:
            client.sendall(b"SEND\ndestination:/queue/a\n\nx\0DISCONNECT\nreceipt:bye\n\n\0")
            data = read_to_the_end(client)
        assert data.startswith(b"CONNECTED")
        assert b"receipt-id:bye" in data
        assert server.depth("a") == 1


def test_a_client_that_waits_is_not_read_from() -> None:
    """Whatever it sends on meanwhile is taken afterwards."""
    with serving(SECURED, max_login_delay=1_000) as server:
        have_failed(server, "127.0.0.2", "ada")
        began = time.monotonic()
        with log_in(server, "ada", "l0vel@ce", "127.0.0.2") as client:
            waits = server.server.clients.logins._waiting
            wait_until(
                lambda: (
                    server.call(lambda: sum(waits.values()))
                    or select.select([client], [], [], 0)[0]
                ),
                what="the login waits, or did",
            )
            client.sendall(b"SEND\ndestination:/queue/a\n\n" + b"x" * 200_000 + b"\0")
            client.sendall(b"DISCONNECT\nreceipt:bye\n\n\0")
            assert b"receipt-id:bye" in read_to_the_end(client)
        assert time.monotonic() - began >= 0.9, "it did not wait"
        assert server.depth("a") == 1


def test_too_much_before_connected_is_refused() -> None:
    """While it waits a client can make the broker hold little."""
    written: list[bytes] = []

    def write(data: bytes) -> int:
        written.append(data)
        return 0

    broker = CoreUnderTest(SECURED).broker
    socket = SocketDouble(broker, write, lambda: written.append(b"closed"))
    socket.answers_logins = False
    session = StompConnection(broker, StompOptions(ClientLimits()), socket, lambda: 0.0)
    session.receive(b"CONNECT\nlogin:ada\n\n\0SEND\n\n" + b"x" * 30_000)
    session.receive(b"x" * 30_000)
    assert written == []
    session.receive(b"x" * 30_000)
    assert b"too much was sent before CONNECTED" in written[0]
    assert written[1:] == [b"closed"]
    assert session.held == 0


def test_who_leaves_while_waiting_keeps_its_place_taken() -> None:
    """Leaving and coming again is no quicker; but soon the right passcode is taken."""
    with serving(SECURED, max_login_delay=1_000) as server:
        have_failed(server, "127.0.0.2", "ada")
        began = time.monotonic()
        waiting = [log_in(server, "ada", "x", "127.0.0.2") for _ in range(MAX_WAITING)]
        wait_until(lambda: server.connections == MAX_WAITING, what="all wait")
        reset = struct.pack("ii", 1, 0)
        for one in waiting:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
            one.close()
        answer = answer_to(server, "ada", "l0vel@ce", "127.0.0.2")
        assert b"try again in 1 s" in answer or time.monotonic() - began >= 1, answer
        wait_until(
            lambda: answer_to(server, "ada", "l0vel@ce", "127.0.0.2").startswith(b"CONNECTED"),
            what="the right passcode is taken",
        )


# --- what a user may


@pytest.mark.parametrize("where", ["/queue/a", "/topic/a", "a"])
@pytest.mark.parametrize("command", ["SEND", "SUBSCRIBE"])
def test_every_command_that_names_a_destination_asks_for_the_right(
    where: str, command: str
) -> None:
    """A user without roles can name none of them."""
    core = CoreUnderTest(SECURED)
    client = Client(core, login="nobody", passcode="n0thing")
    client.send(command, destination=where, id="1")
    assert "has no role with permission" in client.error()
    assert not core.broker.queues()


def test_a_transaction_asks_for_the_right_at_its_commit() -> None:
    """Nothing of it is done."""
    core = CoreUnderTest(SECURED)
    client = Client(core, login="nobody", passcode="n0thing")
    client.send("BEGIN", transaction="t")
    client.send("SEND", destination="/queue/a", transaction="t")
    client.send("COMMIT", transaction="t")
    assert "has no role with permission 'send'" in client.error()
    assert not core.journal.store.messages
    assert not core.broker.queues()


def test_failures_over_http_delay_no_client() -> None:
    """They delay the next ones over HTTP, of which fewer wait than of clients."""
    with serving(SECURED, max_login_delay=60_000) as server:
        logins = HttpLogins(server.broker, server.server)

        def ask(login: str, passcode: str) -> str:
            coming = logins.log_in(Caller("127.0.0.2", 1, login, passcode))
            return asyncio.run_coroutine_threadsafe(coming, server.loop).result(240).name

        for _ in range(FREE_FAILURES + 1):
            with pytest.raises(AuthenticationFailed):
                ask("ada", "old")
        clients = server.server.clients
        now = time.monotonic()
        assert server.call(lambda: clients.logins.begin("127.0.0.2", "ada", now)) is None
        assert answer_to(server, "ada", "l0vel@ce", "127.0.0.2").startswith(b"CONNECTED")

        def wait_for_all() -> int:
            for number, name in enumerate(names_apart(MAX_WAITING_OPERATORS_AT_ADDRESS + 1)):
                try:
                    assert clients.operator_logins.begin("127.0.0.2", name, now) is not None
                except LimitExceeded:
                    return number
            return -1

        assert server.call(wait_for_all) == MAX_WAITING_OPERATORS_AT_ADDRESS
