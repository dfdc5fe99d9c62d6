"""The parameters of an acceptor's URL that do nothing here: which change nothing, and the rest.

What acts is in ``orthia.config.acceptors``. Artemis hands what it does not know to its protocols,
which leave alone what they do not know; here a name that nobody knows is told of.
"""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Final

from orthia.config.ignored import Instead
from orthia.config.vocabulary import nearest

_ALMOST: Final = 0.85
"""How alike two names are of which one is a slip of the other: 1 is the same."""
_FALSE: Final = ("false",)
_TRUE: Final = ("true",)
_USERS_OF_THE_FILE: Final = "clients log in as the users of this file"
_WINDOW: Final = (
    "a subscription may hold prefetch-count messages and max-unacknowledged-bytes (stomp-limits)"
    " before it acknowledges"
)

CHANGES: Final[Mapping[str, Instead]] = {
    "autoStart": Instead("it is opened when the node becomes live", _TRUE),
    "connectionTtlMax": Instead("a client's heart-beats are agreed on whatever they are"),
    "connectionTtlMin": Instead("a client may ask for heart-beats of 500 ms and more"),
    "disableStompServerHeader": Instead("CONNECTED names Orthia and its version", _FALSE),
    "httpEnabled": Instead("clients connect by TCP, and cannot by HTTP", _FALSE),
    "httpUpgradeEnabled": Instead("clients connect by TCP, and cannot by HTTP", _FALSE),
    "redirect-to": Instead("clients stay on the node they connect to"),
    "router": Instead("clients stay on the node they connect to"),
    "securityDomain": Instead(_USERS_OF_THE_FILE),
    "stomp-enable-message-id": Instead("messages carry no amqMessageId", _FALSE),
    "stompConsumerCredits": Instead(_WINDOW),
    "stompConsumerWindowSize": Instead(_WINDOW),
    "stompEnableMessageId": Instead("messages carry no amqMessageId", _FALSE),
    "webSocketCompressionSupported": Instead("frames of WebSockets are never compressed", _FALSE),
}
"""What would change what happens to clients, by name."""

TLS_CHANGES: Final[Mapping[str, Instead]] = {
    "trustAll": Instead("certificates of clients are verified by trustStorePath", _FALSE),
    "trustManagerFactoryPlugin": Instead("certificates of clients are verified by trustStorePath"),
    "useDefaultSslContext": Instead("the files of this acceptor are used", _FALSE),
    "verifyHost": Instead("a client's certificate may be for any host", _FALSE),
}
"""The same, of an acceptor with ``sslEnabled``."""

AMQP_CHANGES: Final[Mapping[str, Instead]] = {
    "amqpDuplicateDetection": Instead("a message with a duplicate id is stored once", _TRUE),
    "amqpMaxFrameSize": Instead("maxFrameSize bounds the frames of AMQP clients"),
    "amqpTreatRejectAsUnmodifiedDeliveryFailed": Instead(
        "a message that is rejected goes to the dead-letter address", _FALSE
    ),
    "amqpUseModifiedForTransientDeliveryErrors": Instead(
        "a message that cannot be taken is rejected with the reason", _FALSE
    ),
    "saslLoginConfigScope": Instead(_USERS_OF_THE_FILE),
}
"""The same, of an acceptor whose protocols have AMQP."""

HARMLESS: Final = frozenset(
    (
        # Threads, buffers and the socket, which Orthia sets as it needs them.
        "actorThresholdBytes", "backlog", "batchDelay", "connect-timeout-millis", "directDeliver",
        "localAddress", "localPort", "nioRemotingThreads", "quietPeriod", "remotingThreads",
        "scheme", "shutdownTimeout", "tcpNoDelay", "tcpReceiveBufferSize", "tcpSendBufferSize",
        "useEpoll", "useGlobalWorkerPool", "useInvm", "useKQueue", "useNio",
        "useNioGlobalWorkerPool", "writeBufferHighWaterMark", "writeBufferLowWaterMark",
        # Names and metrics of Artemis' own, and what belongs to a cluster.
        "activemqServerName", "clusterConnection", "rebalanceClusterClients",
        "updateClusterClients", "updateClusterClientsOnRemove",
        # Details of HTTP.
        "httpClientIdleScanPeriod", "httpClientIdleTime", "httpRequiresSessionId",
        "httpResponseTime", "httpServerScanPeriod", "httpUpgradeEndpoint", "servletPath",
        "useServlet",
        # By which of Java's libraries TLS is spoken, and with which objects of its.
        "forceSSLParameters", "keyStoreProvider", "sslContext", "sslProvider",
        "trustStoreProvider",
        # Other protocols on the same port.
        "allowLinkStealing", "closeMqttConnectionOnPublishAuthorizationFailure",
        "defaultMaximumInFlightPublishMessages",
        "initialRemoteMaxFrameSize", "maxInactivityDuration", "maxInactivityDurationInitalDelay",
        "openWireDestinationCacheSize", "pubSubPrefix", "supportAdvisory",
        "suppressInternalManagementObjects", "useKeepAlive", "virtualTopicConsumerLruCacheMax",
    )
)  # fmt: skip
"""What changes nothing for clients."""


def mistyped_names(names: Iterable[str], secure: Iterable[str]) -> list[tuple[str, str]]:
    """Return the names that nobody knows and that are nearly one of ``secure``, with that one.

    Artemis takes them, and opens the port without what they were to ask for: TLS, say.
    """
    known = {*secure, *CHANGES, *TLS_CHANGES, *AMQP_CHANGES, *HARMLESS}
    found = []
    for name in names:
        if name not in known:
            near = get_close_matches(name, sorted(secure), n=1, cutoff=_ALMOST)
            found += [(name, one) for one in near]
    return found


def judge(
    parameters: Mapping[str, str], acting: Iterable[str], idle: Iterable[str] = ()
) -> tuple[list[str], list[tuple[str, str]]]:
    """Return the names that change nothing, and the others that do not act, with what happens.

    ``idle`` are names that act, and have nothing to act on in this URL. A name that nobody knows
    changes nothing, as in Artemis, and says so.
    """
    harmless: list[str] = []
    instead: list[tuple[str, str]] = []
    unused = {*idle, *HARMLESS}
    changes = {**CHANGES, **TLS_CHANGES, **AMQP_CHANGES}
    known = {*acting, *changes, *unused}
    for name, value in parameters.items():
        change = changes.get(name)
        if change is not None and name not in unused and value.lower() not in change.same_at:
            instead.append((name, change.happens))
        elif name not in known:
            near = nearest(name, sorted(known))
            harmless.append(f"{name}, unknown" + (f" (did you mean {near}?)" if near else ""))
        elif name in unused or change is not None:
            harmless.append(name)
    return harmless, instead
