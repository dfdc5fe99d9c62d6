# mypyc compiles this module.
"""Headers of clients' frames: which act, which are refused, which pass through to receivers.

It is one table. Connections refuse by it, docs/stomp-headers.md is generated from it, and a test
compares it with the lists of headers that have a meaning in Artemis and in Classic. A header that
would change what a client gets, and is not implemented, is refused by name: whoever moves here from
one of those learns at the first frame what this version does not do, and not from the messages.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from orthia.broker.protocols.stomp.client_frame import FLAGS, Frame
from orthia.broker.protocols.stomp.frames import ProtocolError, is_whole_number
from orthia.broker.quoting import quoted


class Rule(Enum):
    """What becomes of a header."""

    ACTS = "acts"
    PASSES = "passes"
    """Goes to the receivers unchanged; the broker does not read it."""
    REFUSED = "refused"
    """Causes an ERROR that names it, unless its value asks for what happens anyway."""
    REMOVED = "removed"
    """Is removed from a message: only the broker sets it, so that receivers can trust it."""
    NOTHING = "nothing"
    """Has no effect on what the client gets."""


@dataclass(frozen=True)
class Header:
    """One header of some frames; ``CONNECT`` stands for STOMP too."""

    name: str
    frames: tuple[str, ...]
    rule: Rule
    meaning: str
    """What it does. Of one that is refused: what it would do, continuing "which"."""
    harmless: frozenset[str] = frozenset()
    """Values of a refused one that ask for what happens anyway; letters in either case."""


EVERY_FRAME: Final = (
    *("SEND", "SUBSCRIBE", "UNSUBSCRIBE", "ACK", "NACK"),
    *("BEGIN", "COMMIT", "ABORT", "DISCONNECT"),
)
"""The frames that a connected client may send."""
_ENDS: Final = ("BEGIN", "COMMIT", "ABORT")
_OFF: Final = frozenset({"", "false"})
_ZERO: Final = frozenset({"", "0"})
_ANSWERS: Final = ("ACK", "NACK")
_OF_OTHERS: Final = (
    *("durable-subscriber-name", "activemq.subscriptionName"),
    "activemq.subcriptionName",  # as Classic spells it, too
)
_TOOLS: Final = (
    "orthia-replayed-from",
    "orthia-replayed-through",
    "orthia-replay-probe",
    "orthia-replay-mac",
)
REFUSED_FAMILY: Final = "activemq."
"""Of SUBSCRIBE: in Classic it sets the property of the consumer whose name follows."""


def _acts(frames: tuple[str, ...], meanings: Mapping[str, str]) -> tuple[Header, ...]:
    return tuple(Header(name, frames, Rule.ACTS, meaning) for name, meaning in meanings.items())


def _refused(
    frames: tuple[str, ...],
    meaning: str,
    *names: str,
    harmless: frozenset[str] = frozenset(),
) -> tuple[Header, ...]:
    return tuple(Header(name, frames, Rule.REFUSED, meaning, harmless) for name in names)


HEADERS: Final = (
    *_acts(
        ("CONNECT",),
        {
            "accept-version": "the versions the client speaks; the highest common one is taken",
            "login": "the user, where security is enabled",
            "passcode": "the user's password",
            "heart-beat": "how often the client sends, and wants to hear, at least",
            "request-id": "comes back as `response-id` of CONNECTED",
            "client-id": "whose durable subscriptions the client uses; two connections may give the"
            " same",
        },
    ),
    Header("host", ("CONNECT",), Rule.NOTHING, "there is one virtual host, as in Artemis"),
    *_acts(EVERY_FRAME, {"receipt": "asks for a RECEIPT, which comes once all is stored"}),
    *_acts(
        ("SEND",),
        {
            "destination": "`/queue/NAME`, `/topic/NAME`, NAME, `ADDRESS::QUEUE`,"
            " `/temp-queue/NAME`, `/temp-topic/NAME`, or several of those with a prefix and commas"
            " between them",
            "destination-type": "ANYCAST makes NAME a queue, MULTICAST a topic, as in Artemis",
            "transaction": "the message is sent by this transaction's COMMIT",
            "content-length": "bytes of the body, which then may have NULs",
            "persistent": "`false`: the message is in memory only; `true`, and without it: it is"
            " stored",
            "expires": "when the message expires, milliseconds since 1970 UTC; 0 never",
            "_AMQ_DUPL_ID": "a message that was sent to the same address with the same id is not"
            " stored again: see [duplicate detection](duplicates.md)",
        },
    ),
    *(
        Header(name, ("SEND",), Rule.PASSES, meaning)
        for name, meaning in {
            "content-type": "what the body is",
            "correlation-id": "which request the message answers",
            "reply-to": "where an answer is to go, for the receiver to send to; of a temporary"
            " destination what others call it. A [management](addresses.md#management) question is"
            " answered there",
            "type": "what kind of message the application says it is (JMSType)",
            "amq-msg-type": "which JMS message Classic makes of it, for its JMS receivers",
            "transformation": "how the sender wrote a JMS map or object, for the receiver to read",
        }.items()
    ),
    *_acts(
        ("SEND",),
        {
            "priority": "0 to 9, without it 4: a message is delivered before those of a lower one"
            " that wait, see [priorities](priorities.md)",
            "JMSXGroupID": "the messages of a group go to one consumer of their queue; to the next"
            " one when it leaves, and has nothing of the group any more",
            "_AMQ_GROUP_ID": "the same, as in Artemis, and wins over it",
            "JMSXGroupSeq": "-1 closes the group: its next message goes to any consumer, once this"
            " one is acknowledged",
            "_AMQ_GROUP_SEQUENCE": "the same, as in Artemis, and wins over it",
        },
    ),
    *_acts(
        ("SEND",),
        {
            "_AMQ_LVQ_NAME": "in a last value queue the message replaces the one before it with the"
            " same value, unless the queue has another last-value-key"
        },
    ),
    *_acts(
        ("SEND",),
        {
            "AMQ_SCHEDULED_TIME": "when the message is delivered, milliseconds since 1970 UTC; wins"
            " over the two below",
            "_AMQ_SCHED_DELIVERY": "the same, by Artemis' own name",
            "AMQ_SCHEDULED_DELAY": "how many milliseconds later the message is delivered",
            "AMQ_SCHEDULED_PERIOD": "how many milliseconds lie between its deliveries, as in"
            " Classic; without a delay, before the first one, too",
            "AMQ_SCHEDULED_REPEAT": "how often the message is delivered again, as in Classic; -1 is"
            " for ever",
            "AMQ_SCHEDULED_CRON": "at which times the message is delivered, again and again: five"
            " fields, in UTC; with a delay or repeats each time begins a series, as in Classic",
        },
    ),
    *_refused(
        ("SEND",), "asks for messages that are scheduled, or removes them", "AMQ_SCHEDULER_ACTION"
    ),
    *(
        Header(name, ("SEND",), Rule.REMOVED, "part of every MESSAGE, from the broker")
        for name in ("subscription", "ack", "redelivered", "timestamp")
    ),
    Header(
        "message-id",
        ("SEND",),
        Rule.REMOVED,
        "part of every MESSAGE, from the broker: the number of one queue's copy of a message, the"
        " same over redelivery, takeover and restart; what `orthia_ack` acknowledges by SQL",
    ),
    *(
        Header(name, ("SEND",), Rule.REMOVED, meaning)
        for names, meaning in (
            (
                (
                    *("_AMQ_ORIG_ADDRESS", "_AMQ_ORIG_QUEUE", "_AMQ_ORIG_MESSAGE_ID"),
                    *("_AMQ_ORIG_ROUTING_TYPE", "_AMQ_ACTUAL_EXPIRY", "original-destination"),
                ),
                "where a dead letter or an expired message was; tools send it back there",
            ),
            (("JMSXUserID", "_AMQ_VALIDATED_USER"), "who sent the message, as the broker knows it"),
            (("JMSXDeliveryCount",), "how often the message was delivered"),
            (("ingress-timestamp", "_AMQ_INGRESS_TIMESTAMP"), "when the broker got the message"),
            (
                (
                    *("_AMQ_ROUTING_TYPE", "_AMQ_PREFIX", "_AMQ_ROUTE_TO", "_AMQ_ACK_ROUTE_TO"),
                    *("_AMQ_SCALEDOWN_TO", "_AMQ_BRIDGE_DUP", "_AMQ_LARGE_COMPRESSED"),
                    "_AMQ_LARGE_SIZE",
                ),
                "what Artemis' nodes tell one another",
            ),
            (
                _TOOLS,
                "what `orthia pipeline replay` says of its messages; taken from users who have the"
                " permission `manage` on the address `orthia.replay`",
            ),
        )
        for name in names
    ),
    *_acts(
        ("SUBSCRIBE",),
        {
            "destination": "as of a SEND; of a topic also with wildcards",
            "subscription-type": "ANYCAST makes NAME a queue, MULTICAST a topic, as in Artemis",
            "id": "names the subscription; required from STOMP 1.1 on",
            "selector": "which messages it gets, see [selectors](selectors.md)",
            "activemq.selector": "the same, as in Classic; `selector` wins",
            "browser": "`true`: the messages of a queue are shown in order, and stay where they"
            " are; those that others have and did not acknowledge are shown too. A MESSAGE with"
            " `browser:end` follows the last of those that were there. Needs the permission"
            " `browse`",
            "activemq.browser": "the same",
            "ack": "`auto`, `client` or `client-individual`",
            "consumer-window-size": "bytes of messages that may be unacknowledged, as they count in"
            " memory; 0 is one message at a time, -1 as many as the limits allow; wins over the two"
            " below",
            "activemq.prefetchSize": "messages that may be unacknowledged, as in Classic, where"
            " Artemis reads bytes; 0 is one, -1 as many as the limits allow",
            "prefetch-count": "the same, as in RabbitMQ, and wins over it; without either, or with"
            " 0, `prefetch-count` of `stomp-limits`. With `ack:auto` nothing is unacknowledged, and"
            " none of the three bounds anything",
        },
    ),
    *_acts(
        ("SUBSCRIBE",),
        {
            "durable-subscription-name": "keeps the messages of a topic for a subscriber that is"
            " away, by this name and the client-id of CONNECT",
            **dict.fromkeys(_OF_OTHERS, "the same"),
            "no-local": "`true` keeps the connection's own messages from it; from a durable"
            " subscription those of its client-id",
            "activemq.noLocal": "the same",
        },
    ),
    *_refused(
        ("SUBSCRIBE",),
        "has one consumer get all messages of a queue, and others none",
        *("exclusive", "activemq.exclusive"),
        harmless=_OFF,
    ),
    *_refused(
        ("SUBSCRIBE",),
        "gives a new subscriber of a topic messages of before",
        "activemq.retroactive",
        harmless=_OFF,
    ),
    *_refused(
        ("SUBSCRIBE",),
        "has consumers of a higher priority get messages first",
        *("activemq.priority", "consumer-priority"),
        harmless=_ZERO,
    ),
    *_refused(
        ("SUBSCRIBE",),
        "drops messages of a topic for a slow subscriber; here it is disconnected",
        "activemq.maximumPendingMessageLimit",
        harmless=frozenset({"", "0", "-1"}),
    ),
    *_refused(
        ("SUBSCRIBE",),
        "converts the bodies of JMS maps and objects; here every body is delivered as it was sent",
        "transformation",
        harmless=frozenset({"", "jms-xml"}),
    ),
    Header(
        "activemq.dispatchAsync",
        ("SUBSCRIBE",),
        Rule.NOTHING,
        "which thread of Classic delivers",
    ),
    *_acts(
        ("UNSUBSCRIBE",),
        {
            "id": "which subscription",
            "destination": "which subscription, in STOMP 1.0 where it has no id",
        },
    ),
    *_acts(
        ("UNSUBSCRIBE",),
        {
            "durable-subscription-name": "the durable subscription is deleted with its messages;"
            " without it the subscription goes on keeping them",
            **dict.fromkeys(_OF_OTHERS, "the same"),
        },
    ),
    *_acts(
        _ANSWERS,
        {
            "id": "which message, by the `ack` header of its MESSAGE (STOMP 1.2)",
            "message-id": "which message (STOMP 1.0, 1.1)",
            "subscription": "of which subscription (STOMP 1.1)",
            "transaction": "done by this transaction's COMMIT; Artemis ignores such an ACK",
        },
    ),
    *_acts(_ENDS, {"transaction": "which transaction"}),
)

_REFUSED: Final[Mapping[str, Mapping[bytes, Header]]] = {
    frame: {
        one.name.encode(): one
        for one in HEADERS
        if one.rule is Rule.REFUSED and frame in one.frames
    }
    for frame in ("CONNECT", *EVERY_FRAME)
}
TOOLS_OWN: Final = frozenset(name.encode() for name in _TOOLS)
"""Headers of a SEND that are accepted from Orthia's own tools only."""
SCHEDULING: Final = frozenset(
    one.name.encode()
    for one in HEADERS
    if "SEND" in one.frames and one.name.startswith(("AMQ_SCHEDULED_", "_AMQ_SCHED_"))
)
"""Headers of a SEND that schedule its message."""
_GROUP_SEQUENCES: Final = frozenset({b"JMSXGroupSeq", b"_AMQ_GROUP_SEQUENCE"})
NOT_PASSED_ON: Final = (
    frozenset(one.name.encode() for one in HEADERS if one.rule is Rule.REMOVED)
    | {b"destination", b"content-length", b"receipt", b"transaction"}
    | SCHEDULING
)
"""Headers of a SEND that are not passed to receivers."""
LOOKED_AT: Final = (
    frozenset(_REFUSED["SEND"])
    | TOOLS_OWN
    | SCHEDULING
    | {b"destination-type", b"expires", b"priority", b"reply-to", b"_AMQ_DUPL_ID"}
    | _GROUP_SEQUENCES
)
"""Headers of a SEND that few messages have; the others need no look at their headers."""


def refuse(command: str, headers: Mapping[bytes, bytes]) -> None:
    """Raise ProtocolError for the first of a frame's headers that is refused."""
    refused = _REFUSED.get(command, {})
    for raw, value in headers.items():
        header = refused.get(raw)
        if header is not None:
            given = value.decode().strip()
            if given.lower() not in header.harmless:
                raise ProtocolError(_refusal(command, header, given))
        elif command == "SUBSCRIBE" and raw.startswith(REFUSED_FAMILY.encode()):
            name = raw.decode().strip()
            if name not in _KNOWN_OF_FAMILY:
                known = ", ".join(sorted(_KNOWN_OF_FAMILY))
                raise ProtocolError(
                    f"SUBSCRIBE has the header {quoted(name[:80])}, which is not known here;"
                    f" of this family there are {known}"
                )


def _refusal(command: str, header: Header, given: str) -> str:
    accepted = sorted(header.harmless - {""})
    shown = f" {quoted(given[:80])}" if accepted else ""
    instead = f"leave it out{f', or give {accepted[0]}' if accepted else ''}"
    return (
        f"{command} has the header {header.name}{shown}, which {header.meaning}: this version of"
        f" Orthia does not do that, so it is refused; {instead} (`orthia docs stomp-headers`)"
    )


_PRIORITIES: Final = frozenset("0123456789")
_KNOWN_OF_FAMILY: Final = frozenset(
    one.name for one in HEADERS if one.name.startswith(REFUSED_FAMILY)
)


def priority_of(text: str) -> int:
    """Return the priority of a SEND; raises ProtocolError."""
    if text.strip() not in _PRIORITIES:
        raise ProtocolError(f"header priority is {quoted(text[:80])}; expected 0 to 9")
    return int(text)


def check_group_sequence(frame: Frame) -> None:
    """Raise ProtocolError if the sequence of a group is not a number."""
    for name in _GROUP_SEQUENCES:
        text = frame.get(name)
        if text and not _is_integer(text):
            raise ProtocolError(
                f"header {name.decode()} is {quoted(text[:80])}; expected a whole number, -1 to"
                " close the group"
            )


def _is_integer(text: str) -> bool:
    return is_whole_number(text.removeprefix("-"))


def resendable(headers: Mapping[str, str]) -> dict[str, str]:
    """Return a stored message's headers without those for which a second SEND would be refused.

    Those are headers that an older Orthia accepted and ignored, and the destination's type and the
    duplicate id, which belong to the first SEND: it is sent again because somebody wants it twice.
    """
    left_out = _REFUSED["SEND"].keys() | {b"destination-type", b"_AMQ_DUPL_ID"}
    if headers.get("priority", "").strip() not in _PRIORITIES:
        left_out |= {b"priority"}
    if headers.get("persistent", "").strip().lower() not in FLAGS:
        left_out |= {b"persistent"}
    left_out |= {
        name for name in _GROUP_SEQUENCES if not _is_integer(headers.get(name.decode(), "0"))
    }
    return {name: value for name, value in headers.items() if name.encode() not in left_out}
