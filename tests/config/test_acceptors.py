"""The URL of an acceptor: what acts, what is refused and what is told of."""

import re
from pathlib import Path

import pytest

from orthia import config
from orthia.broker.protocols.amqp.protocol import Amqp
from orthia.broker.protocols.registry import SERVED, served_by
from orthia.broker.protocols.stomp.protocol import Stomp
from orthia.config.acceptor_amqp import AcceptorAmqp
from orthia.config.acceptor_parameters import AMQP_CHANGES, CHANGES, HARMLESS
from orthia.config.acceptor_websocket import AcceptorWebSocket
from orthia.config.acceptors import ACTING, PROTOCOLS, parse_acceptor
from orthia.config.errors import ConfigurationError
from orthia.config.settings import AcceptorSettings, ClientLimits, Settings, VirtualTopicConsumers
from tests.support.broker_xml import broker_xml

_ROOT = Path(__file__).parents[2]


def _load(directory: Path, *urls: str) -> Settings:
    acceptors = "".join(
        f'<acceptor name="{name}">{url}</acceptor>' for name, url in zip("ab", urls, strict=False)
    )
    return config.load(broker_xml(directory, f"<acceptors>{acceptors}</acceptors>"))


def test_an_acceptor_has_limits_of_its_own(tmp_path: Path) -> None:
    """In Artemis' names; without them stomp-limits hold alone."""
    url = (
        "tcp://:1?connectionsAllowed=7;handshake-timeout=3;connectionTtl=60000;"
        "heartBeatToConnectionTtlModifier=3.5;stompMinLargeMessageSize=2048;"
        "anycastPrefix=queue/,jms.queue.;multicastPrefix=topic/;"
        "virtualTopicConsumerWildcards=Consumer.*.%3E%3B2,A.*%3B1%3BselectorAware=false"
    )
    limited, plain = _load(tmp_path, url, "tcp://127.0.0.1").acceptors
    assert limited == AcceptorSettings(
        "a",
        "127.0.0.1",
        1,
        ("STOMP", "AMQP"),
        connections_allowed=7,
        handshake_timeout=3,
        connection_ttl=60_000,
        heart_beat_to_connection_ttl_modifier=3.5,
        min_large_message_size=2_048,
        anycast_prefixes=("queue/", "jms.queue."),
        multicast_prefixes=("topic/",),
        virtual_topic_consumers=(
            VirtualTopicConsumers("Consumer.*.>", 2),
            VirtualTopicConsumers("A.*", 1),
        ),
    )
    assert plain == AcceptorSettings("b", "127.0.0.1", 61_613, ("STOMP", "AMQP"))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("Consumer.*.>;2", "has virtualTopicConsumerWildcards='Consumer.*.>'; expected the name"),
        ("Consumer.*.%3E%3B0", "='Consumer.*.>;0'; expected the name of queues"),
        ("Consumer.%3E.x%3B1", "='Consumer.>.x;1'; expected the name of queues"),
        ("Consumer..x%3B1", "='Consumer..x;1'; expected the name of queues"),
        ("a%3A%3Ab%3B1", "='a::b;1'; expected the name of queues"),
        ("", "=''; expected the name of queues"),
        ("A.*%3B2", "='A.*;2', which leaves no word for the name of a topic"),
        ("A.%3E%3B1%3BselectorAware=true", "with 'selectorAware=true'; expected nothing behind"),
    ],
)
def test_virtual_topics_that_cannot_be_read_are_refused(
    tmp_path: Path, text: str, problem: str
) -> None:
    """By what is wrong; > and ; mean something else in a URL."""
    with pytest.raises(ConfigurationError) as refused:
        _load(tmp_path, f"tcp://h:1?virtualTopicConsumerWildcards={text}".replace(">", "&gt;"))
    assert problem in str(refused.value)


def test_an_acceptor_says_how_it_speaks_websocket(tmp_path: Path) -> None:
    """Origins are read as browsers write them; an older name counts; -1 is the default."""
    url = (
        "tcp://:1?webSocketMaxFramePayloadLength=1000000;webSocketEncoderType=binary;"
        "webSocketAllowedOrigins=https://App.example.org:443/, http://[::1]:80,https://a.b:8443,null"
    )
    one, older, default = (
        parse_acceptor(None, text).settings.web_socket
        for text in (
            url,
            "tcp://:1?stompMaxFramePayloadLength=2048",
            "tcp://:1?webSocketMaxFramePayloadLength=-1;webSocketAllowedOrigins=*",
        )
    )
    origins = ("https://app.example.org", "http://[::1]", "https://a.b:8443", "null")
    assert one == AcceptorWebSocket(1_000_000, "binary", origins)
    assert older == AcceptorWebSocket(2_048)
    assert default == AcceptorWebSocket(allowed_origins=("*",))


@pytest.mark.parametrize(
    ("parameter", "complaint"),
    [
        ("webSocketMaxFramePayloadLength=0", "'0'; expected a number of bytes from 1024"),
        ("webSocketMaxFramePayloadLength=1023", "'1023'; expected a number of bytes from 1024"),
        ("webSocketMaxFramePayloadLength=64K", "'64K'; expected a number of bytes"),
        ("webSocketEncoderType=TEXT", "'TEXT'; expected binary or text"),
        ("webSocketAllowedOrigins=app.example.org", "with 'app.example.org'; expected origins"),
        ("webSocketAllowedOrigins=https://*.example.org", "with 'https://*.example.org'"),
        ("webSocketAllowedOrigins=https://a.b/page", "with 'https://a.b/page'"),
        ("webSocketAllowedOrigins=https://a.b:99999", "with 'https://a.b:99999'"),
        ("webSocketAllowedOrigin=https://a.b", "expected webSocketAllowedOrigins"),
    ],
)
def test_what_is_wrong_of_websockets_is_refused(parameter: str, complaint: str) -> None:
    """With what was expected: an origin that no browser sends would let nobody in."""
    with pytest.raises(ConfigurationError, match=re.escape(complaint)):
        parse_acceptor(None, f"tcp://:1?{parameter}")


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [
        ("tcp://0.0.0.0?port=7777", "0.0.0.0", 7777),  # noqa: S104 - not opened
        ("tcp://?host=h;port=1", "h", 1),
        ("tcp://h:1?host=h&amp;port=1", "h", 1),
        ("stomp://h?protocol=STOMP", "h", 61_613),
    ],
)
def test_host_and_port_may_be_parameters(tmp_path: Path, url: str, host: str, port: int) -> None:
    """The port that is opened is the one that was asked for, wherever it stands."""
    (acceptor,) = _load(tmp_path, url).acceptors
    assert (acceptor.host, acceptor.port) == (host, port)


def test_the_older_name_of_the_protocols_counts(tmp_path: Path) -> None:
    """A port for MQTT alone is not opened."""
    assert _load(tmp_path, "tcp://h:1?protocol=MQTT").acceptors == ()


def test_what_does_not_act_is_told_of(tmp_path: Path) -> None:
    """By name, and apart from what changes nothing; a password is in neither list."""
    settings = _load(
        tmp_path,
        "tcp://h:1?resendUnknown=true;tcpSendBufferSize=1;stompEnableMessageId=true;autoStart=true;"
        "keyStorePassword=hunter2;stompConsumerCredits=10",
    )
    told = [one.partition("acceptor 'a', ")[2] for one in settings.not_applied]
    assert told == [
        "stompConsumerCredits: " + CHANGES["stompConsumerCredits"].happens,
        "stompEnableMessageId: messages carry no amqMessageId",
    ]
    warnings = " ".join(settings.warnings)
    names = ("autoStart", "keyStorePassword", "resendUnknown, unknown", "tcpSendBufferSize")
    assert ", ".join(f"acceptor's {name} (line 1)" for name in names) in warnings
    assert "hunter2" not in warnings
    assert "hunter2" not in str(settings)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        (
            "tcp://h:1?protocols=STMP",
            "has protocols='STMP', of which 'STMP' is unknown; expected some of AMQP, CORE,"
            " HORNETQ, MQTT, OPENWIRE, STOMP; did you mean STOMP?",
        ),
        ("tcp://h:1?protocols=AMQP,SMTP", "'SMTP' is unknown"),
        ("tcp://h:1?protocols=", "'' is unknown"),
        (
            "tcp://h:1?sslEnable=true",
            "has the parameter 'sslEnable', which is unknown; expected sslEnabled",
        ),
        (
            "tcp://h:1?protocols=AMQP;amqpIdleTimeOut=5000",
            "has the parameter 'amqpIdleTimeOut', which is unknown; expected amqpIdleTimeout",
        ),
    ],
)
def test_what_is_mistyped_is_refused_where_it_stands(
    tmp_path: Path, url: str, problem: str
) -> None:
    """By file, line and element: opened without it, the port would not be what was asked for."""
    with pytest.raises(ConfigurationError) as refused:
        _load(tmp_path, url)
    assert str(refused.value).startswith(f"{tmp_path / 'broker.xml'}:1: <acceptor>: has ")
    assert problem in str(refused.value)


@pytest.mark.parametrize(
    ("parameter", "told"),
    [
        ("connection-ttl=60000", "connection-ttl, unknown (did you mean connectionTtl?)"),
        ("protcols=STOMP", "protcols, unknown (did you mean protocols?)"),
    ],
)
def test_what_nobody_knows_is_harmless_and_told_of(
    tmp_path: Path, parameter: str, told: str
) -> None:
    """Artemis takes it and does nothing with it; the port is opened without it."""
    settings = _load(tmp_path, f"tcp://h:1?{parameter}")
    assert len(settings.acceptors) == 1
    assert settings.not_applied == ()
    assert f"acceptor's {told} (line 1)" in " ".join(settings.warnings)


@pytest.mark.parametrize("url", ["tcp://h:7/", "tcp://h:7//", "tcp://h:7/?protocols=STOMP/"])
def test_a_url_may_end_with_a_slash(tmp_path: Path, url: str) -> None:
    """As people write URLs."""
    (acceptor,) = _load(tmp_path, url).acceptors
    assert (acceptor.host, acceptor.port, acceptor.protocols[0]) == ("h", 7, "STOMP")


@pytest.mark.parametrize("protocols", ["STOMP", "stomp", "CORE, Stomp ,MQTT", "STOMP,"])
def test_stomp_may_be_written_in_any_case_and_among_others(tmp_path: Path, protocols: str) -> None:
    """What is opened speaks STOMP."""
    (acceptor,) = _load(tmp_path, f"tcp://h:1?protocols={protocols}").acceptors
    (served,) = served_by(acceptor, ClientLimits())
    assert isinstance(served, Stomp)


def test_what_is_served_has_a_name_that_acceptors_may_have() -> None:
    """The names of the registry are those of the configuration."""
    assert {*SERVED} <= {*PROTOCOLS}


def test_every_parameter_is_in_one_list() -> None:
    """What acts is not told of, and what changes something is not harmless."""
    assert not {*ACTING} & {*CHANGES}
    assert not {*ACTING} & HARMLESS
    assert not {*CHANGES} & HARMLESS
    assert not {*AMQP_CHANGES} & ({*ACTING} | {*CHANGES} | HARMLESS)


def test_an_acceptor_that_is_for_others_is_read_as_artemis_does() -> None:
    """What it asks for is not refused: nobody opens it."""
    acceptor = parse_acceptor("a", "tcp://h:1?protocols=MQTT;sslEnabled=true")
    assert acceptor.ignored_because == "its protocols, MQTT, leave out STOMP and AMQP"


@pytest.mark.parametrize(
    ("url", "protocols"),
    [
        ("tcp://h:1", (Stomp, Amqp)),
        ("tcp://h:1?protocols=AMQP", (Amqp,)),
        ("tcp://h:1?protocols=CORE,AMQP,STOMP", (Amqp, Stomp)),
    ],
)
def test_what_an_acceptor_names_is_served_and_all_where_it_names_nothing(
    tmp_path: Path, url: str, protocols: tuple[type, ...]
) -> None:
    """As in Artemis, of which Orthia has two."""
    (acceptor,) = _load(tmp_path, url).acceptors
    assert tuple(map(type, served_by(acceptor, ClientLimits()))) == protocols


@pytest.mark.parametrize(
    ("protocols", "told"),
    [
        ("STOMP,AMQP", None),
        ("STOMP,MQTT", "clients of MQTT cannot connect"),
        (
            "CORE,AMQP,STOMP,OPENWIRE",
            "clients of CORE, OPENWIRE cannot connect; those of JMS can with qpid-jms, by AMQP",
        ),
    ],
)
def test_clients_that_cannot_connect_are_told_of(
    tmp_path: Path, protocols: str, told: str | None
) -> None:
    """Artemis' own broker.xml names all protocols for one port."""
    settings = _load(tmp_path, f"tcp://h:1?protocols={protocols}")
    expected = () if told is None else (f":1: acceptor 'a', protocols: {told}",)
    assert tuple(one.partition("broker.xml")[2] for one in settings.not_applied) == expected


def test_the_parameters_of_amqp_are_those_of_artemis(tmp_path: Path) -> None:
    """With Artemis' defaults, but for the size of frames."""
    url = (
        "tcp://h:1?amqpCredits=10;amqpLowCredits=3;amqpMinLargeMessageSize=2000;amqpIdleTimeout=0;"
        "maxFrameSize=4096;saslMechanisms=anonymous,PLAIN;amqpFailoverServers=a:1,[::1]:2"
    )
    (one,) = _load(tmp_path, url).acceptors
    servers = (("a", 1), ("::1", 2))
    assert one.amqp == AcceptorAmqp(10, 3, 2_000, 0, 4_096, ("PLAIN", "ANONYMOUS"), servers)
    (default,) = _load(tmp_path, "tcp://h:1?amqpCredits=200").acceptors
    assert default.amqp == AcceptorAmqp(200, 200, 102_400, 60_000, 1_048_576, ())
    (none,) = _load(tmp_path, "tcp://h:1?amqpMinLargeMessageSize=-1").acceptors
    assert none.amqp.min_large_message_size == 0


@pytest.mark.parametrize(
    ("parameter", "problem"),
    [
        ("amqpCredits=0", "amqpCredits='0'; expected a number from 1"),
        ("amqpCredits=x", "amqpCredits='x'; expected a number from 1"),
        ("amqpLowCredits=2000", "amqpLowCredits=2000 and amqpCredits=1000"),
        ("amqpMinLargeMessageSize=1k", "amqpMinLargeMessageSize='1k'; expected a number from -1"),
        ("maxFrameSize=511", "maxFrameSize='511'; expected a number from 512"),
        ("maxFrameSize=99999999", "expected 16777216 at most"),
        ("saslMechanisms=GSSAPI", "saslMechanisms='GSSAPI'; expected some of EXTERNAL"),
        ("saslMechanisms=", "saslMechanisms=''; expected some of"),
        ("amqpFailoverServers=a", "amqpFailoverServers with 'a'; expected HOST:PORT"),
        ("amqpFailoverServers=a:70000", "amqpFailoverServers with 'a:70000'; expected"),
    ],
)
def test_parameters_of_amqp_that_cannot_be_read_are_refused(
    tmp_path: Path, parameter: str, problem: str
) -> None:
    """By what is wrong, and what was expected."""
    with pytest.raises(ConfigurationError) as refused:
        _load(tmp_path, f"tcp://h:1?{parameter}")
    assert problem in str(refused.value)


def test_parameters_of_a_protocol_that_is_not_served_are_harmless(tmp_path: Path) -> None:
    """Of AMQP without it, and of STOMP without that; with it they act, or are told of."""
    stomp = _load(tmp_path, "tcp://h:1?protocols=STOMP;amqpCredits=1;amqpDuplicateDetection=false")
    assert stomp.not_applied == ()
    amqp = _load(tmp_path, "tcp://h:1?protocols=AMQP;connectionTtl=1;amqpDuplicateDetection=false")
    (told,) = amqp.not_applied
    assert "amqpDuplicateDetection: " + AMQP_CHANGES["amqpDuplicateDetection"].happens in told
    assert "acceptor's connectionTtl (line 1)" in " ".join(amqp.warnings)
