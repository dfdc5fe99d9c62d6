"""The management objects of Artemis and Classic that this node has, as far as it has them.

Each kind is a table of attributes, which are read from what the facade shows, and of operations,
which call the facade. What is not in the tables is refused by name.
"""

import asyncio
import base64
import binascii
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from importlib import metadata
from typing import Any, Final, NamedTuple

from typing_extensions import override

from orthia.broker.core.destinations import QUALIFIED
from orthia.broker.core.errors import NotLive
from orthia.broker.core.identity import Principal
from orthia.broker.management.errors import NotFound, NotPossible, WrongArgument
from orthia.broker.management.facade import MOST_MESSAGES_OF_A_PAGE, Management
from orthia.broker.management.http.object_names import ObjectName, quote
from orthia.broker.management.views import (
    AddressView,
    JobKind,
    JobState,
    MessageView,
    QueueView,
)
from orthia.broker.quoting import quoted
from orthia.config.address_settings import RoutingType
from orthia.config.settings import Role, Settings

ALONE: Final = "Primary Only"
"""What Artemis calls the policy of HA of a broker that shares its store with no other."""
ARTEMIS: Final = "org.apache.activemq.artemis"
CLASSIC: Final = "org.apache.activemq"
JOB_SECONDS: Final = 50.0
"""How long an operation on many messages is waited for, which goes on after that."""
MOST_BROWSED: Final = 10_000
"""How far into a queue pages are looked for."""
_BROWSED: Final = 200
"""Messages that browse() returns, as Artemis' management-browse-page-size."""
_TEXT_TYPE: Final = 3
"""What Artemis calls a text message by; the bodies of others are base64."""

STRING: Final = "java.lang.String"
STRINGS: Final = "[Ljava.lang.String;"
LONG, INT, BOOLEAN, VOID = "long", "int", "boolean", "void"
SOME_INT, SOME_LONG, SOME_FLAG = "java.lang.Integer", "java.lang.Long", "java.lang.Boolean"
"""Null is one of them."""
MAP: Final = "java.util.Map"
_NOT_PLAIN: Final = re.compile('[,=:"*?\\n]')


class Attribute(NamedTuple):
    """One attribute of a kind of objects."""

    type: str
    get: Callable[[Any], Any]
    """Takes what ``source`` is of."""
    source: str = "view"


class Operation(NamedTuple):
    """One operation of a kind of objects, with one signature."""

    name: str
    parameters: Mapping[str, str]
    """Names and types."""
    result: str
    perform: Callable[..., Awaitable[Any]]
    """Takes the facade, who asks, the object, and the arguments by name."""

    @property
    def signature(self) -> str:
        """The name with the types of the arguments."""
        return f"{self.name}({','.join(self.parameters.values())})"


class Kind(NamedTuple):
    """A kind of objects."""

    domain: str
    keys: tuple[str, ...]
    """In the order in which names are written."""
    fixed: Mapping[str, str]
    """Keys that say what kind it is."""
    broker_key: str
    attributes: Mapping[str, Attribute]
    operations: tuple[Operation, ...]

    @property
    def is_quoted(self) -> bool:
        """Whether values that are not fixed are written in quotes."""
        return self.domain == ARTEMIS

    def may_match(self, name: ObjectName) -> bool:
        """Return whether an object of this kind may have a name."""
        if not name.domain.matches(self.domain):
            return False
        named, own = name.keys.keys(), set(self.keys)
        if not (named <= own if name.open else named == own):
            return False
        return all(name.keys[key].matches(one) for key, one in self.fixed.items() if key in named)


class NodeSeen(NamedTuple):
    """What is known of a node whether it is live or not."""

    name: str
    is_live: bool
    is_backup: bool
    """Whether it waits for the live node to end."""
    ha_policy: str
    """What it is configured to be, which a takeover does not change, by Artemis' name."""
    node_id: str | None = None
    uptime_ms: int = 0


class Subject(NamedTuple):
    """One object."""

    kind: Kind
    values: Mapping[str, str]
    """By key, those that are fixed left out."""

    @property
    def target(self) -> str:
        """The name of the queue, else the address."""
        last = self.kind.keys[-1]
        return self.values.get(last, self.values.get("address", ""))

    def is_named(self, name: ObjectName) -> bool:
        """Return whether a name is of this object, whatever it says the broker is called."""
        keys = {**self.kind.fixed, **self.values}
        return name.matches(self.kind.domain, keys, self.kind.broker_key)

    def properties(self, *, canonical: bool) -> str:
        """Return its keys and values, sorted if ``canonical``."""
        keys = sorted(self.kind.keys) if canonical else self.kind.keys
        return ",".join(f"{key}={self._value(key)}" for key in keys)

    def _value(self, key: str) -> str:
        if key in self.kind.fixed:
            return self.kind.fixed[key]
        value = self.values[key]
        # Classic has no quotes; what could not be read without them has some nevertheless.
        return quote(value) if self.kind.is_quoted or _NOT_PLAIN.search(value) else value

    def name(self, *, canonical: bool) -> str:
        """Return its name."""
        return f"{self.kind.domain}:{self.properties(canonical=canonical)}"


# --- attributes


def _percent(part: int, whole: int) -> int:
    return min(100, 100 * part // whole) if whole > 0 else 0


def uptime(milliseconds: int) -> str:
    """Return a duration in words, as Artemis does: its two largest units."""
    seconds = milliseconds / 1_000
    if seconds < 60:
        return f"{seconds:.3f} seconds"
    minutes = int(seconds // 60)
    parts = ((minutes // 1_440, "day"), (minutes // 60 % 24, "hour"), (minutes % 60, "minute"))
    said = [f"{number} {unit}{'s' if number != 1 else ''}" for number, unit in parts if number]
    return " ".join(said[:2])


def _status(seen: NodeSeen) -> str:
    server = {
        "state": "STARTED",
        "version": version(),
        "nodeId": seen.node_id,
        "identity": seen.name,
        "uptime": uptime(seen.uptime_ms),
    }
    return json.dumps({"server": server}, separators=(",", ":"))


def ha_policy_of(settings: Settings) -> str:
    """Return what a node is configured to be, by Artemis' name."""
    if not settings.persistence_enabled:
        return ALONE
    is_backup = settings.ha_policy.role is Role.BACKUP
    return "Shared Store Backup" if is_backup else "Shared Store Primary"


def version() -> str:
    """Return the version of this node."""
    return metadata.version("orthia")


def _text(get: Callable[[Any], Any], source: str = "view") -> Attribute:
    return Attribute(STRING, get, source)


def _long(get: Callable[[Any], Any], source: str = "view") -> Attribute:
    return Attribute(LONG, get, source)


def _flag(get: Callable[[Any], Any], source: str = "view") -> Attribute:
    return Attribute(BOOLEAN, get, source)


def _names(get: Callable[[Any], Any], source: str = "view") -> Attribute:
    return Attribute(STRINGS, get, source)


_OF_BROKER: Final = {
    "Name": _text(lambda one: one.name, "node"),
    "Version": _text(lambda _: version(), "node"),
    "Status": _text(_status, "node"),
    "Active": _flag(lambda one: one.is_live, "node"),
    "Started": _flag(lambda _: True, "node"),
    "Backup": _flag(lambda one: one.is_backup, "node"),
    "SharedStore": _flag(lambda one: one.ha_policy != ALONE, "node"),
    "HAPolicy": _text(lambda one: one.ha_policy, "node"),
    "NodeID": _text(lambda one: one.node_id, "overview"),
    "Uptime": _text(lambda one: uptime(one.uptime_ms), "overview"),
    "UptimeMillis": _long(lambda one: one.uptime_ms, "overview"),
    "TotalMessageCount": _long(lambda one: one.messages, "overview"),
    "TotalMessagesAdded": _long(lambda one: one.added, "overview"),
    "TotalMessagesAcknowledged": _long(lambda one: one.acknowledged, "overview"),
    "TotalConsumerCount": _long(lambda one: one.consumers, "overview"),
    "ConnectionCount": Attribute(INT, lambda one: one.connections, "overview"),
    "QueueCount": Attribute(INT, lambda one: one.queues, "overview"),
    "AddressCount": Attribute(INT, lambda one: one.addresses, "overview"),
    "QueueNames": _names(lambda found: sorted(one.name for one in found), "queues"),
    "AddressNames": _names(lambda found: sorted(one.name for one in found), "addresses"),
    "AddressMemoryUsage": _long(lambda one: one.messages_bytes, "memory"),
    "AddressMemoryUsagePercentage": Attribute(
        INT, lambda one: _percent(one.messages_bytes, one.messages_limit), "memory"
    ),
    "GlobalMaxSize": _long(lambda one: one.messages_limit, "memory"),
}
_OF_ADDRESS: Final = {
    "Address": _text(lambda one: one.name),
    "RoutingTypes": _names(lambda one: [kind.value for kind in one.routing_types]),
    "RoutingTypesAsJSON": _text(lambda one: json.dumps([kind.value for kind in one.routing_types])),
    "QueueNames": _names(lambda one: list(one.queues)),
    "BindingNames": _names(lambda one: list(one.queues)),
    "QueueCount": _long(lambda one: len(one.queues)),
    "MessageCount": _long(lambda one: one.messages),
    "AddressSize": _long(lambda one: one.bytes),
    "AddressLimitPercent": Attribute(INT, lambda one: _percent(one.bytes, one.max_size_bytes)),
    "Paused": _flag(lambda one: one.paused),
    "AutoCreated": _flag(lambda one: not (one.configured or one.created)),
    "Temporary": _flag(lambda one: one.temporary),
}
_OF_QUEUE: Final = {
    "Name": _text(lambda one: one.name),
    "Address": _text(lambda one: one.address),
    "RoutingType": _text(lambda one: one.routing_type.value),
    "MessageCount": _long(lambda one: one.messages + one.scheduled),
    "ConsumerCount": Attribute(INT, lambda one: one.consumers),
    "DeliveringCount": Attribute(INT, lambda one: one.delivering),
    "ScheduledCount": _long(lambda one: one.scheduled),
    "MessagesAdded": _long(lambda one: one.added),
    "MessagesAcknowledged": _long(lambda one: one.acknowledged),
    "MessagesExpired": _long(lambda one: one.expired),
    "MessagesKilled": _long(lambda one: one.killed),
    "PersistentSize": _long(lambda one: one.bytes),
    "FirstMessageTimestamp": Attribute("java.lang.Long", lambda one: one.oldest_ms),
    "Durable": _flag(lambda one: one.durable),
    "Temporary": _flag(lambda one: one.temporary),
    "Paused": _flag(lambda one: one.paused),
    "ConfigurationManaged": _flag(lambda one: one.configured),
    "Filter": _text(lambda one: one.filter),
    "Exclusive": _flag(lambda one: one.exclusive),
    "LastValue": _flag(lambda one: one.last_value_key is not None),
    "LastValueKey": _text(lambda one: one.last_value_key),
    "RingSize": _long(lambda one: -1 if one.ring_size is None else one.ring_size),
    "MaxConsumers": Attribute(
        INT, lambda one: -1 if one.max_consumers is None else one.max_consumers
    ),
    "User": _text(lambda one: one.user),
}
_OF_CLASSIC_BROKER: Final = {
    "BrokerName": _text(lambda one: one.name, "overview"),
    "BrokerVersion": _text(lambda _: version(), "overview"),
    "Uptime": _text(lambda one: uptime(one.uptime_ms), "overview"),
    "UptimeMillis": _long(lambda one: one.uptime_ms, "overview"),
    "TotalMessageCount": _long(lambda one: one.messages, "overview"),
    "TotalConsumerCount": _long(lambda one: one.consumers, "overview"),
    "TotalEnqueueCount": _long(lambda one: one.added, "overview"),
    "TotalDequeueCount": _long(lambda one: one.acknowledged, "overview"),
    "CurrentConnectionsCount": Attribute(INT, lambda one: one.connections, "overview"),
    "MemoryPercentUsage": Attribute(
        INT, lambda one: _percent(one.messages_bytes, one.messages_limit), "memory"
    ),
    "Queues": Attribute(
        "[Ljavax.management.ObjectName;",
        lambda found: [{"objectName": one} for one in _classic_names(*found)],
        "named-queues",
    ),
    "Topics": Attribute(
        "[Ljavax.management.ObjectName;",
        lambda found: [{"objectName": one} for one in _classic_topic_names(*found)],
        "named-addresses",
    ),
}
_OF_CLASSIC_HEALTH: Final = {
    "CurrentStatus": _text(
        lambda one: "The store is behind" if one.journal_full else "Good", "overview"
    ),
}
_OF_CLASSIC_QUEUE: Final = {
    "Name": _text(lambda one: one.name),
    "QueueSize": _long(lambda one: one.messages),
    "ConsumerCount": _long(lambda one: one.consumers),
    "InFlightCount": _long(lambda one: one.delivering),
    "EnqueueCount": _long(lambda one: one.added),
    "DequeueCount": _long(lambda one: one.acknowledged),
    "ExpiredCount": _long(lambda one: one.expired),
    "Paused": _flag(lambda one: one.paused),
}


_OF_CLASSIC_TOPIC: Final = {
    "Name": _text(lambda one: one.name),
    "ConsumerCount": _long(lambda one: one.subscribers + one.durable_consumers),
    "EnqueueCount": _long(lambda one: one.published),
    "Paused": _flag(lambda one: one.paused),
}


# --- operations on messages


async def _job(
    node: Management, who: Principal, subject: Subject, kind: JobKind, **said: Any
) -> int:
    """Do something with many messages, and return with how many; raises NotPossible."""
    job = await node.start_job(who, kind, **said or {"queue": subject.target})
    try:
        async with asyncio.timeout(JOB_SECONDS):
            job = await node.finished(who, job.id)
    except TimeoutError:
        raise NotPossible(
            f"job {job.id} goes on after {JOB_SECONDS:g} s: ask for it at /api/v1/jobs/{job.id}"
        ) from None
    if job.state is not JobState.DONE:
        reason = "" if job.reason is None else f": {job.reason}"
        raise NotPossible(f"job {job.id} is {job.state.value} after {job.done} messages{reason}")
    return job.done


def _of_queue(
    kind: JobKind, *, is_one: bool = False, empty: JobKind | None = None
) -> Callable[..., Awaitable[Any]]:
    """Return what does something with messages of a queue: those of a filter, or ``is_one``.

    Without a filter they are all, which is of the kind ``empty`` if that is another.
    """

    async def perform(
        node: Management,
        who: Principal,
        subject: Subject,
        *,
        filter: str | None = None,  # noqa: A002 - as Artemis names it
        messageID: int | None = None,  # noqa: N803
        otherQueueName: str | None = None,  # noqa: N803
        newPriority: int | None = None,  # noqa: N803
        rejectDuplicates: bool = False,  # noqa: N803
        flushLimit: int = 0,  # noqa: N803
    ) -> Any:
        del flushLimit  # steps are as large as they may be
        if rejectDuplicates:
            raise WrongArgument("rejectDuplicates", "duplicates are not looked for in a move")
        said: dict[str, Any] = {"queue": subject.target}
        if otherQueueName is not None:
            said["target"] = otherQueueName
        if newPriority is not None:
            said["priority"] = newPriority
        if not is_one:
            chosen = (filter or "").strip() or None
            which = empty if empty is not None and chosen is None else kind
            return await _job(node, who, subject, which, selector=chosen, **said)
        try:
            return await _job(node, who, subject, kind, ids=[messageID], **said) == 1
        except NotFound as error:
            if error.what == "message":
                return False
            raise

    return perform


async def _count(
    node: Management,
    who: Principal,
    subject: Subject,
    *,
    filter: str | None = None,  # noqa: A002 - as Artemis names it
) -> int:
    return await node.count(who, subject.target, filter)


async def _browse(
    node: Management,
    who: Principal,
    subject: Subject,
    *,
    page: int = 1,
    pageSize: int = _BROWSED,  # noqa: N803
    filter: str | None = None,  # noqa: A002 - as Artemis names it
) -> list[dict[str, Any]]:
    if page < 1 or pageSize < 1 or page * pageSize > MOST_BROWSED:
        raise WrongArgument(
            "page",
            f"page {page} of {pageSize} messages is not among the first {MOST_BROWSED}: browse by"
            " /api/v1/queues/NAME/messages",
        )
    skipped, after, found = (page - 1) * pageSize, None, list[MessageView]()
    wanted = page * pageSize
    seen = 0
    while seen < wanted:
        some = await node.browse(
            who,
            subject.target,
            filter,
            after,
            min(wanted - seen, MOST_MESSAGES_OF_A_PAGE),
            body_bytes=1_024,
        )
        found += some.messages[max(0, skipped - seen) :]
        seen += len(some.messages)
        after = some.next
        if after is None:
            break
    return [_message(one) for one in found]


def _message(one: MessageView) -> dict[str, Any]:
    """Return a message as Artemis' browse shows it."""
    shown: dict[str, Any] = {
        "messageID": str(one.id),
        "address": one.address,
        "durable": one.durable,
        "expiration": one.expires_ms,
        "priority": one.priority,
        "redelivered": one.attempts > 0,
        "timestamp": one.timestamp_ms,
        "largeMessage": one.large,
        "persistentSize": one.size,
    }
    strings, numbers, flags = dict[str, Any](), dict[str, Any](), dict[str, Any]()
    for name, value in one.properties.items():
        if isinstance(value, bool):
            flags[name] = value
        elif isinstance(value, int | float):
            numbers[name] = value
        else:
            strings[name] = value.hex() if isinstance(value, bytes) else value
    shown |= {"StringProperties": strings, "BooleanProperties": flags}
    shown["LongProperties"] = {name: one for name, one in numbers.items() if isinstance(one, int)}
    shown["DoubleProperties"] = {
        name: one for name, one in numbers.items() if isinstance(one, float)
    }
    if one.body is not None:
        try:
            shown["text"] = one.body.decode()
        except UnicodeDecodeError:
            shown["BodyPreview"] = list(one.body)
    return shown


async def _send(
    node: Management,
    who: Principal,
    subject: Subject,
    *,
    headers: Mapping[str, Any] | None,
    type: int,  # noqa: A002 - as Artemis names it
    body: str | None,
    durable: bool,
    user: str | None,
    password: str | None,
    createMessageId: bool = False,  # noqa: N803
) -> str | None:
    """Send a message as the user who is logged in, which is all that may be named."""
    del password
    if user is not None and user != who.name:
        raise WrongArgument(
            "user", f"messages are sent as user {quoted(who.name)}, who is logged in here"
        )
    if createMessageId:
        raise WrongArgument("createMessageId", "no id is given to messages that are sent here")
    data = (body or "").encode(errors="surrogatepass")
    if type != _TEXT_TYPE:
        try:
            data = base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError) as error:
            raise WrongArgument("body", f"a body of type {type} is base64: {error}") from None
    properties = {name: str(value) for name, value in (headers or {}).items()}
    where = subject.target
    if "queue" in subject.values:
        where = f"{subject.values['address']}{QUALIFIED}{where}"
    sent = await node.send(who, where, data, properties=properties, durable=durable)
    return None if sent is None else str(sent)


# --- operations on queues and addresses


async def _pause(
    node: Management,
    who: Principal,
    subject: Subject,
    *,
    persist: bool = False,
) -> None:
    if _is_queue(subject):
        await node.pause_queue(who, subject.target, persist=persist)
    else:
        await node.pause_address(who, subject.target, persist=persist)


async def _resume(node: Management, who: Principal, subject: Subject) -> None:
    if _is_queue(subject):
        await node.resume_queue(who, subject.target)
    else:
        await node.resume_address(who, subject.target)


def _is_queue(subject: Subject) -> bool:
    return "queue" in subject.values or "destinationName" in subject.values


async def _purge_address(node: Management, who: Principal, subject: Subject) -> int:
    return await _job(node, who, subject, JobKind.PURGE, address=subject.target)


async def _purge_classic(node: Management, who: Principal, subject: Subject) -> None:
    await _job(node, who, subject, JobKind.PURGE)


def _routing_type(text: str) -> RoutingType:
    for one in RoutingType:
        if one.value.lower() == text.strip().lower():
            return one
    raise WrongArgument("routingType", f"{quoted(text[:100])} is neither ANYCAST nor MULTICAST")


async def _create_address(
    node: Management,
    who: Principal,
    _: Subject,
    *,
    name: str,
    routingTypes: str,  # noqa: N803
) -> str:
    kinds = [_routing_type(one) for one in routingTypes.split(",") if one.strip()]
    made = await node.create_address(who, name, kinds)
    shown = ", ".join(one.value for one in made.routing_types)
    return f"Address [name={made.name}, routingTypes={{{shown}}}, autoCreated=false]"


async def _delete_address(node: Management, who: Principal, _: Subject, *, name: str) -> None:
    await node.delete_address(who, name)


async def _create_queue(
    node: Management,
    who: Principal,
    _: Subject,
    *,
    address: str,
    name: str,
    routingType: str | None = None,  # noqa: N803
    filter: str | None = None,  # noqa: A002 - as Artemis names it
    durable: bool = True,
) -> None:
    await node.create_queue(
        who,
        name,
        address=address,
        routing_type=None if routingType is None else _routing_type(routingType),
        durable=durable,
        options={"filter": filter} if filter else None,
    )


_FLAGS: Final = frozenset(
    (
        "durable",
        "exclusive",
        "non-destructive",
        "purge-on-no-consumers",
        "enabled",
        "group-rebalance",
        "group-rebalance-pause-dispatch",
    )
)
_NUMBERS: Final = frozenset(
    (
        "max-consumers",
        "ring-size",
        "consumers-before-dispatch",
        "delay-before-dispatch",
        "group-buckets",
    )
)
_TEXTS: Final = frozenset(
    ("name", "address", "routing-type", "filter-string", "last-value-key", "group-first-key")
)


async def _create_queue_of_json(
    node: Management,
    who: Principal,
    _: Subject,
    *,
    queueConfiguration: str,  # noqa: N803
    ignoreIfExists: bool = False,  # noqa: N803
) -> str:
    said = _configuration(queueConfiguration)
    name = said.pop("name", None) or said.get("address")
    if not name:
        raise WrongArgument("queueConfiguration", "the configuration of a queue needs its name")
    if ignoreIfExists:
        try:
            return json.dumps({"name": (await node.queue(who, name)).name})
        except NotFound:
            pass
    kind = said.pop("routing-type", None)
    made = await node.create_queue(
        who,
        name,
        address=said.pop("address", None),
        routing_type=None if kind is None else _routing_type(kind),
        durable=said.pop("durable", True),
        max_consumers=said.pop("max-consumers", None),
        options=_options(said),
    )
    return _configured(made)


def _configured(queue: QueueView) -> str:
    """Return the configuration of a queue as Artemis' JSON has it."""
    return json.dumps(
        {
            "name": queue.name,
            "address": queue.address,
            "routing-type": queue.routing_type.value,
            "durable": queue.durable,
            "filter-string": queue.filter,
            "max-consumers": -1 if queue.max_consumers is None else queue.max_consumers,
            "exclusive": queue.exclusive,
            "last-value-key": queue.last_value_key,
            "non-destructive": queue.non_destructive,
            "ring-size": -1 if queue.ring_size is None else queue.ring_size,
        }
    )


async def _update_queue_of_json(
    node: Management,
    who: Principal,
    _: Subject,
    *,
    queueConfiguration: str,  # noqa: N803
) -> str:
    said = _configuration(queueConfiguration)
    name = said.pop("name", None)
    if not name:
        raise WrongArgument("queueConfiguration", "the configuration of a queue needs its name")
    queue = await node.queue(who, name)
    for key, is_now in (("address", queue.address), ("durable", queue.durable)):
        if said.pop(key, is_now) != is_now:
            raise NotPossible(f"{key} of queue {quoted(name)} cannot change: it is {is_now}")
    most = said.pop("max-consumers", None)
    return _configured(await _updated(node, who, queue, said.pop("routing-type", None), most, said))


async def _update_queue(
    node: Management,
    who: Principal,
    _: Subject,
    *,
    name: str,
    routingType: str | None = None,  # noqa: N803
    maxConsumers: int | None = None,  # noqa: N803
    user: str | None = None,
    **options: Any,
) -> str:
    queue = await node.queue(who, name)
    if user is not None and user != queue.user:
        raise NotPossible(f"the user of queue {quoted(name)} cannot change: it is {queue.user}")
    said = {_KEYS[one]: value for one, value in options.items() if value is not None}
    made = await _updated(node, who, queue, routingType, maxConsumers, said)
    return (
        f"Queue [name={made.name}, address={made.address}, routingType={made.routing_type.value},"
        f" durable={str(made.durable).lower()}, exclusive={str(made.exclusive).lower()},"
        f" maxConsumers={-1 if made.max_consumers is None else made.max_consumers}]"
    )


async def _updated(
    node: Management,
    who: Principal,
    queue: QueueView,
    routing_type: str | None,
    max_consumers: int | None,
    said: Mapping[str, Any],
) -> QueueView:
    if routing_type is not None and _routing_type(routing_type) is not queue.routing_type:
        raise NotPossible(
            f"the routing type of queue {quoted(queue.name)} cannot change: it is"
            f" {queue.routing_type.value}; create another queue, and move its messages there"
        )
    return await node.change_queue(
        who, queue.name, max_consumers=max_consumers, options=_options(said)
    )


def _options(said: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of a queue by their names in broker.xml."""
    return {
        "filter" if key == "filter-string" else key.replace("-", "_"): value
        for key, value in said.items()
    }


def _configuration(text: str) -> dict[str, Any]:
    """Return what a queue's configuration says; raises WrongArgument."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WrongArgument("queueConfiguration", f"it is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise WrongArgument("queueConfiguration", "it is not a JSON object")
    said: dict[str, Any] = {}
    for key, value in found.items():
        if value is None:
            continue
        try:
            if key in _FLAGS:
                said[key] = converted(value, BOOLEAN)
            elif key in _NUMBERS:
                said[key] = converted(value, LONG)
            elif key in _TEXTS:
                said[key] = converted(value, STRING)
            else:
                raise WrongArgument(key, f"a queue is not created with {quoted(key[:100])} here")
        except ValueError as error:
            raise WrongArgument(key, f"{key}: {error}") from None
    return said


async def _destroy_queue(
    node: Management,
    who: Principal,
    _: Subject,
    *,
    name: str,
    removeConsumers: bool = False,  # noqa: N803
) -> None:
    await node.delete_queue(who, name, force=removeConsumers)


async def _queue_names(
    node: Management,
    who: Principal,
    _: Subject,
    *,
    routingType: str | None = None,  # noqa: N803
) -> list[str]:
    kind = _routing_type(routingType) if routingType else None
    found = await node.all_queues(who)
    return sorted(one.name for one in found if kind is None or one.routing_type is kind)


async def _settings(
    node: Management,
    who: Principal,
    _: Subject,
    *,
    addressMatch: str,  # noqa: N803
) -> str:
    found = await node.settings(who, addressMatch)
    return json.dumps({_camel(name): value for name, value in found.items()}, default=str)


def _camel(name: str) -> str:
    """Return the name of a setting as Artemis' JSON has it."""
    if name == "address-full-policy":
        return "addressFullMessagePolicy"
    first, *rest = name.split("-")
    return first + "".join(one.capitalize() for one in rest)


async def _close_of_address(
    node: Management,
    who: Principal,
    _: Subject,
    *,
    ipAddress: str,  # noqa: N803
) -> bool:
    return await node.close_connections(who, address=ipAddress) > 0


async def _close_of_user(node: Management, who: Principal, _: Subject, *, userName: str) -> bool:  # noqa: N803
    return await node.close_connections(who, user=userName) > 0


async def _force_failover(node: Management, who: Principal, _: Subject) -> None:
    await node.hand_over(who)


async def _close_connection(node: Management, who: Principal, _: Subject, *, ID: str) -> bool:  # noqa: N803
    try:
        await node.close_connection(who, ID)
    except NotFound:
        return False
    return True


_FILTER: Final = {"filter": STRING}
_ID: Final = {"messageID": LONG}
_OTHER: Final = {"otherQueueName": STRING}
_REJECT: Final = {"rejectDuplicates": BOOLEAN}
_FLUSH: Final = {"flushLimit": INT}
_SENT: Final = {
    "headers": MAP,
    "type": INT,
    "body": STRING,
    "durable": BOOLEAN,
    "user": STRING,
    "password": STRING,
}
_PAUSES: Final = (
    Operation("pause", {}, VOID, _pause),
    Operation("pause", {"persist": BOOLEAN}, VOID, _pause),
    Operation("resume", {}, VOID, _resume),
    Operation("sendMessage", _SENT, STRING, _send),
    Operation("sendMessage", {**_SENT, "createMessageId": BOOLEAN}, STRING, _send),
)
_PURGE: Final = _of_queue(JobKind.DELETE, empty=JobKind.PURGE)
_MOVE, _RETRY = _of_queue(JobKind.MOVE), _of_queue(JobKind.RETRY)
_MOVE_ONE: Final = _of_queue(JobKind.MOVE, is_one=True)
_PRIORITY: Final = {"newPriority": INT}
_QUEUE_OPERATIONS: Final = (
    Operation("countMessages", {}, LONG, _count),
    Operation("countMessages", _FILTER, LONG, _count),
    Operation("browse", {}, "[Ljavax.management.openmbean.CompositeData;", _browse),
    Operation("browse", _FILTER, "[Ljavax.management.openmbean.CompositeData;", _browse),
    Operation(
        "browse",
        {"page": INT, "pageSize": INT},
        "[Ljavax.management.openmbean.CompositeData;",
        _browse,
    ),
    Operation(
        "browse",
        {"page": INT, "pageSize": INT, **_FILTER},
        "[Ljavax.management.openmbean.CompositeData;",
        _browse,
    ),
    Operation("removeAllMessages", {}, INT, _of_queue(JobKind.PURGE)),
    Operation("removeMessages", _FILTER, INT, _PURGE),
    Operation("removeMessages", {**_FLUSH, **_FILTER}, INT, _PURGE),
    Operation("removeMessage", _ID, BOOLEAN, _of_queue(JobKind.DELETE, is_one=True)),
    Operation("moveMessages", {**_FILTER, **_OTHER}, INT, _MOVE),
    Operation("moveMessages", {**_FILTER, **_OTHER, **_REJECT}, INT, _MOVE),
    Operation("moveMessages", {**_FLUSH, **_FILTER, **_OTHER, **_REJECT}, INT, _MOVE),
    Operation("moveMessage", {**_ID, **_OTHER}, BOOLEAN, _MOVE_ONE),
    Operation("moveMessage", {**_ID, **_OTHER, **_REJECT}, BOOLEAN, _MOVE_ONE),
    Operation("copyMessage", {**_ID, **_OTHER}, BOOLEAN, _of_queue(JobKind.COPY, is_one=True)),
    Operation("retryMessages", {}, INT, _RETRY),
    Operation("retryMessages", _FILTER, INT, _RETRY),
    Operation("retryMessage", _ID, BOOLEAN, _of_queue(JobKind.RETRY, is_one=True)),
    Operation("expireMessages", _FILTER, INT, _of_queue(JobKind.EXPIRE)),
    Operation("expireMessage", _ID, BOOLEAN, _of_queue(JobKind.EXPIRE, is_one=True)),
    Operation("changeMessagesPriority", {**_FILTER, **_PRIORITY}, INT, _of_queue(JobKind.PRIORITY)),
    Operation(
        "changeMessagePriority",
        {**_ID, **_PRIORITY},
        BOOLEAN,
        _of_queue(JobKind.PRIORITY, is_one=True),
    ),
    *_PAUSES,
)
_NAMED: Final = {"address": STRING, "name": STRING}
_DURABLE: Final = {"durable": BOOLEAN}
_TYPED: Final = {"routingType": STRING}
_KEYS: Final = {
    "filter": "filter-string",
    "purgeOnNoConsumers": "purge-on-no-consumers",
    "exclusive": "exclusive",
    "groupRebalance": "group-rebalance",
    "groupBuckets": "group-buckets",
    "groupFirstKey": "group-first-key",
    "nonDestructive": "non-destructive",
    "consumersBeforeDispatch": "consumers-before-dispatch",
    "delayBeforeDispatch": "delay-before-dispatch",
    "ringSize": "ring-size",
}
"""What arguments of updateQueue are called in the configuration of a queue."""
_OF_UPDATE: Final = {"name": STRING, "routingType": STRING}
_LIMITS: Final = {"maxConsumers": SOME_INT, "purgeOnNoConsumers": SOME_FLAG}
_EXCLUSIVE: Final = {"exclusive": SOME_FLAG}
_USER: Final = {"user": STRING}
_GROUPS: Final = {"groupRebalance": SOME_FLAG, "groupBuckets": SOME_INT}
_FIRST: Final = {"groupFirstKey": STRING}
_DISPATCH: Final = {
    "nonDestructive": SOME_FLAG,
    "consumersBeforeDispatch": SOME_INT,
    "delayBeforeDispatch": SOME_LONG,
    "user": STRING,
}
_ALL: Final = {**_OF_UPDATE, **_FILTER, **_LIMITS, **_EXCLUSIVE}
_UPDATES: Final = (
    {**_OF_UPDATE, **_LIMITS},
    {**_OF_UPDATE, **_LIMITS, **_EXCLUSIVE},
    {**_OF_UPDATE, **_LIMITS, **_EXCLUSIVE, **_USER},
    {**_ALL, **_GROUPS, **_DISPATCH},
    {**_ALL, **_GROUPS, **_FIRST, **_DISPATCH},
    {**_ALL, **_GROUPS, **_FIRST, **_DISPATCH, "ringSize": SOME_LONG},
)
"""As Artemis has them; null leaves an option as it is."""
_BROKER_OPERATIONS: Final = (
    Operation("createAddress", {"name": STRING, "routingTypes": STRING}, STRING, _create_address),
    Operation("deleteAddress", {"name": STRING}, VOID, _delete_address),
    Operation("createQueue", {"queueConfiguration": STRING}, STRING, _create_queue_of_json),
    Operation(
        "createQueue",
        {"queueConfiguration": STRING, "ignoreIfExists": BOOLEAN},
        STRING,
        _create_queue_of_json,
    ),
    Operation("createQueue", _NAMED, VOID, _create_queue),
    Operation("createQueue", {**_NAMED, **_TYPED}, VOID, _create_queue),
    Operation("createQueue", {**_NAMED, **_DURABLE}, VOID, _create_queue),
    Operation("createQueue", {**_NAMED, **_DURABLE, **_TYPED}, VOID, _create_queue),
    Operation("createQueue", {**_NAMED, **_FILTER, **_DURABLE}, VOID, _create_queue),
    Operation("createQueue", {**_NAMED, **_FILTER, **_DURABLE, **_TYPED}, VOID, _create_queue),
    Operation("updateQueue", {"queueConfiguration": STRING}, STRING, _update_queue_of_json),
    *(Operation("updateQueue", one, STRING, _update_queue) for one in _UPDATES),
    Operation("destroyQueue", {"name": STRING}, VOID, _destroy_queue),
    Operation("destroyQueue", {"name": STRING, "removeConsumers": BOOLEAN}, VOID, _destroy_queue),
    Operation("getQueueNames", {}, STRINGS, _queue_names),
    Operation("getQueueNames", _TYPED, STRINGS, _queue_names),
    Operation("getAddressSettingsAsJSON", {"addressMatch": STRING}, STRING, _settings),
    Operation("closeConnectionsForAddress", {"ipAddress": STRING}, BOOLEAN, _close_of_address),
    Operation("closeConnectionsForUser", {"userName": STRING}, BOOLEAN, _close_of_user),
    Operation("closeConnectionWithID", {"ID": STRING}, BOOLEAN, _close_connection),
    Operation("forceFailover", {}, VOID, _force_failover),
)

# --- kinds

BROKER: Final = Kind(ARTEMIS, ("broker",), {}, "broker", _OF_BROKER, _BROKER_OPERATIONS)
ADDRESS: Final = Kind(
    ARTEMIS,
    ("broker", "component", "address"),
    {"component": "addresses"},
    "broker",
    _OF_ADDRESS,
    (Operation("purge", {}, LONG, _purge_address), *_PAUSES),
)
QUEUE: Final = Kind(
    ARTEMIS,
    ("broker", "component", "address", "subcomponent", "routing-type", "queue"),
    {"component": "addresses", "subcomponent": "queues"},
    "broker",
    _OF_QUEUE,
    _QUEUE_OPERATIONS,
)
CLASSIC_BROKER: Final = Kind(
    CLASSIC,
    ("type", "brokerName"),
    {"type": "Broker"},
    "brokerName",
    _OF_CLASSIC_BROKER,
    (),
)
CLASSIC_QUEUE: Final = Kind(
    CLASSIC,
    ("type", "brokerName", "destinationType", "destinationName"),
    {"type": "Broker", "destinationType": "Queue"},
    "brokerName",
    _OF_CLASSIC_QUEUE,
    (
        Operation("purge", {}, VOID, _purge_classic),
        Operation("pause", {}, VOID, _pause),
        Operation("resume", {}, VOID, _resume),
    ),
)
CLASSIC_TOPIC: Final = Kind(
    CLASSIC,
    ("type", "brokerName", "destinationType", "destinationName"),
    {"type": "Broker", "destinationType": "Topic"},
    "brokerName",
    _OF_CLASSIC_TOPIC,
    (),
)
PASSIVE_BROKER: Final = BROKER._replace(
    attributes={name: one for name, one in _OF_BROKER.items() if one.source == "node"}
)
CLASSIC_HEALTH: Final = Kind(
    CLASSIC,
    ("type", "brokerName", "service"),
    {"type": "Broker", "service": "Health"},
    "brokerName",
    _OF_CLASSIC_HEALTH,
    (),
)
KINDS: Final = (
    BROKER,
    ADDRESS,
    QUEUE,
    CLASSIC_BROKER,
    CLASSIC_HEALTH,
    CLASSIC_QUEUE,
    CLASSIC_TOPIC,
)
_OF_ADDRESSES: Final = (ADDRESS, CLASSIC_TOPIC)
_OF_WHOLE_NODE: Final = (BROKER, CLASSIC_BROKER, CLASSIC_HEALTH)


class Found(NamedTuple):
    """An object, and what its attributes are read from."""

    subject: Subject
    sources: Mapping[str, Any]


class Objects(ABC):
    """The objects of a node."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What the node is called."""

    @abstractmethod
    async def one(self, name: ObjectName, sources: Collection[str]) -> Found:
        """Return the object that a name is of, which is no pattern; raises BrokerError."""

    @abstractmethod
    async def matching(
        self, name: ObjectName, sources: Collection[str]
    ) -> Callable[[], Iterator[Found]]:
        """Return what yields the objects that a pattern matches, on any thread."""

    @abstractmethod
    async def perform(self, operation: Operation, subject: Subject, **arguments: Any) -> Any:
        """Do what is asked of an object; raises BrokerError."""


class LiveObjects(Objects):
    """Those of a live node, for one user; on the broker's loop."""

    def __init__(self, node: Management, who: Principal) -> None:
        self._node = node
        self._who = who
        self._seen: dict[str, Any] = {}
        """What was read of the node as a whole, which all requests of a bulk share."""

    @property
    @override
    def name(self) -> str:
        return self._node.name

    @override
    async def one(self, name: ObjectName, sources: Collection[str]) -> Found:
        return await _one(self._node, self._who, name, sources, self._seen)

    @override
    async def matching(
        self, name: ObjectName, sources: Collection[str]
    ) -> Callable[[], Iterator[Found]]:
        return await _matching(self._node, self._who, name, sources, self._seen)

    @override
    async def perform(self, operation: Operation, subject: Subject, **arguments: Any) -> Any:
        self._seen.clear()
        return await operation.perform(self._node, self._who, subject, **arguments)


class PassiveObjects(Objects):
    """The broker of a node that is not live, as Artemis' backup has it: no address, no queue."""

    def __init__(self, seen: NodeSeen) -> None:
        self._seen = seen
        subject = Subject(PASSIVE_BROKER, {"broker": seen.name})
        self._found = Found(subject, {"node": seen})

    @property
    @override
    def name(self) -> str:
        return self._seen.name

    @override
    async def one(self, name: ObjectName, sources: Collection[str]) -> Found:
        if self._found.subject.is_named(name):
            return self._found
        raise NotFound("object", _shown(name), ": this node is not live, and has its broker alone")

    @override
    async def matching(
        self, name: ObjectName, sources: Collection[str]
    ) -> Callable[[], Iterator[Found]]:
        found = [self._found] if self._found.subject.is_named(name) else []
        return lambda: iter(found)

    @override
    async def perform(self, operation: Operation, subject: Subject, **arguments: Any) -> Any:
        raise NotLive(f"{operation.name} is for the live node: this one is not live")


async def _one(
    node: Management,
    who: Principal,
    name: ObjectName,
    sources: Collection[str],
    seen: dict[str, Any],
) -> Found:
    """Return the object that a name is of, which is no pattern; raises BrokerError."""
    for kind in KINDS:
        if not kind.may_match(name):
            continue
        subject = Subject(
            kind, {key: one.text for key, one in name.keys.items() if key not in kind.fixed}
        )
        if kind in _OF_WHOLE_NODE:
            return Found(subject, await _broker_sources(node, who, sources, seen))
        if kind in _OF_ADDRESSES:
            address = await node.address(who, subject.target)
            if kind is CLASSIC_TOPIC and not _is_topic(address):
                raise NotFound("topic", subject.target, ": that address has queues alone")
            return Found(subject, {"view": address})
        queue = await node.queue(who, subject.target)
        if not _queue_subject(kind, queue, node.name).is_named(name):
            raise NotFound(
                "queue", subject.target, f" of that address and type; it is {_is(queue)}"
            )
        return Found(subject, {"view": queue})
    raise NotFound("object", _shown(name), "; search *:* lists all")


def _is(queue: QueueView) -> str:
    return f"{queue.routing_type.value.lower()}, of address {quoted(queue.address)}"


def _shown(name: ObjectName) -> str:
    keys = ",".join(f"{key}={one.text}" for key, one in name.keys.items())
    return f"{name.domain.text}:{keys}"


async def _broker_sources(
    node: Management, who: Principal, sources: Collection[str], seen: dict[str, Any]
) -> dict[str, Any]:
    """Return ``seen`` with what attributes of the broker are read from, as far as it is needed."""
    needed = {*sources} - seen.keys()
    if "overview" in needed or "node" in needed:
        seen["overview"] = overview = await node.overview(who)
        seen["node"] = NodeSeen(
            node.name,
            is_live=True,
            is_backup=False,
            ha_policy=node.ha_policy,
            node_id=overview.node_id,
            uptime_ms=overview.uptime_ms,
        )
    if "memory" in needed:
        seen["memory"] = await node.memory(who)
    if "queues" in needed:
        seen["queues"] = await node.all_queues(who)
    if "named-queues" in needed:
        seen["named-queues"] = node.name, await node.all_queues(who)
    if "named-addresses" in needed:
        seen["named-addresses"] = node.name, await node.addresses(who)
    if "addresses" in needed:
        seen["addresses"] = await node.addresses(who)
    return dict(seen)


async def _matching(
    node: Management,
    who: Principal,
    name: ObjectName,
    sources: Collection[str],
    seen: dict[str, Any],
) -> Callable[[], Iterator[Found]]:
    """Return what yields the objects that a pattern matches, on any thread."""
    kinds = [one for one in KINDS if one.may_match(name)]
    broker: Mapping[str, Any] = {}
    addresses: Iterable[AddressView] = ()
    queues: Iterable[QueueView] = ()
    if any(one in kinds for one in _OF_WHOLE_NODE):
        broker = await _broker_sources(node, who, sources, seen)
    if any(one in kinds for one in _OF_ADDRESSES):
        addresses = await node.addresses(who)
    if QUEUE in kinds or CLASSIC_QUEUE in kinds:
        queues = await node.all_queues(who)
    called = node.name

    def candidates() -> Iterator[Found]:
        for kind in kinds:
            if kind in _OF_WHOLE_NODE:
                yield Found(Subject(kind, {kind.broker_key: called}), broker)
            elif kind in _OF_ADDRESSES:
                for address in addresses:
                    if kind is ADDRESS or _is_topic(address):
                        values = {kind.broker_key: called, kind.keys[-1]: address.name}
                        yield Found(Subject(kind, values), {"view": address})
            else:
                for queue in queues:
                    if kind is QUEUE or queue.routing_type is RoutingType.ANYCAST:
                        yield Found(_queue_subject(kind, queue, called), {"view": queue})

    return lambda: (one for one in candidates() if one.subject.is_named(name))


def _classic_names(broker: str, queues: Iterable[QueueView]) -> Iterator[str]:
    """Yield the names of the queues that Classic has as queues."""
    for one in queues:
        if one.routing_type is RoutingType.ANYCAST:
            yield _queue_subject(CLASSIC_QUEUE, one, broker).name(canonical=False)


def _is_topic(address: AddressView) -> bool:
    """Return whether Classic has an address as a topic, with a queue or without."""
    return RoutingType.MULTICAST in address.routing_types or address.subscribers > 0


def _classic_topic_names(broker: str, addresses: Iterable[AddressView]) -> Iterator[str]:
    """Yield the names of the addresses that Classic has as topics."""
    for one in addresses:
        if _is_topic(one):
            values = {"brokerName": broker, "destinationName": one.name}
            yield Subject(CLASSIC_TOPIC, values).name(canonical=False)


def _queue_subject(kind: Kind, queue: QueueView, broker: str) -> Subject:
    if kind is CLASSIC_QUEUE:
        is_queue = queue.routing_type is RoutingType.ANYCAST
        return Subject(
            kind, {"brokerName": broker, "destinationName": queue.name if is_queue else ""}
        )
    return Subject(
        kind,
        {
            "broker": broker,
            "address": queue.address,
            "routing-type": queue.routing_type.value.lower(),
            "queue": queue.name,
        },
    )


# --- arguments


def converted(value: Any, kind: str) -> Any:
    """Return an argument as a type; raises ValueError."""
    if value is None:
        if kind in (INT, LONG, BOOLEAN):
            raise ValueError(f"null is no {kind}")
        return None
    if kind in (INT, LONG, SOME_INT, SOME_LONG):
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        if isinstance(value, str) and value.removeprefix("-").isdecimal() and len(value) <= 20:
            return int(value)
    elif kind in (BOOLEAN, SOME_FLAG):
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
    elif kind == STRING:
        if isinstance(value, str):
            return value
        if isinstance(value, int | float | dict | list):
            return json.dumps(value)
    elif isinstance(value, dict):
        return value
    elif isinstance(value, str):
        found = json.loads(value)
        if isinstance(found, dict):
            return found
    raise ValueError(f"{quoted(json.dumps(value)[:100])} is no {kind}")
