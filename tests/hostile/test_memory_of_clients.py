"""What clients hold: counted, given back, and nobody ended but who holds it for nothing."""

import logging
import resource
import tracemalloc
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import pytest

from orthia.broker.connections import client_memory, descriptors
from orthia.broker.connections.client_memory import IDLE_SECONDS, Account, Activity, ClientMemory
from orthia.broker.core.limits.memory import SMALL_CLAIM
from orthia.broker.protocols.stomp.parser import FrameParser
from orthia.config.address_settings import AddressSettings
from orthia.config.settings import ClientLimits
from tests.core.support import ANYONE, SETTINGS, CoreUnderTest, message
from tests.core.test_server import connected, read_to_the_end, read_until, serving
from tests.stomp.support import Client
from tests.support.waiting import wait_until

# --- who has to go


@dataclass
class Holder:
    """A client that holds something."""

    held: int
    activity: Activity
    account: Account = field(default_factory=lambda: Account("somebody", 1 << 40))

    def moves(self, moved: int) -> "Holder":
        """Have it read, send or acknowledge so much by now, and look."""
        self.activity.look(IDLE_SECONDS + 1, moved, self.held)
        return self


def holder(held: int, moved: int = 0) -> Holder:
    """Return a client that has been there for a while."""
    return Holder(held, Activity(0.0)).moves(moved)


def test_of_those_that_do_nothing_the_largest_goes() -> None:
    """And only when there is no memory; who moves what it holds stays, however large."""
    memory = ClientMemory(1_000_000, 10)
    small, large, busy = holder(200_000), holder(300_000), holder(900_000, moved=4_000)
    memory.used = 999_999
    assert memory.victim([small, large, busy]) is None
    memory.used = 1_000_000
    assert memory.victim([small, large, busy]) is large
    assert memory.victim([busy]) is None
    assert memory.victim([holder(50_000)]) is None, "less than its share"


def test_of_more_than_have_a_share_the_largest_goes() -> None:
    """All have less than one, and together all there is: nobody would get anything any more."""
    memory = ClientMemory(1_000_000, 20)
    some, largest = [holder(50_000) for _ in range(19)], holder(50_001)
    memory.used = 1_000_000
    assert memory.victim([*some, largest]) is largest
    assert memory.victim([*some, holder(60_000, moved=4_000)]) in some, "not one that does much"
    memory.used = 999_999
    eves = [memory.enter("eve") for _ in range(20)]
    hers = [holder(43_749) for _ in range(19)]
    for one in (*hers, largest):
        one.account = eves[0]
    eves[0].used = 875_000
    assert memory.victim([*hers, largest]) is largest


def test_one_user_leaves_memory_to_others() -> None:
    """Its clients together have seven eighths; of them the largest idle one goes, nobody else's."""
    memory = ClientMemory(800_000, 10)
    eve, bob = memory.enter("eve"), memory.enter("bob")
    assert memory.enter("eve") is eve
    hers, his = holder(400_000), holder(500_000)
    hers.account, his.account = eve, bob
    eve.used = 699_999
    assert memory.victim([hers, his]) is None
    eve.used = 700_000
    assert eve.is_full
    assert not bob.is_full
    assert memory.victim([hers, his]) is hers
    memory.leave(eve, 400_000)
    assert memory.victim([hers, his]) is None
    memory.leave(eve, 300_000)
    assert memory.enter("eve") is not eve, "with its last client a user is forgotten"
    assert ClientMemory(800_000, 10, least_of_one=790_000).enter("eve").limit == 790_000


@pytest.fixture
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have who is ended read why, however long the test stands still before it does."""
    monkeypatch.setattr("orthia.broker.connections.connection._LINGER_SECONDS", 3_600)


@pytest.mark.usefixtures("_patient")
def test_while_one_holds_all_it_may_others_get_messages() -> None:
    """With subscriptions of very long names; only who fills the memory is held back and ended."""
    with (
        serving(max_client_bytes=8_000_000, max_body_bytes=100_000) as server,
        ExitStack() as stack,
    ):
        greedy = stack.enter_context(connected(server, source="127.0.0.2"))
        for number in range(100):
            name = b"%d" % number + b"n" * 60_000
            greedy.sendall(b"SUBSCRIBE\nid:%b\ndestination:/topic/t\n\n\0" % name)
        told = read_to_the_end(greedy)
        assert b"clients at 127.0.0.2 hold 7000000 in the broker" in told
        assert b"this one went on sending" in told
        idle = stack.enter_context(connected(server, source="127.0.0.2"))
        idle.sendall(b"SUBSCRIBE\nid:own\ndestination:/queue/own\nreceipt:own\n\n\0")
        read_until(idle, b"receipt-id:own")
        account = server.call(lambda: server.server.clients.memory.enter("clients at 127.0.0.2"))
        server.call(lambda: setattr(account, "used", account.used + account.limit))
        other = stack.enter_context(connected(server))
        other.sendall(b"SUBSCRIBE\nid:1\ndestination:/queue/a\n\n\0")
        other.sendall(b"SEND\ndestination:/queue/own\nreceipt:sent\n\nheld back\0")
        other.sendall(b"SEND\ndestination:/queue/a\n\nserved\0")
        assert b"served" in read_until(other, b"served\0")
        idle.sendall(b"BEGIN\ntransaction:t\nreceipt:begun\n\n\0")
        assert b"MESSAGE" not in read_until(idle, b"receipt-id:begun")
        server.call(lambda: setattr(account, "used", account.used - account.limit))
        assert b"held back" in read_until(idle, b"held back\0")


def test_a_client_that_has_just_come_is_not_idle() -> None:
    """It is judged by a whole span of time."""
    activity = Activity(0.0)
    judged = []
    for at, moved in ((IDLE_SECONDS - 1, 0), (IDLE_SECONDS, 0), (2 * IDLE_SECONDS, 100_000)):
        activity.look(at, moved, 1_000_000)
        judged.append(activity.is_idle)
    assert judged == [False, True, False]


def test_a_time_in_which_the_node_stood_still_makes_nobody_idle() -> None:
    """Nothing could be read from the client then; it is judged by the time it had."""
    activity = Activity(0.0)
    activity.forgive(3_600)
    activity.look(3_600 + IDLE_SECONDS - 1, 0, 1_000_000)
    assert not activity.is_idle
    activity.look(3_600 + IDLE_SECONDS, 0, 1_000_000)
    assert activity.is_idle


def test_everything_a_client_held_is_given_back() -> None:
    """Half a frame, a transaction, subscriptions, what it did not acknowledge: all of it."""
    with serving() as server:
        with connected(server) as client:
            client.sendall(
                b"SUBSCRIBE\nid:1\ndestination:/queue/a\nack:client\n\n\0"
                b"SUBSCRIBE\nid:2\ndestination:/queue/b\n\n\0UNSUBSCRIBE\nid:2\n\n\0"
                b"SEND\ndestination:/queue/a\n\n%b\0"
                b"BEGIN\ntransaction:t\n\n\0BEGIN\ntransaction:u\n\n\0"
                b"SEND\ndestination:/queue/a\ntransaction:t\n\n%b\0"
                b"SEND\ndestination:/queue/a\ntransaction:u\n\n%b\0ABORT\ntransaction:u\n\n\0"
                b"SEND\ndestination:/queue/a\nreceipt:r\n\nx\0SEND\n\nhalf" % ((b"x" * 10_000,) * 3)
            )
            read_until(client, b"receipt-id:r")
            held = server.call(lambda: server.server.clients.memory.used)
            assert 20_000 < held < 30_000, held
        wait_until(lambda: server.connections == 0, what="the client is gone")
        assert server.call(lambda: server.server.clients.memory.used) == 0


def test_while_there_is_no_memory_nothing_is_delivered_and_then_it_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody who holds it all and does nothing is ended after a while; the others then get on."""
    monkeypatch.setattr(client_memory, "IDLE_SECONDS", 0.6)
    with (
        caplog.at_level(logging.WARNING),
        serving(max_client_bytes=1_000_000) as server,
        connected(server) as hog,
        connected(server) as other,
    ):
        other.sendall(b"SUBSCRIBE\nid:1\ndestination:/queue/a\nreceipt:s\n\n\0")
        read_until(other, b"receipt-id:s")
        hog.sendall(
            b"BEGIN\ntransaction:t\n\n\0SEND\ndestination:/queue/a\ntransaction:t\nreceipt:r\n\n"
            + b"x" * 990_000
            + b"\0"
        )
        read_until(hog, b"receipt-id:r")
        other.sendall(
            b"BEGIN\ntransaction:t\n\n\0"
            b"SEND\ndestination:/queue/b\ntransaction:t\n\n%b\0"
            b"SEND\ndestination:/queue/a\nreceipt:o\n\nhello\0" % (b"y" * 20_000)
        )
        assert b"MESSAGE" not in read_until(other, b"receipt-id:o\n\n\0")
        assert b"did not read, send or acknowledge" in read_to_the_end(hog)
        read_until(other, b"\n\nhello\0")
    assert "evicting a client" in caplog.text


@pytest.mark.parametrize("destination", ["/queue/a", "/topic/a"])
def test_memory_that_was_full_for_a_moment_holds_nobody_back_for_ever(destination: str) -> None:
    """A message that came within the moment is delivered, though no look ever saw it full."""
    with serving() as server, connected(server) as client:
        client.sendall(b"SUBSCRIBE\nid:1\ndestination:%b\nreceipt:s\n\n\0" % destination.encode())
        read_until(client, b"receipt-id:s\n\n\0")

        def send_while_full() -> None:
            memory = server.server.clients.memory
            memory.used += memory.limit
            server.broker.send(ANYONE, destination, message("hello", persistent=False), None)
            memory.used -= memory.limit

        server.call(send_while_full)
        read_until(client, b"\n\nhello\0")


@pytest.mark.usefixtures("_patient")
def test_receipts_that_wait_for_the_store_count_as_memory() -> None:
    """Their ids may be as long as the headers of a frame, and thousands may wait."""
    with (
        serving(auto_commit=False, max_client_bytes=4_000_000) as server,
        connected(server) as client,
    ):
        frame = b"SEND\ndestination:/queue/a\nreceipt:" + b"r" * 60_000 + b"\n\n\0"
        client.sendall(frame * 100)
        assert b"max-client-bytes 4000000" in read_to_the_end(client)
        assert len(server.call(lambda: server.journal.waiting)) < 80


def test_half_a_frame_costs_what_it_has_however_it_came() -> None:
    """Sent in pairs of bytes, it is not held as so many objects."""
    parser = FrameParser(ClientLimits())
    list(parser.feed(b"SEND\n\n"))
    tracemalloc.start()
    try:
        for number in range(100_000):
            list(parser.feed(b"%02d" % (number % 90)))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert parser.held == 200_006
    assert held < 500_000


def test_names_count_as_memory() -> None:
    """Of subscriptions and transactions: each may be as long as the headers of a frame."""
    core = CoreUnderTest()
    client = Client(core, limits=ClientLimits(max_transaction_bytes=200_000))
    before = client.session.held
    client.send("SUBSCRIBE", destination="/topic/t", id="i" * 50_000)
    assert client.session.held - before > 150_000
    client.send("UNSUBSCRIBE", id="i" * 50_000)
    assert client.session.held == before
    for number in range(3):
        client.send("BEGIN", transaction=f"{number}" + "t" * 50_000)
    client.frames()
    client.send("BEGIN", transaction="t" * 60_000)
    assert "max-transaction-bytes" in client.error()
    assert client.session.held == 0


# --- messages that nobody acknowledges


def test_consumers_that_never_acknowledge_leave_a_little_for_each() -> None:
    """When all they hold is global-max-size, each gets a small claim and no more."""
    core = CoreUnderTest(replace(SETTINGS, global_max_size=1_000_000))
    body = "x" * 5_000
    hogs = []
    for number in range(6):
        core.send(f"/queue/{number}", *[body] * 150)
        hogs.append(core.consume(f"/queue/{number}"))
    held = [hog.held for hog in hogs]
    assert sum(held) < 1_000_000 + 6 * (SMALL_CLAIM + 10_000)
    assert min(held) >= SMALL_CLAIM, "somebody got nothing"
    # What is given back cannot be left to the table either, so it still counts.
    for hog in hogs:
        hog.end.close()
        assert hog.held == 0
    late = core.consume("/queue/0")
    assert SMALL_CLAIM <= late.held < SMALL_CLAIM + 10_000


def test_consumers_held_back_go_on_when_others_acknowledge() -> None:
    """Also those that acknowledge many at once, and wait for more before they do."""
    core = CoreUnderTest(replace(SETTINGS, global_max_size=500_000))
    body = "x" * 5_000
    core.send("/queue/a", *[body] * 100)
    core.send("/queue/b", *[body] * 50)
    hog = core.consume("/queue/a")
    batch = core.consume("/queue/b")
    assert len(batch.received) < 50
    hog.end.acknowledge(hog.received, None)
    core.settle()
    core.pass_time(1.0)
    assert len(batch.received) == 50


def test_subscribers_of_topics_are_bounded_together() -> None:
    """A message counts once for all; the one that holds most is ended, the others go on."""
    limits = ClientLimits(max_behind_bytes=10_000_000)
    core = CoreUnderTest(replace(SETTINGS, global_max_size=100_000, stomp_limits=limits))
    hog, small = core.consume("/topic/a", prefetch=1), core.consume("/topic/b", prefetch=1)
    good = [core.consume("/topic/a", auto=True) for _ in range(20)]
    for _ in range(3):
        core.send("/topic/b", "y" * 5_000)
    for _ in range(8):
        core.send("/topic/a", "x" * 9_000)
    assert not hog.failures
    core.send("/topic/a", "x" * 9_000)
    assert len(hog.failures) == 1
    assert "more than global-max-size 100000 together" in hog.failures[0]
    assert not small.failures
    assert all(len(one.received) == 9 for one in good)


def test_a_topics_message_larger_than_the_allowance_is_waited_for() -> None:
    """One alone ends nobody whose socket is busy for a moment."""
    core = CoreUnderTest(replace(SETTINGS, stomp_limits=ClientLimits(max_behind_bytes=1_000)))
    slow = core.consume("/topic/a", auto=True)
    slow.is_writable = False
    core.send("/topic/a", "x" * 5_000)
    assert not slow.failures
    slow.is_writable = True
    slow.end.resume()
    assert len(slow.received) == 1


def test_a_closed_subscriber_holds_nothing() -> None:
    """Even if a message reaches it after its end."""
    core = CoreUnderTest()
    first = core.consume("/topic/a", prefetch=1)
    core.send("/topic/a", "a", "b")
    first.end.close()
    assert core.broker.parts.factory.topic_memory.used == 0


# --- descriptors


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "raised", "fit"),
    [
        (1_024, 20_000, 4_096, 4_224, 4_096),
        (1_024, 2_000, 4_096, 2_000, 1_872),
        (20_000, 20_000, 4_096, None, 4_096),
        (1_024, -1, 4_096, 4_224, 4_096),
        (100, 100, 4_096, None, 1),
    ],
)
def test_connections_fit_the_descriptors(
    monkeypatch: pytest.MonkeyPatch,
    soft: int,
    hard: int,
    wanted: int,
    raised: int | None,
    fit: int,
) -> None:
    """The soft limit is raised as far as it may; the rest is for the database and the logs."""
    limits = [(soft, hard)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: limits.append(new))
    descriptors.raise_limit(wanted)
    assert limits[1:] == ([(raised, hard)] if raised else [])
    assert descriptors.connections_that_fit(wanted) == fit


def test_what_is_claimed_comes_to_nothing_in_the_end() -> None:
    """Delivered, given back, delivered again, rejected too often, acknowledged: each once."""
    core = CoreUnderTest(
        replace(SETTINGS, address_settings=(AddressSettings("#", "", max_delivery_attempts=2),))
    )
    core.send("/queue/a", *map(str, range(20)))
    first = core.consume("/queue/a")
    first.acknowledge("0", "1")
    first.reject("2", "3")
    first.reject("2")
    first.end.close()
    assert core.broker.parts.factory.services.budget.claimed > 0
    second = core.consume("/queue/a", auto=True)
    core.settle()
    assert len(second.received) == 17
    assert (
        core.broker.parts.factory.services.budget.claimed
        == core.broker.parts.factory.services.budget.used
        == 0
    )
