"""What clients of AMQP that mean harm, or are broken, can make the broker hold and do."""

from dataclasses import replace

import pytest

from orthia.broker.protocols.amqp.connection import AmqpConnection
from orthia.broker.protocols.amqp.frames import AMQP_ID, SASL_ID, Frame, encode_frame
from orthia.broker.protocols.amqp.options import MAX_LINKS, MAX_SESSIONS, AmqpOptions
from orthia.broker.protocols.amqp.performatives import (
    RECEIVER,
    SENDER,
    Attach,
    Begin,
    Close,
    Declared,
    Detach,
    End,
    Flow,
    Open,
    Source,
    Target,
    Transfer,
)
from orthia.config.acceptor_amqp import AcceptorAmqp
from orthia.config.address_settings import AddressFullPolicy
from orthia.config.settings import ClientLimits
from orthia.journal.errors import UnitRefused
from tests.amqp.support import WINDOW, Client, accepted, encoded
from tests.core.support import SETTINGS, CoreUnderTest, settings


def test_what_comes_before_the_login_is_bounded() -> None:
    """A frame of more than 16 KiB ends the connection at its first bytes."""
    client = Client(CoreUnderTest(), opens=False)
    client.header(SASL_ID)
    client.all()
    client.send_bytes((20_000).to_bytes(4, "big") + b"\x02\x01\0\0")
    assert client.closed
    client = Client(CoreUnderTest(), opens=False)
    client.header(AMQP_ID)
    client.send_bytes((20_000).to_bytes(4, "big") + b"\x02\0\0\0")
    assert client.error().condition == "amqp:connection:framing-error"


def test_what_is_sent_while_a_login_is_checked_is_bounded() -> None:
    """Whatever was read already: more ends the connection."""
    client = Client(CoreUnderTest(), opens=False)
    client.socket.answers_logins = False
    client.header(AMQP_ID)
    client.send_bytes(b"\0" * 10_000)
    assert not client.closed
    client.send_bytes(b"\0" * 10_000)
    assert client.closed


@pytest.mark.parametrize("where", ["nothing", "sasl", "open"])
def test_a_client_that_does_not_log_in_in_time_is_ended(where: str) -> None:
    """Wherever it stands still; not while it is not read from."""
    client = Client(CoreUnderTest(), limits=ClientLimits(connect_timeout=10_000), opens=False)
    if where == "sasl":
        client.header(SASL_ID)
    elif where == "open":
        client.header(AMQP_ID)
    client.connection.tick(9.0, is_read=False)
    client.connection.tick(18.0)
    assert not client.closed
    client.connection.tick(19.5)
    assert client.closed


def test_a_client_that_has_logged_in_may_open_its_connection_later() -> None:
    """As qpid-jms does, when its application uses it; silence is bounded as of any other."""
    limits = ClientLimits(connect_timeout=10_000)
    amqp = AcceptorAmqp(idle_timeout=60_000)
    for waits, is_ended in ((50.0, False), (61.0, True)):
        client = Client(CoreUnderTest(), options=AmqpOptions(limits, amqp), opens=False)
        assert client.log_in("ANONYMOUS").code == 0
        client.now = waits
        client.connection.tick(waits)
        assert client.closed is is_ended
        if not is_ended:
            client.header(AMQP_ID)
            client.say(Open("me"))
            assert client.take(Open).container_id == "test"


def test_a_frame_larger_than_agreed_ends_the_connection() -> None:
    """At its first bytes, before any of it is kept."""
    options = AmqpOptions(ClientLimits(), AcceptorAmqp(max_frame_size=1_024))
    client = Client(CoreUnderTest(), options=options)
    client.send_bytes((1_025).to_bytes(4, "big") + b"\x02\0\0\0")
    assert client.error().condition == "amqp:connection:framing-error"
    assert client.connection.held < 5_000


@pytest.mark.parametrize(
    "body",
    [
        b"\0\x53\x10" + b"\xd0\0\0\0\x10\xff\xff\xff\xff",  # a list of very many fields
        b"\0\x53\x12" + b"\xc0\xff\x01" * 80,  # lists in lists
        b"\0" * 200,  # descriptors of descriptors
        b"\0\x53\x99\x45",  # no performative
        b"rubbish",
    ],
)
def test_what_is_no_performative_ends_the_connection(body: bytes) -> None:
    """Its size and its depth do not matter."""
    client = Client(CoreUnderTest())
    client.send_bytes(encode_frame(body))
    assert client.error().condition == "amqp:decode-error"


def test_frames_of_another_type_end_the_connection() -> None:
    """SASL's among AMQP's, and what nobody knows."""
    client = Client(CoreUnderTest())
    client.send_bytes(encode_frame(b"", 0, 7))
    assert client.error().condition == "amqp:connection:framing-error"


def test_empty_frames_only_say_that_the_client_is_there() -> None:
    """However many."""
    client = Client(CoreUnderTest())
    client.send_bytes(encode_frame(b"") * 100)
    assert client.next() is None
    assert not client.closed


def test_the_sessions_of_a_connection_are_bounded() -> None:
    """Each counts for what it holds; a channel above the last ends the connection."""
    client = Client(CoreUnderTest())
    before = client.connection.held
    for channel in range(1, MAX_SESSIONS):
        client.say(Begin(None, 0, 1, 1), channel=channel)
    assert client.connection.held - before >= 2_000 * (MAX_SESSIONS - 1)
    client.all()
    client.say(Begin(None, 0, 1, 1), channel=MAX_SESSIONS)
    assert client.error().condition == "amqp:connection:framing-error"


def test_the_links_of_a_connection_are_bounded() -> None:
    """In all sessions together; each counts for what it holds, and its name for more."""
    client = Client(CoreUnderTest(), limits=ClientLimits(max_subscriptions=3))
    before = client.connection.held
    for _ in range(3):
        client.sender("orders", target=Target("orders"))
    assert client.connection.held - before > 3 * 3_000
    error = client.refused(Attach("x", 9, RECEIVER, source=Source("orders"), target=Target()))
    assert error.condition == "amqp:resource-limit-exceeded"
    client.say(Detach(21, closed=True))
    client.all()
    client.receiver("orders")
    held = client.connection.held
    client.say(Detach(24, closed=True))
    client.say(Attach("n" * 5_000, 9, RECEIVER, source=Source("orders"), target=Target()))
    assert client.connection.held - held > 15_000


@pytest.mark.parametrize(
    ("handle", "condition"),
    [(0, "amqp:session:handle-in-use"), (MAX_LINKS, "amqp:connection:framing-error")],
)
def test_links_that_are_refused_keep_their_handles_until_the_client_has_detached_them(
    handle: int, condition: str
) -> None:
    """Whoever never does so has no handle left, and none above the last may be used."""
    client = Client(CoreUnderTest())
    for one in range(MAX_LINKS):
        client.say(Attach(f"l{one}", one, RECEIVER, source=Source(), target=Target()))
    client.all()
    client.say(Attach("more", handle, SENDER, source=Source(), target=Target("orders")))
    last = client.all()[-1]
    assert isinstance(last, End | Close)
    assert last.error is not None
    assert last.error.condition == condition


def test_the_largest_credit_holds_as_much_as_may_be_unsettled() -> None:
    """By messages and by bytes; what is settled makes room for more."""
    limits = ClientLimits(max_unacknowledged_bytes=10_000)
    core = CoreUnderTest(replace(SETTINGS, stomp_limits=limits))
    core.send("/queue/orders", *("x" * 900 for _ in range(20)))
    client = Client(core)
    receiver = client.receiver("orders")
    client.flow(receiver, 2**32 - 1)
    first = client.messages()
    assert 4 <= len(first) <= 11
    assert client.connection.unacknowledged >= 4_000
    client.settle(*first)
    assert client.messages()


def test_credit_that_changes_all_the_time_costs_nothing() -> None:
    """Nothing is kept of what it was."""
    client = Client(CoreUnderTest())
    receiver = client.receiver("orders")
    before = client.connection.held
    for credit in range(2_000):
        client.flow(receiver, credit % 7 * 2**29)
    assert client.connection.held == before
    assert client.all() == []


def test_a_message_that_never_ends_is_bounded() -> None:
    """It counts as it comes, and its link ends once it is too large."""
    limits = ClientLimits(max_body_bytes=50_000, max_header_bytes=10_000)
    client = Client(CoreUnderTest(), limits=limits)
    sender = client.sender("orders")
    before = client.connection.held
    for at in range(3):
        client.say(
            Transfer(sender, None if at else 0, None if at else b"0", more=True), b"x" * 20_000
        )
    assert client.connection.held - before >= 60_000
    assert client.connection.sent >= 60_000
    client.say(Transfer(sender, more=True), b"x")
    detach = client.take(Detach)
    assert detach.error is not None
    assert detach.error.condition == "amqp:link:message-size-exceeded"
    assert client.connection.held < before


@pytest.mark.parametrize("frames", [1, 2])
def test_a_message_larger_than_may_be_ends_its_link(frames: int) -> None:
    """In however many frames it comes; one of the greatest size is taken."""
    limits = ClientLimits(max_body_bytes=2_000, max_header_bytes=1_000)
    core = CoreUnderTest()
    client = Client(core, limits=limits)
    sender = client.sender("orders")
    overhead = len(encoded("x" * 2_000)) - 2_000
    for at, size in enumerate((3_000, 3_001)):
        payload = encoded("x" * (size - overhead))
        first = payload[:1_000] if frames > 1 else payload
        client.say(Transfer(sender, at, b"0", 0, more=frames > 1), first)
        if frames > 1:
            client.say(Transfer(sender), payload[1_000:])
    *_, detach = client.all()
    assert isinstance(detach, Detach)
    assert detach.error is not None
    assert detach.error.condition == "amqp:link:message-size-exceeded"
    assert "max-body-bytes and max-header-bytes" in (detach.error.description or "")
    assert [len(text) for text in core.stored_texts()] == [3_000 - overhead]


def test_a_client_that_does_not_read_gets_nothing_more() -> None:
    """Until its socket takes more; then it goes on where it was."""
    core = CoreUnderTest()
    core.send("/queue/orders", *"abc")
    client = Client(core)
    receiver = client.receiver("orders")
    client.connection.set_writable(writable=False)
    client.flow(receiver, 10)
    assert client.messages() == []
    client.connection.set_writable(writable=True)
    core.settle()
    assert client.texts() == ["a", "b", "c"]


def test_a_window_that_stays_shut_holds_one_message_at_most() -> None:
    """The rest of it counts; other messages stay in their queue."""
    core = CoreUnderTest()
    core.send("/queue/orders", "x" * 5_000, "y" * 5_000)
    client = Client(core, max_frame_size=512)
    receiver = client.receiver("orders")
    before, sent = client.connection.held, client.connection.sent
    client.say(Flow(0, 1, 0, WINDOW, receiver, 0, 10))
    assert [type(one) for one in client.all()] == [Transfer, Flow]
    assert client.connection.sent == sent  # what it does not take is nothing that it sends
    held = client.connection.held - before
    assert 4_500 < held - client.connection.unacknowledged < 6_000
    client.say(Detach(receiver, closed=True))
    assert client.connection.unacknowledged == 0
    assert client.take(Detach) == Detach(receiver, closed=True)
    client.say(Flow(1, WINDOW, 0, WINDOW))
    assert client.all() == [], "the rest of it is of a link that is not there"


@pytest.mark.parametrize("how", [End(), Detach(21, closed=True)])
def test_nothing_is_held_for_what_is_over(how: object) -> None:
    """Of a message for whose rest there was no room; its session or its link is ended."""
    core = CoreUnderTest()
    core.send("/queue/orders", "x" * 5_000)
    client = Client(core, max_frame_size=512)
    before = client.connection.held
    receiver = client.receiver("orders", handle=21)
    client.say(Flow(0, 1, 0, WINDOW, receiver, 0, 10))
    assert client.connection.held - before > 4_500
    client.say(how)
    assert client.connection.held <= before


def test_a_silent_client_is_ended_after_the_time_that_was_agreed_on() -> None:
    """An empty frame keeps it; it is not silent while it is not read from."""
    client = Client(CoreUnderTest())
    connection: AmqpConnection = client.connection
    connection.tick(59.0)
    client.now = 59.0
    client.send_bytes(encode_frame(b""))
    connection.tick(110.0, is_read=False)
    connection.tick(160.0)
    assert not client.closed
    connection.tick(171.0)
    assert "amqpIdleTimeout 60000" in (client.error().description or "")


def test_time_in_which_the_node_stood_still_is_no_silence_of_its_clients() -> None:
    """They may have sent what is not read yet."""
    client = Client(CoreUnderTest())
    client.connection.tick(50.0)
    client.connection.tick(100.0, paused=45.0)
    assert not client.closed
    client.connection.tick(106.0)
    assert client.closed


def test_a_client_hears_from_the_broker_as_often_as_it_asks_for() -> None:
    """By empty frames, at half of its time."""
    client = Client(CoreUnderTest(), idle_time_out=10_000)
    client.connection.tick(4.0)
    assert client.next() is None
    for now in (5.1, 10.2, 15.3):
        client.connection.tick(now)
        client.connection.tick(now + 1)
        beat = client.next()
        assert isinstance(beat, Frame)
        assert beat.body == b""
        assert client.next() is None


def test_without_a_time_nobody_is_ended_for_silence() -> None:
    """Nor is the client told of one."""
    options = AmqpOptions(ClientLimits(), AcceptorAmqp(idle_timeout=0))
    client = Client(CoreUnderTest(), options=options)
    assert client.opened is not None
    assert client.opened.idle_time_out is None
    client.connection.tick(1_000_000.0)
    assert not client.closed


@pytest.mark.parametrize(
    ("said", "condition"),
    [
        (Open("again"), "amqp:not-allowed"),
        (Begin(None, 0, 1, 1), "amqp:not-allowed"),
    ],
)
def test_what_may_be_said_once_ends_the_connection_the_second_time(
    said: object, condition: str
) -> None:
    """And so does what is of a channel without a session."""
    client = Client(CoreUnderTest())
    client.say(said)
    assert client.error().condition == condition
    client = Client(CoreUnderTest())
    client.say(End(), channel=5)
    assert client.error().condition == "amqp:not-allowed"


def test_a_node_that_stops_answers_what_was_done_and_takes_nothing_more() -> None:
    """Without an error, which clients take for their own fault."""
    core = CoreUnderTest(auto_commit=False)
    client = Client(core)
    core.store_all()
    sender = client.sender("orders")
    core.store_all()
    client.transfer(sender, encoded("a"))
    client.all()
    core.broker.stop()
    client.transfer(sender, encoded("b"))
    assert client.all() == []
    core.store_all()
    assert accepted(client.states()) == 1
    client.connection.go_away()
    assert client.closed
    assert client.all() == []


def test_a_node_that_stops_waits_for_nothing_that_is_answered_already() -> None:
    """Nor for what needs no answer: a client with none of both is let go at once."""
    core = CoreUnderTest(
        settings("full", max_size_messages=1, address_full_policy=AddressFullPolicy.FAIL)
    )
    client = Client(core)
    sender, full = client.sender("orders"), client.sender("full")
    client.send(sender, "settled", "too", settled=True)
    client.send(full, "taken", "refused")
    core.journal.auto_commit = False
    client.send(sender, "poison")
    core.journal.refuse(UnitRefused("value out of range"))
    core.settle()
    client.receiver("orders", 2)
    first, second = client.messages()
    client.settle(first, settled=False)
    client.settle(second, state=Declared(b"no outcome"), settled=False)
    core.store_all()
    held = client.connection.held
    core.broker.stop()
    client.send(sender, "too late")
    assert client.closed
    assert held < 15_000


def test_who_is_not_served_is_told_why_wherever_it_is() -> None:
    """In AMQP's words, of SASL in its own."""
    client = Client(CoreUnderTest(), opens=False)
    assert b"AMQP\0\x01\0\0" in client.connection.farewell("too many")
    assert b"too many" in client.connection.farewell("too many")
    client = Client(CoreUnderTest())
    client.connection.shut_down("enough")
    error = client.error()
    assert (error.condition, error.description) == ("amqp:connection:forced", "enough")
