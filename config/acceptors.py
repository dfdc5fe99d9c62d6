"""``acceptor``: Artemis' URL of a port clients connect to."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import unquote

from orthia.config.acceptor_amqp import AMQP_ACTING, acceptor_amqp
from orthia.config.acceptor_parameters import AMQP_CHANGES, TLS_CHANGES, judge, mistyped_names
from orthia.config.acceptor_tls import TLS_ACTING, AcceptorTls, acceptor_tls
from orthia.config.acceptor_websocket import WEBSOCKET_ACTING, acceptor_websocket
from orthia.config.errors import ConfigurationError
from orthia.config.secrets import Secret, is_secret, read_secret
from orthia.config.settings import AcceptorSettings, VirtualTopicConsumers
from orthia.config.vocabulary import nearest

DEFAULT_HOST: Final = "127.0.0.1"
"""Whoever wants to be reached from elsewhere says so: 0.0.0.0 is never a default."""

DEFAULT_PORT: Final = 61_613

ACTING: Final[Mapping[str, str]] = {
    "protocols": "the protocols of the port, separated by commas, of which STOMP and AMQP are"
    " served; with neither it is not opened, and without the parameter it has both",
    "host": "the host, for a URL without one",
    "port": "the port, for a URL without one",
    "connectionsAllowed": "connections through this acceptor; -1 is any number, the default",
    "handshake-timeout": "seconds until a client must have logged in; by default connect-timeout of"
    " stomp-limits",
    "connectionTtl": "milliseconds of silence after which a client without heart-beats is ended; -1"
    " is never, the default",
    "heartBeatToConnectionTtlModifier": "of how many of its heart-beats' intervals a client may be"
    " silent; 2.0 by default",
    "stompMinLargeMessageSize": "min-large-message-size of stomp-limits, for this acceptor",
    "anycastPrefix": "beginnings of destinations, separated by commas, that make the rest the name"
    " of a queue, as /queue/ always does",
    "multicastPrefix": "the same for topics, as /topic/ always does",
    "virtualTopicConsumerWildcards": "queues that get what is sent to a virtual topic, as Classic"
    " calls it: Consumer.*.%3E%3B2, which is Consumer.*.>;2, makes Consumer.A.VirtualTopic.B a"
    " queue of the topic VirtualTopic.B, whose name begins behind 2 words; several are separated"
    " by commas",
    **TLS_ACTING,
    **WEBSOCKET_ACTING,
    **AMQP_ACTING,
    "proxyProtocolEnabled": "true is refused: what a proxy says first cannot be read",
}
"""The parameters that act, with what they do."""
STOMP_ACTING: Final = frozenset(
    {
        "connectionTtl",
        "heartBeatToConnectionTtlModifier",
        "stompMinLargeMessageSize",
        "virtualTopicConsumerWildcards",
    }
)
"""Those of them that are of STOMP clients alone."""
PROTOCOLS: Final = ("AMQP", "CORE", "HORNETQ", "MQTT", "OPENWIRE", "STOMP")
"""What Artemis' acceptors may name; in either case of letters."""
SERVED_PROTOCOLS: Final = ("STOMP", "AMQP")
"""Those of them that are served, and what an acceptor has that names none."""
_OTHER_NAMES: Final = {
    "protocol": "protocols",
    "stomp-min-large-message-size": "stompMinLargeMessageSize",
    "stompMaxFramePayloadLength": "webSocketMaxFramePayloadLength",
}
"""Older names of the same."""

_URL: Final = re.compile(
    r"(?P<scheme>[a-zA-Z]+)://(?P<host>\[[0-9a-fA-F:.%]+\]|[^:/?\[\]]*)(:(?P<port>-?[0-9]{1,9}))?/*"
    r"(\?(?P<parameters>.*))?",
    re.DOTALL,
)
_LONGEST_QUOTE: Final = 40
_HTTP_URL: Final = re.compile(
    r"https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[1-9][0-9]{0,4})?", re.ASCII
)
LONGEST_URL: Final = 128
"""Of a URL that is published, which has to fit a column of a table."""
_EXPECTED: Final = "expected tcp://HOST:PORT?protocols=STOMP,AMQP"


@dataclass(frozen=True)
class Acceptor:
    """An acceptor as it was written."""

    settings: AcceptorSettings
    ignored_because: str | None
    """Why it is not opened; None if it is."""
    is_of_network: bool = True
    """Whether a client could connect to it, were it opened: to vm:// only Artemis' own can."""
    harmless: tuple[str, ...] = ()
    """Parameters that change nothing."""
    not_applied: tuple[tuple[str, str], ...] = ()
    """Parameters that would change something and do not act, with what happens instead."""


def parse_acceptor(
    name: str | None, text: str, secret: Callable[[str], Secret] = read_secret
) -> Acceptor:
    """Read the URL of an acceptor; raises ConfigurationError. ``secret`` unmasks a password.

    One whose ``protocols`` are not served is read and not opened: it is for Artemis. Without
    ``protocols`` it is for every protocol, as in Artemis.
    """
    matched = _URL.fullmatch(text.strip())
    if matched is None:
        raise ConfigurationError(f"is not an acceptor's URL; {_EXPECTED}")
    parameters = _parameters(matched["parameters"] or "")
    host = _once("host", matched["host"].strip("[]"), parameters, DEFAULT_HOST)
    port = _once("port", matched["port"] or "", parameters, str(DEFAULT_PORT))
    if re.fullmatch("-?[0-9]{1,9}", port) is None:
        raise ConfigurationError(f"has port={_shown(port)}; expected a number from 1 to 65535")
    protocols = _protocols(parameters)
    settings = AcceptorSettings(
        name or f"{host}:{port}",
        host,
        int(port),
        protocols,
        connections_allowed=_limit(parameters, "connectionsAllowed", "any number"),
        handshake_timeout=_handshake_timeout(parameters),
        connection_ttl=_limit(parameters, "connectionTtl", "any time of silence"),
        heart_beat_to_connection_ttl_modifier=_modifier(parameters),
        min_large_message_size=_number(parameters, "stompMinLargeMessageSize", "none of them"),
        anycast_prefixes=_prefixes(parameters, "anycastPrefix"),
        multicast_prefixes=_prefixes(parameters, "multicastPrefix"),
        virtual_topic_consumers=_virtual_topics(parameters),
        web_socket=acceptor_websocket(parameters),
        amqp=acceptor_amqp(parameters),
    )
    if matched["scheme"].lower() not in {"tcp", "stomp"}:
        why = f"{matched['scheme']}:// is no network port"
        return Acceptor(settings, why, is_of_network=False)
    if not {*protocols} & {*SERVED_PROTOCOLS}:
        names = ",".join(protocols)
        return Acceptor(settings, f"its protocols, {names}, leave out STOMP and AMQP")
    _refuse_unreadable(parameters)
    settings = replace(settings, tls=acceptor_tls(parameters, secret))
    both = sorted({*settings.anycast_prefixes} & {*settings.multicast_prefixes})
    if both:
        raise ConfigurationError(
            f"has {_shown(both[0])} as anycastPrefix and as multicastPrefix; expected it as one"
        )
    of_amqp = AMQP_ACTING if "AMQP" in protocols else ()
    mistyped = mistyped_names(
        parameters.keys() - ACTING.keys(), {*TLS_ACTING, *WEBSOCKET_ACTING, *of_amqp}
    )
    if mistyped:
        wrong, meant = mistyped[0]
        raise ConfigurationError(
            f"has the parameter {_shown(wrong)}, which is unknown; expected {meant}"
        )
    idle: set[str] = set()
    if settings.tls is None:
        idle = {*TLS_ACTING, *TLS_CHANGES} - {"sslEnabled"}
    if "AMQP" not in protocols:
        idle |= {*AMQP_ACTING, *AMQP_CHANGES}
    if "STOMP" not in protocols:
        idle |= STOMP_ACTING
    harmless, instead = judge(parameters, ACTING.keys() - idle, idle)
    others = _not_served(protocols)
    if others is not None:
        instead.append(("protocols", others))
    return Acceptor(settings, None, harmless=tuple(harmless), not_applied=tuple(instead))


def http_tls(text: str, secret: Callable[[str], Secret] = read_secret) -> AcceptorTls:
    """Read what ``<health>`` says of TLS: parameters of an acceptor, of which TLS's alone act.

    Raises ConfigurationError. ``secret`` unmasks a password.
    """
    parameters = {"sslEnabled": "true"} | _named(text)
    for name in parameters:
        if name not in TLS_ACTING:
            near = nearest(name, list(TLS_ACTING))
            hint = f"; did you mean {near}?" if near else ""
            raise ConfigurationError(
                f"has the parameter {_shown(name)}; expected those of TLS, separated by"
                f" semicolons, as keyStorePath=FILE{hint}"
            )
    tls = acceptor_tls(parameters, secret)
    if tls is None:
        raise ConfigurationError(
            "has sslEnabled=false; expected no such element where HTTP is to be in the clear"
        )
    return tls


def http_url(text: str) -> str:
    """Return a URL without a path, as others reach HTTP by; raises ConfigurationError."""
    url = text.rstrip("/")
    if _HTTP_URL.fullmatch(url) is None or len(url) > LONGEST_URL:
        raise ConfigurationError(
            f"is {_shown(text)}; expected http://HOST:PORT or https://HOST:PORT, of up to"
            f" {LONGEST_URL} characters"
        )
    return url


def _protocols(parameters: Mapping[str, str]) -> tuple[str, ...]:
    """Return the protocols of a port, in capitals; all that are served where none are named."""
    # A slash at the end of the URL may have come behind the parameters.
    text = parameters.get("protocols", ",".join(SERVED_PROTOCOLS)).rstrip("/")
    protocols = tuple(one.strip().upper() for one in text.split(",") if one.strip())
    for one in protocols or ("",):
        if one not in PROTOCOLS:
            near = nearest(one, list(PROTOCOLS))
            hint = f"; did you mean {near}?" if near else ""
            raise ConfigurationError(
                f"has protocols={_shown(text)}, of which {_shown(one)} is unknown;"
                f" expected some of {', '.join(PROTOCOLS)}{hint}"
            )
    return protocols


def _not_served(protocols: tuple[str, ...]) -> str | None:
    """Return what becomes of clients whose protocols a port names and has not; None for none."""
    others = [one for one in protocols if one not in SERVED_PROTOCOLS]
    if not others:
        return None
    told = f"clients of {', '.join(others)} cannot connect"
    of_jms = "AMQP" in protocols and {*others} & {"CORE", "OPENWIRE"}
    return f"{told}; those of JMS can with qpid-jms, by AMQP" if of_jms else told


def _refuse_unreadable(parameters: Mapping[str, str]) -> None:
    if parameters.get("proxyProtocolEnabled", "false").lower() == "true":
        raise ConfigurationError(
            "asks for the PROXY protocol (proxyProtocolEnabled=true), which acceptors cannot"
            " read: every client would be refused; expected it without, here and in the proxy"
        )


def _once(name: str, in_place: str, parameters: Mapping[str, str], default: str) -> str:
    """Return what stands in its place in the URL or is a parameter; not both, if they differ."""
    given = parameters.get(name, "")
    if in_place and given and in_place != given:
        raise ConfigurationError(
            f"has the {name} {_shown(in_place)} and the parameter {name}={_shown(given)};"
            " expected one of the two"
        )
    return in_place or given or default


def _limit(parameters: Mapping[str, str], name: str, unlimited: str) -> int:
    """Return a parameter that is 1 or more, or -1 for ``unlimited``, the default."""
    given = _number(parameters, name, unlimited)
    return -1 if given is None else given


def _number(parameters: Mapping[str, str], name: str, unlimited: str) -> int | None:
    """Return a parameter that is 1 or more, or -1 for ``unlimited``; None if it is not given."""
    text = parameters.get(name)
    if text is None:
        return None
    if re.fullmatch("-1|[1-9][0-9]{0,9}", text) is None:
        raise ConfigurationError(
            f"has {name}={_shown(text)}; expected a number from 1, or -1 for {unlimited}"
        )
    return int(text)


def _handshake_timeout(parameters: Mapping[str, str]) -> int | None:
    text = parameters.get("handshake-timeout")
    if text is None:
        return None
    if re.fullmatch("[1-9][0-9]{0,5}", text) is None:
        # Artemis takes 0 and less for no limit, with which sockets that say nothing pile up.
        raise ConfigurationError(
            f"has handshake-timeout={_shown(text)}; expected a number of seconds from 1"
        )
    return int(text)


def _modifier(parameters: Mapping[str, str]) -> float:
    name = "heartBeatToConnectionTtlModifier"
    text = parameters.get(name, "2.0")
    if re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,6})?", text) is None or float(text) < 1:
        # Less than 1 ends a client that beats as it promised.
        raise ConfigurationError(f"has {name}={_shown(text)}; expected a number from 1.0, as 2.0")
    return float(text)


def _prefixes(parameters: Mapping[str, str], name: str) -> tuple[str, ...]:
    return tuple(one for one in parameters.get(name, "").split(",") if one)


def _virtual_topics(parameters: Mapping[str, str]) -> tuple[VirtualTopicConsumers, ...]:
    name = "virtualTopicConsumerWildcards"
    text = parameters.get(name)
    return () if text is None else tuple(_virtual_topic(name, one) for one in text.split(","))


def _virtual_topic(name: str, text: str) -> VirtualTopicConsumers:
    pattern, *rest = [one.strip() for one in text.split(";")]
    words = pattern.split(".")
    is_pattern = all(words) and ">" not in words[:-1] and not re.search(r"[:,\s/]", pattern)
    if not is_pattern or not rest or re.fullmatch("[1-9][0-9]?", rest[0]) is None:
        raise ConfigurationError(
            f"has {name}={_shown(text)}; expected the name of queues with Classic's wildcards, and"
            " how many of its words are the consumer's: Consumer.*.>;2, of which > and ; are"
            " written %3E and %3B in a URL"
        )
    count = int(rest[0])
    if words[-1] != ">" and len(words) <= count:
        raise ConfigurationError(
            f"has {name}={_shown(text)}, which leaves no word for the name of a topic; expected"
            f" more than {count} words before the number, or > as the last"
        )
    for option in rest[1:]:
        if option.lower() != "selectoraware=false":
            raise ConfigurationError(
                f"has {name} with {_shown(option)}; expected nothing behind the number, or"
                " selectorAware=false: selectors are asked when messages are consumed"
            )
    return VirtualTopicConsumers(pattern, count)


def _shown(text: str) -> str:
    return repr(text if len(text) <= _LONGEST_QUOTE else text[:_LONGEST_QUOTE] + "...")


def _parameters(text: str) -> dict[str, str]:
    """Return the parameters; secrets only if they are known ones."""
    return {
        _OTHER_NAMES.get(name, name): value
        for name, value in _named(text).items()
        if name in ACTING or not is_secret(name)
    }


def _named(text: str) -> dict[str, str]:
    pairs = (part.partition("=") for part in re.split("[;&]", text) if part.strip())
    return {unquote(name.strip()): unquote(value.strip()) for name, _, value in pairs}
