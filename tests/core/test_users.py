"""Users whose passwords are hashed: verified off the loop, remembered, and changed meanwhile."""

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import repeat

import pytest
from typing_extensions import override

from orthia.broker.connections.verifications import Verifications
from orthia.broker.core.errors import AuthenticationFailed
from orthia.broker.core.identity import Principal, Verification
from orthia.broker.security.logins import FREE_FAILURES
from orthia.broker.security.users import UserDirectory
from orthia.config.passwords import HashedPassword, hash_password, read_stored
from orthia.config.secrets import Secret
from orthia.config.security_settings import SecuritySetting, User
from tests.core.support import SETTINGS
from tests.core.test_server import PATIENCE, ServerUnderTest, read_to_the_end, serving
from tests.hostile.test_logins import answer_to, log_in
from tests.support.waiting import wait_until

STAFF = frozenset({"staff"})
SECURED = replace(
    SETTINGS,
    security_enabled=True,
    security_invalidation_interval=3_600_000,  # however long this machine stands still
    users=(User("plain", Secret("l0vel@ce"), STAFF),),
    security_settings=(SecuritySetting("#", {"send": STAFF, "consume": STAFF}),),
)


class SlowPassword(HashedPassword):
    """One whose check takes as long as the test says."""

    def __init__(self, password: str) -> None:
        super().__init__(f"slow {password}")
        self._password = password
        self.may_end = threading.Event()
        self.asked: list[str] = []
        self.at_once = 0
        self.most_at_once = 0

    @property
    def kind(self) -> str:
        """Nobody asks."""
        return "slow"

    def matches(self, candidate: str) -> bool:
        """Wait, then tell."""
        self.asked.append(candidate)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        assert self.may_end.wait(60)
        self.at_once -= 1
        return candidate == self._password


def hashed(name: str, passcode: str | None = None) -> User:
    """Return a user with a hash."""
    return User(name, read_stored(hash_password(passcode or "s3cret")), STAFF)


@pytest.fixture
def directory() -> UserDirectory:
    """A directory with one user of each kind; its time stands still."""
    found = UserDirectory(SECURED.users, lambda: 0.0, cache_size=2, cache_seconds=10)
    found.replace([hashed("ada")])
    return found


def decided(found: Principal | Verification) -> Principal:
    """Run what is to be run."""
    assert isinstance(found, Verification)
    found.run()
    return found.principal()


def test_a_hash_is_checked_elsewhere_once(directory: UserDirectory) -> None:
    """The next time it is known, right or wrong."""
    ada = decided(directory.authenticate("ada", "s3cret"))
    assert (ada.name, ada.roles) == ("ada", STAFF)
    assert isinstance(directory.authenticate("ada", "s3cret"), Principal)
    with pytest.raises(AuthenticationFailed):
        decided(directory.authenticate("ada", "wrong"))
    with pytest.raises(AuthenticationFailed):
        directory.authenticate("ada", "wrong")


@pytest.mark.parametrize("login", ["nobody", "", "plain"])
def test_names_are_not_told_by_the_time_taken(directory: UserDirectory, login: str) -> None:
    """A wrong passcode is checked against a hash whoever's it is, and then refused."""
    with pytest.raises(AuthenticationFailed, match=r"^login or passcode is wrong$"):
        decided(directory.authenticate(login, "wrong"))


def test_names_that_are_nobodys_cost_what_those_of_users_do() -> None:
    """Where hashes differ in what they cost: each has its share, and a name always the same."""
    passwords = [SlowPassword("s3cret") for _ in range(3)]
    directory = UserDirectory([], lambda: 0.0, cache_size=0, cache_seconds=0)
    directory.replace([User(f"user-{number}", one, STAFF) for number, one in enumerate(passwords)])
    names = [f"nobody-{number}" for number in range(60)]
    for one in passwords:
        one.may_end.set()
    for name in names * 2:
        with pytest.raises(AuthenticationFailed):
            decided(directory.authenticate(name, f"{name} is wrong"))
    assert all(one.asked for one in passwords)
    for one in passwords:
        assert sorted(one.asked) == sorted([*set(one.asked)] * 2)


def test_a_plain_password_is_known_at_once(directory: UserDirectory) -> None:
    """As where nobody has a hash."""
    assert isinstance(directory.authenticate("plain", "l0vel@ce"), Principal)
    alone = UserDirectory(SECURED.users, lambda: 0.0, cache_size=2, cache_seconds=10)
    with pytest.raises(AuthenticationFailed):
        alone.authenticate("ada", "s3cret")


def test_what_is_remembered_is_bounded_short_and_no_passcode(directory: UserDirectory) -> None:
    """Two verdicts at most, ten seconds, and nothing that was said or is stored in them."""
    now = [0.0]
    directory._clock = lambda: now[0]
    for passcode in ("one", "two", "s3cret"):
        found = directory.authenticate("ada", passcode)
        assert isinstance(found, Verification)
        found.run()
        try:
            found.principal()
        except AuthenticationFailed:
            continue
    assert len(directory._verdicts) == 2
    kept = repr(directory._verdicts)
    assert "two" not in kept
    assert "s3cret" not in kept
    assert isinstance(directory.authenticate("ada", "s3cret"), Principal)
    now[0] = 10.0
    assert isinstance(directory.authenticate("ada", "s3cret"), Verification)


def test_a_user_who_changes_while_verified_is_not_let_in(directory: UserDirectory) -> None:
    """Nor is one who was remembered before."""
    running = directory.authenticate("ada", "s3cret")
    assert directory.replace([hashed("ada", "n3w")]) == {"ada"}
    with pytest.raises(AuthenticationFailed):
        decided(running)
    with pytest.raises(AuthenticationFailed):
        decided(directory.authenticate("ada", "s3cret"))
    decided(directory.authenticate("ada", "n3w"))


def test_who_changed_is_told(directory: UserDirectory) -> None:
    """By password, by roles, or by being gone; not who is as before, nor whom broker.xml has."""
    ada, bob = hashed("ada"), hashed("bob")
    directory.replace([ada, bob, hashed("plain")])
    assert directory.replace([ada, bob, hashed("plain")]) == frozenset()
    assert directory.replace([ada, replace(bob, roles=frozenset())]) == {"bob"}
    assert directory.replace([]) == {"ada", "bob"}
    assert isinstance(directory.authenticate("plain", "l0vel@ce"), Principal)


def test_users_of_broker_xml_change_beside_those_of_files() -> None:
    """Whoever is in both is the one of broker.xml, as long as that has it."""
    own, of_file = User("ada", Secret("own"), STAFF), User("ada", Secret("of-file"), STAFF)
    bob = User("bob", Secret("b"), STAFF)
    directory = UserDirectory([], lambda: 0.0, cache_size=0, cache_seconds=0)
    directory.replace([of_file, bob])
    assert directory.configure([own]) == {"ada"}
    assert directory.replace([of_file]) == {"bob"}
    with pytest.raises(AuthenticationFailed):
        directory.authenticate("ada", "of-file")
    assert directory.configure([]) == {"ada"}
    assert isinstance(directory.authenticate("ada", "of-file"), Principal)


# --- on real sockets


@pytest.fixture
def server() -> Iterator[ServerUnderTest]:
    """A server with hashed users beside the plain one."""
    with serving(SECURED) as server:
        have(server, hashed("ada"), hashed("bob"))
        yield server


def have(server: ServerUnderTest, *users: User) -> frozenset[str]:
    """Have these users beside the configured one, as a node whose files were read again."""
    return server.call(lambda: server.broker.security.users.replace(users))


def test_users_with_hashes_log_in(server: ServerUnderTest) -> None:
    """And what they send with their CONNECT is done after it."""
    with log_in(server, "ada", "s3cret", "127.0.0.2") as client:
        client.sendall(b"SUBSCRIBE\nid:1\ndestination:/queue/a\n\n\0DISCONNECT\nreceipt:r\n\n\0")
        data = read_to_the_end(client)
    assert data.startswith(b"CONNECTED")
    assert b"has no role with permission 'createAddress'" in data
    assert b"login or passcode is wrong" in answer_to(server, "ada", "wrong", "127.0.0.3")
    assert b"login or passcode is wrong" in answer_to(server, "eve", "s3cret", "127.0.0.3")
    assert answer_to(server, "plain", "l0vel@ce", "127.0.0.2").startswith(b"CONNECTED")


def test_who_changed_is_ended_and_others_stay(server: ServerUnderTest) -> None:
    """With an ERROR that says why, and only once it is so."""
    with (
        log_in(server, "ada", "s3cret", "127.0.0.2") as ada,
        log_in(server, "bob", "s3cret", "127.0.0.2") as bob,
        log_in(server, "plain", "l0vel@ce", "127.0.0.2") as plain,
    ):
        for client in (ada, bob, plain):
            assert client.recv(4096).startswith(b"CONNECTED")
        names = have(server, hashed("ada", "n3w"))
        assert server.call(lambda: server.server.clients.end_users(names, "changed")) == 2
        for client in (ada, bob):
            assert b"changed" in read_to_the_end(client)
        known_as = server.server.clients.logins.known_as
        known = [known_as("127.0.0.2", one) for one in ("ada", "bob", "plain")]
        assert known == [None, None, "plain"]
        plain.sendall(b"DISCONNECT\nreceipt:bye\n\n\0")
        assert b"receipt-id:bye" in read_to_the_end(plain)
    assert answer_to(server, "ada", "n3w", "127.0.0.2").startswith(b"CONNECTED")


def test_who_is_refused_while_its_login_is_checked_is_not_let_in() -> None:
    """It sent too much meanwhile: its user's place stays free for who comes after it."""
    slow = SlowPassword("s3cret")
    slow.may_end.set()
    with serving(SECURED, max_header_bytes=1_000, max_connections_per_user=1) as server:
        have(server, User("ada", slow, STAFF))
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as client:
            connect = b"CONNECT\naccept-version:1.2\nlogin:ada\npasscode:s3cret\n\n\0"
            client.sendall(connect + b"x" * 5_000)
            assert b"too much was sent" in client.recv(4096)
            assert answer_to(server, "ada", "s3cret", "127.0.0.2").startswith(b"CONNECTED")


class UnusablePassword(SlowPassword):
    """One that this machine cannot check, as with an OpenSSL that lacks what hashed it."""

    @override
    def matches(self, candidate: str) -> bool:
        raise ValueError(candidate)


def test_a_check_that_fails_is_answered(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever it fails with; the log says it, and others log in."""
    with serving(SECURED) as server:
        users = [User("ada", UnusablePassword("s3cret"), STAFF), hashed("bob")]
        have(server, *users)
        assert b"cannot check the login" in answer_to(server, "ada", "s3cret", "127.0.0.2")
        assert answer_to(server, "bob", "s3cret", "127.0.0.2").startswith(b"CONNECTED")
        wait_until(lambda: server.connections == 0, what="they are forgotten")
    assert "checking the login of a client at 127.0.0.2 failed: ValueError" in caplog.text


def test_a_node_that_stops_leaves_who_logs_in_to_the_next(caplog: pytest.LogCaptureFixture) -> None:
    """Its checks have ended, before the first or after: the client is cut off, without a fault."""
    for has_checked in (False, True):
        with serving(SECURED) as server:
            have(server, hashed("bob"))
            if has_checked:
                assert answer_to(server, "bob", "s3cret", "127.0.0.2").startswith(b"CONNECTED")
            server.call(server.server.clients.verifications.close)
            assert answer_to(server, "bob", "s3cret!", "127.0.0.2") == b""
            wait_until(lambda: server.connections == 0, what="they are forgotten")
    assert "checking the login" not in caplog.text


def test_a_check_that_takes_long_keeps_nobody_else_waiting() -> None:
    """The loop goes on, other addresses are verified, and of one address one at a time is."""
    slow, fast = SlowPassword("s3cret"), hashed("bob")
    with serving(SECURED) as server, ExitStack() as stack:
        have(server, User("ada", slow, STAFF), fast)
        server.call(lambda: setattr(server.server.clients, "verifications", Verifications(2)))
        waiting = [
            stack.enter_context(log_in(server, "ada", f"guess {number}", "127.0.0.2"))
            for number in range(20)
        ]
        wait_until(lambda: bool(slow.asked), what="the first is verified")
        assert answer_to(server, "plain", "l0vel@ce", "127.0.0.3").startswith(b"CONNECTED")
        assert answer_to(server, "bob", "s3cret", "127.0.0.3").startswith(b"CONNECTED")
        assert len(slow.asked) == slow.most_at_once == 1
        # The wait of those that follow begins to grow as soon as it is known that it failed.
        for client in waiting[FREE_FAILURES + 8 :]:
            client.close()
        slow.may_end.set()
        first = waiting[: FREE_FAILURES + 8]
        wait_until(
            lambda: len(select.select(first, [], [], 0)[0]) >= FREE_FAILURES,
            what="the first are answered",
        )
        assert slow.most_at_once == 1
        assert server.call(lambda: len(server.server.clients.verifications._lanes)) <= 1


def test_logins_from_everywhere_keep_no_known_user_out() -> None:
    """Who has logged in from its address is checked beside them, also where a guesser is, too."""
    slow = SlowPassword("s3cret")
    with serving(SECURED) as server, ExitStack() as stack:

        def have_bob() -> None:
            """With a new salt: what was found of another hash is not remembered of this one."""
            have(server, User("ada", slow, STAFF), hashed("bob"))

        have_bob()
        for address in ("127.0.0.2", "127.0.0.3"):
            assert answer_to(server, "bob", "s3cret", address).startswith(b"CONNECTED")
        for number in range(2, 30):
            if number != 3:
                stack.enter_context(log_in(server, "ada", "a guess", f"127.0.0.{number}"))
        verifications = server.server.clients.verifications
        wait_until(lambda: slow.at_once == verifications._threads, what="all threads check")
        wait_until(lambda: len(verifications._lanes) == 27, what="all others wait for that")
        have_bob()
        assert answer_to(server, "bob", "s3cret", "127.0.0.3").startswith(b"CONNECTED")
        have_bob()
        assert answer_to(server, "bob", "wrong", "127.0.0.2").startswith(b"ERROR")
        assert answer_to(server, "bob", "s3cret", "127.0.0.2").startswith(b"CONNECTED")
        assert slow.most_at_once == verifications._threads
        slow.may_end.set()


def test_a_user_known_at_many_addresses_keeps_no_other_known_user_out() -> None:
    """It has one turn, wherever it comes from."""
    slow, slower = SlowPassword("s3cret"), SlowPassword("s3cret")
    everywhere = [f"127.0.0.{number}" for number in range(2, 30)]
    with serving(SECURED) as server, ExitStack() as stack:
        have(server, User("ada", slow, STAFF), hashed("bob"))
        slow.may_end.set()
        for address in (*everywhere, "127.0.0.99"):
            assert answer_to(server, "ada", "s3cret", address).startswith(b"CONNECTED")
        assert answer_to(server, "bob", "s3cret", "127.0.0.99").startswith(b"CONNECTED")
        have(server, User("ada", slower, STAFF), hashed("bob"))
        for address in everywhere:
            stack.enter_context(log_in(server, "ada", "a guess", address))
        wait_until(lambda: bool(slower.asked), what="the first is checked")
        assert answer_to(server, "bob", "s3cret", "127.0.0.99").startswith(b"CONNECTED")
        assert len(slower.asked) == slower.most_at_once == 1
        slower.may_end.set()


def test_known_users_have_all_threads_that_strangers_leave() -> None:
    """Clients that come back in numbers wait for no thread that is there for nobody."""
    with serving(SECURED) as server, ExitStack() as stack:
        threads = server.server.clients.verifications._threads + 1
        names = [f"user{number}" for number in range(threads)]
        first, then = ([SlowPassword(one) for _ in names] for one in ("s3cret", "n3w"))
        have(server, *map(User, names, first, repeat(STAFF)))
        for name, password in zip(names, first, strict=True):
            password.may_end.set()
            assert answer_to(server, name, "s3cret", "127.0.0.2").startswith(b"CONNECTED")
        have(server, *map(User, names, then, repeat(STAFF)))
        clients = [stack.enter_context(log_in(server, one, "n3w", "127.0.0.2")) for one in names]
        wait_until(lambda: all(one.asked for one in then), what="all are checked at once")
        for one in then:
            one.may_end.set()
        for client in clients:
            assert client.recv(4096).startswith(b"CONNECTED")


def test_who_leaves_while_verified_leaves_nothing(server: ServerUnderTest) -> None:
    """Neither a place nor a task; its turn ends with what it had begun."""
    slow = SlowPassword("s3cret")
    have(server, User("ada", slow, STAFF))
    clients: list[socket.socket] = [log_in(server, "ada", "s3cret", "127.0.0.2") for _ in range(30)]
    wait_until(lambda: server.connections == len(clients), what="all are connected")
    wait_until(lambda: bool(slow.asked), what="the first is verified")

    def cut_off() -> None:
        for one in server.server.clients.all():
            one.abort()

    server.call(cut_off)
    wait_until(lambda: not server.connections, what="all are gone")
    for client in clients:
        client.close()
    assert server.call(lambda: len(server.server.clients.verifications._lanes)) == 1
    slow.may_end.set()
    wait_until(
        lambda: not server.call(lambda: len(server.server.clients.verifications._lanes)),
        what="no turn is taken",
    )
    assert slow.asked == ["s3cret"]
    assert answer_to(server, "ada", "s3cret", "127.0.0.2").startswith(b"CONNECTED")


def test_many_of_one_user_are_verified_once(server: ServerUnderTest) -> None:
    """Clients that come back in numbers, after a takeover, wait for one check."""
    slow = SlowPassword("s3cret")
    have(server, User("ada", slow, STAFF))
    with ExitStack() as stack:
        clients = [
            stack.enter_context(log_in(server, "ada", "s3cret", "127.0.0.2")) for _ in range(50)
        ]
        slow.may_end.set()
        for client in clients:
            assert client.recv(4096).startswith(b"CONNECTED")
    assert slow.asked == ["s3cret"]
