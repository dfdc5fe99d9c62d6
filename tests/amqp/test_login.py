"""How a client of AMQP begins: protocol headers, SASL, and the open of its connection."""

from dataclasses import replace

import pytest

from orthia.broker.core.errors import NotAuthorized
from orthia.broker.core.identity import Principal
from orthia.broker.protocols.amqp.frames import AMQP_ID, SASL_ID, Frame, ProtocolHeader
from orthia.broker.protocols.amqp.options import AmqpOptions
from orthia.broker.protocols.amqp.performatives import (
    Begin,
    Close,
    Open,
    SaslChallenge,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    SaslResponse,
    decode_sasl,
)
from orthia.broker.protocols.amqp.sections import Properties
from orthia.broker.protocols.amqp.values import Symbol
from orthia.config.acceptor_amqp import AcceptorAmqp
from orthia.config.settings import ClientLimits
from tests.amqp.support import LARGE_FRAME, Client, encoded
from tests.core.support import CoreUnderTest
from tests.stomp.support import PASSCODE, secured

USERS = {"ann": "sender"}
RIGHTS = {"#": {"sender": "send consume createDurableQueue createAddress"}}


def secure() -> CoreUnderTest:
    """Return a core with one user."""
    return CoreUnderTest(secured(USERS, RIGHTS))


def plain(user: str, passcode: str) -> bytes:
    """Return the response of PLAIN."""
    return f"\0{user}\0{passcode}".encode()


def test_a_client_logs_in_by_plain_and_opens() -> None:
    """It acts for its user then, with the container id as its client id."""
    client = Client(secure(), opens=False)
    assert client.log_in("PLAIN", plain("ann", PASSCODE)).code == 0
    client.header(AMQP_ID)
    client.say(Open("me"))
    opened = client.take(Open)
    assert opened.container_id == "test"
    assert opened.properties[Symbol("product")] == "orthia"
    assert (client.connection.principal.name, client.connection.principal.client_id) == (
        "ann",
        "me",
    )
    assert not client.closed


@pytest.mark.parametrize(
    ("mechanism", "response"),
    [
        ("PLAIN", plain("ann", "wrong")),
        ("PLAIN", plain("nobody", PASSCODE)),
        ("ANONYMOUS", None),
    ],
)
def test_a_login_that_fails_ends_the_connection(mechanism: str, response: bytes | None) -> None:
    """The outcome says that it failed, and not in what."""
    client = Client(secure(), opens=False)
    assert client.log_in(mechanism, response).code == 1
    assert client.closed


@pytest.mark.parametrize("is_asked", [False, True])
def test_a_user_acts_for_itself_alone(*, is_asked: bool) -> None:
    """Which it may say; whoever is to act for another is not let in as itself in silence."""
    for acts_for, code in ((b"ann", 0), (b"operator", 1)):
        client = Client(secure(), opens=False)
        response = acts_for + plain("ann", PASSCODE)
        if is_asked:
            client.header(SASL_ID)
            client.all()
            client.say_sasl(SaslInit(Symbol("PLAIN")))
            client.take(SaslChallenge)
            client.say_sasl(SaslResponse(response))
            assert client.take(SaslOutcome).code == code
        else:
            assert client.log_in("PLAIN", response).code == code
        assert client.closed is bool(code)
        assert client.connection.principal.name == ("" if code else "ann")


def test_where_security_is_off_anybody_is_let_in() -> None:
    """By whatever mechanism, and without SASL."""
    client = Client(CoreUnderTest(), opens=False)
    assert client.log_in("ANONYMOUS").code == 0
    assert Client(CoreUnderTest()).opened is not None


def test_a_client_that_can_log_in_by_none_of_the_mechanisms_is_told_of() -> None:
    """As qpid-jms without a user, where PLAIN is all. Whoever has chosen one is not told of."""
    options = AmqpOptions(ClientLimits(), AcceptorAmqp(mechanisms=("PLAIN",)))
    client = Client(secure(), options=options, opens=False)
    client.header(SASL_ID)
    client.take(SaslMechanisms)
    client.connection.connection_lost()
    assert client.socket.reasons == ["it left without a login: it was offered PLAIN (SASL)"]
    other = Client(secure(), options=options, opens=False)
    assert other.log_in("PLAIN", plain("ann", PASSCODE)).code == 0
    other.connection.connection_lost()
    assert other.socket.reasons == []


def test_without_sasl_a_client_is_a_guest_where_there_are_any() -> None:
    """Where there are none it is refused, in AMQP's own words."""
    client = Client(secure(), opens=False)
    client.header(AMQP_ID)
    opened, close = client.all()
    assert isinstance(opened, Open)
    assert opened.properties[Symbol("amqp:connection-establishment-failed")]
    assert isinstance(close, Close)
    assert close.error is not None
    assert close.error.condition == "amqp:unauthorized-access"
    assert client.closed


def test_plain_without_a_response_is_asked_for_it() -> None:
    """By an empty challenge."""
    client = Client(secure(), opens=False)
    client.header(SASL_ID)
    client.all()
    client.say_sasl(SaslInit(Symbol("PLAIN")))
    assert client.take(SaslChallenge).challenge == b""
    client.say_sasl(SaslResponse(plain("ann", PASSCODE)))
    assert client.take(SaslOutcome).code == 0


@pytest.mark.parametrize(
    ("allowed", "has_certificate", "offered"),
    [
        ((), False, ("PLAIN", "ANONYMOUS")),
        ((), True, ("EXTERNAL", "PLAIN", "ANONYMOUS")),
        (("EXTERNAL", "PLAIN"), False, ("PLAIN",)),
    ],
)
def test_mechanisms_are_offered_that_can_succeed(
    allowed: tuple[str, ...], has_certificate: bool, offered: tuple[str, ...]
) -> None:
    """EXTERNAL to who has shown a certificate; of those that the acceptor allows."""
    options = AmqpOptions(ClientLimits(), AcceptorAmqp(mechanisms=allowed))
    client = Client(CoreUnderTest(), options=options, opens=False, has_certificate=has_certificate)
    client.header(SASL_ID)
    assert client.take(SaslMechanisms).sasl_server_mechanisms == offered


@pytest.mark.parametrize(
    ("mechanism", "response"),
    [("SCRAM-SHA-1", b""), ("PLAIN", b"ann"), ("PLAIN", b"\0a\0b\0c"), ("PLAIN", b"\0\xff\0b")],
)
def test_a_login_that_cannot_be_read_is_refused(mechanism: str, response: bytes) -> None:
    """For good: whoever connects anew after a passing failure does not try it for ever."""
    client = Client(secure(), opens=False)
    assert client.log_in(mechanism, response).code == 1
    assert client.closed


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"AMQP\0\x01\x01\0", ProtocolHeader(SASL_ID)),
        (b"AMQP\x02\x01\0\0", ProtocolHeader(SASL_ID)),
        (b"AMQP\x01\x01\0\x09", ProtocolHeader(SASL_ID)),
    ],
)
def test_another_version_is_told_which_is_spoken(sent: bytes, answer: ProtocolHeader) -> None:
    """By the header that it is to begin with; then the connection ends."""
    client = Client(CoreUnderTest(), opens=False)
    client.send_bytes(sent)
    assert client.next() == answer
    assert client.closed


def test_a_login_that_is_checked_for_long_lets_nothing_in_before_it() -> None:
    """What the client sends meanwhile waits, and is not read further."""
    client = Client(secure(), opens=False)
    client.socket.answers_logins = False
    client.header(SASL_ID)
    client.all()
    client.say_sasl(SaslInit(Symbol("PLAIN"), plain("ann", PASSCODE)))
    assert client.connection.is_waiting
    client.send_bytes(ProtocolHeader(AMQP_ID).encode())
    assert client.all() == []
    assert client.socket.answered is not None
    client.socket.answered(Principal("ann", frozenset({"sender"})))
    client.core.settle()
    outcome = client.next()
    assert isinstance(outcome, Frame)
    assert decode_sasl(outcome.body) == SaslOutcome(0)
    assert client.written == b""
    assert client.waits_ended


def test_a_login_that_is_refused_later_ends_the_connection() -> None:
    """As one that is refused at once."""
    client = Client(secure(), opens=False)
    client.socket.answers_logins = False
    client.header(SASL_ID)
    client.all()
    client.say_sasl(SaslInit(Symbol("PLAIN"), plain("ann", PASSCODE)))
    assert client.socket.answered is not None
    client.socket.answered(NotAuthorized("no"))
    client.core.settle()
    assert client.take(SaslOutcome).code == 4
    assert client.closed


def test_the_open_says_what_the_broker_takes() -> None:
    """Half of the silence it bears, its frames, its sessions, and its capabilities."""
    opened = Client(CoreUnderTest()).opened
    assert opened is not None
    assert (opened.idle_time_out, opened.max_frame_size, opened.channel_max) == (
        30_000,
        LARGE_FRAME,
        1_023,
    )
    assert {*opened.offered_capabilities} == {
        "sole-connection-for-container",
        "ANONYMOUS-RELAY",
        "DELAYED_DELIVERY",
        "SHARED-SUBS",
    }


def test_the_open_says_where_the_nodes_of_the_pair_are() -> None:
    """As qpid-jms reads it, of an acceptor that was told."""
    amqp = AcceptorAmqp(failover_servers=(("a.example", 5_672), ("b.example", 5_673)))
    opened = Client(CoreUnderTest(), options=AmqpOptions(ClientLimits(), amqp)).opened
    assert opened is not None
    assert opened.properties[Symbol("failover-server-list")] == [
        {"network-host": host, "hostname": host, "port": port, "scheme": "amqp"}
        for host, port in amqp.failover_servers
    ]


def test_a_second_connection_of_a_container_is_refused_if_one_is_alone() -> None:
    """As Artemis refuses it; once the first is gone, another may come."""
    core = CoreUnderTest()
    sole = (Symbol("sole-connection-for-container"),)
    first = Client(core, desired_capabilities=sole)
    for _ in range(2):  # one that is refused frees nothing
        second = Client(core, opens=False)
        second.header(AMQP_ID)
        second.say(Open("client", desired_capabilities=sole))
        opened, close = second.all()
        assert isinstance(opened, Open)
        assert opened.properties == {Symbol("amqp:connection-establishment-failed"): True}
        assert isinstance(close, Close)
        assert close.error is not None
        assert close.error.condition == "amqp:invalid-field"
        assert close.error.info == {Symbol("invalid-field"): Symbol("container-id")}
    first.connection.connection_lost()
    assert Client(core, desired_capabilities=sole).opened is not None


def test_several_connections_may_have_one_container_id() -> None:
    """Unless one asks to be alone."""
    core = CoreUnderTest()
    assert Client(core).opened is not None
    assert Client(core).opened is not None


@pytest.mark.parametrize(
    ("said", "condition"),
    [
        (Begin(None, 0, 1, 1), "amqp:not-allowed"),
        (Open("c", max_frame_size=511), "amqp:not-allowed"),
    ],
)
def test_what_is_no_open_ends_the_connection(said: object, condition: str) -> None:
    """And so does one that asks for what cannot be."""
    client = Client(CoreUnderTest(), opens=False)
    client.header(AMQP_ID)
    client.say(said)
    assert client.error().condition == condition


def test_messages_say_who_sent_them() -> None:
    """With populate-validated-user: the user of the login, whatever the sender says."""
    core = CoreUnderTest(replace(secured(USERS, RIGHTS), populate_validated_user=True))
    client = Client(core, opens=False)
    client.log_in("PLAIN", plain("ann", PASSCODE))
    client.open(container_id="me")
    forged = encoded(
        "a",
        properties=Properties(user_id=b"operator", to="here"),
        application={"JMSXUserID": "operator", "_AMQ_VALIDATED_USER": "operator", "n": 1},
    )
    client.transfer(client.sender("orders"), forged)
    client.receiver("orders", 1)
    (message,) = client.messages()
    assert message.properties == Properties(user_id=b"ann", to="here")
    assert message.application_properties == {"n": 1}
    assert message.text == "a"
