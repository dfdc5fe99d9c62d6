"""What is done by the names of Artemis' management: operations on a node, addresses and queues.

Each calls the facade, which has its permission, its audit line and its errors. Jolokia and
``activemq.management`` ask for them. What is not in the tables is refused by name.
"""

import asyncio
import base64
import binascii
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from orthia.broker.core.destinations import QUALIFIED
from orthia.broker.core.errors import LimitExceeded
from orthia.broker.core.identity import Principal
from orthia.broker.management.errors import NotFound, NotPossible, WrongArgument
from orthia.broker.management.facade import MOST_MESSAGES_OF_A_PAGE, Management
from orthia.broker.management.java_types import (
    BOOLEAN,
    INT,
    LONG,
    MAP,
    SOME_FLAG,
    SOME_INT,
    SOME_LONG,
    STRING,
    STRINGS,
    VOID,
    converted,
    is_of,
)
from orthia.broker.management.json_text import read_json
from orthia.broker.management.views import JobKind, JobState, MessageView, QueueView
from orthia.broker.quoting import quoted
from orthia.config.address_settings import RoutingType

JOB_SECONDS: Final = 50.0
"""How long an operation on many messages is waited for, which goes on after that."""
MOST_BROWSED: Final = 10_000
"""How far into a queue pages are looked for."""
LONGEST_PAGE: Final = 16 * 1024 * 1024
"""Bytes of the messages of a page, with as much of their bodies as is shown."""
_BROWSED: Final = 200
"""Messages that browse() returns, as Artemis' management-browse-page-size."""
_SHOWN_BYTES: Final = 1_024
"""Of a message's body."""
_TEXT_TYPE: Final = 3
"""What Artemis calls a text message by; the bodies of others are base64."""


class Target(NamedTuple):
    """What an operation is of: a queue, an address, or neither, which is the broker."""

    queue: str = ""
    address: str = ""
    """Of a queue, its address, if that was said."""


class Operation(NamedTuple):
    """One operation of a kind of objects, with one signature."""

    name: str
    parameters: Mapping[str, str]
    """Names and types."""
    result: str
    perform: Callable[..., Awaitable[Any]]
    """Takes the facade, who asks, the target, and the arguments by name."""

    @property
    def signature(self) -> str:
        """The name with the types of the arguments."""
        return f"{self.name}({','.join(self.parameters.values())})"


# --- operations on messages


async def _job(node: Management, who: Principal, kind: JobKind, **said: Any) -> int:
    """Do something with many messages, and return with how many; raises NotPossible."""
    job = await node.start_job(who, kind, **said)
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
        target: Target,
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
        said: dict[str, Any] = {"queue": target.queue}
        if otherQueueName is not None:
            said["target"] = otherQueueName
        if newPriority is not None:
            said["priority"] = newPriority
        if not is_one:
            chosen = (filter or "").strip() or None
            which = empty if empty is not None and chosen is None else kind
            return await _job(node, who, which, selector=chosen, **said)
        try:
            return await _job(node, who, kind, ids=[messageID], **said) == 1
        except NotFound as error:
            if error.what == "message":
                return False
            raise

    return perform


async def _remove(
    node: Management,
    who: Principal,
    target: Target,
    *,
    messageID: int,  # noqa: N803
) -> bool:
    return await node.remove_message(who, target.queue, messageID)


async def _count(
    node: Management,
    who: Principal,
    target: Target,
    *,
    filter: str | None = None,  # noqa: A002 - as Artemis names it
) -> int:
    return await node.count(who, target.queue, filter)


async def _browse(
    node: Management,
    who: Principal,
    target: Target,
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
    seen = size = 0
    while seen < wanted:
        some = await node.browse(
            who,
            target.queue,
            filter,
            after,
            min(wanted - seen, MOST_MESSAGES_OF_A_PAGE),
            body_bytes=_SHOWN_BYTES,
        )
        shown = some.messages[max(0, skipped - seen) :]
        size += sum(one.size - one.body_size + min(one.body_size, _SHOWN_BYTES) for one in shown)
        if size > LONGEST_PAGE:
            raise LimitExceeded(
                f"page {page} of {pageSize} messages has more than {LONGEST_PAGE} bytes: ask for"
                " fewer on a page"
            )
        found += shown
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
    target: Target,
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
    data = (body or "").encode()
    if type != _TEXT_TYPE:
        try:
            data = base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError) as error:
            raise WrongArgument("body", f"a body of type {type} is base64: {error}") from None
    properties = {name: str(value) for name, value in (headers or {}).items()}
    where = target.address
    if target.queue:
        if not where:
            where = (await node.queue(who, target.queue)).address
        where = f"{where}{QUALIFIED}{target.queue}"
    sent = await node.send(who, where, data, properties=properties, durable=durable)
    return None if sent is None else str(sent)


# --- operations on queues and addresses


async def _pause(
    node: Management,
    who: Principal,
    target: Target,
    *,
    persist: bool = False,
) -> None:
    if target.queue:
        await node.pause_queue(who, target.queue, persist=persist)
    else:
        await node.pause_address(who, target.address, persist=persist)


async def _resume(node: Management, who: Principal, target: Target) -> None:
    if target.queue:
        await node.resume_queue(who, target.queue)
    else:
        await node.resume_address(who, target.address)


async def _purge_address(node: Management, who: Principal, target: Target) -> int:
    return await _job(node, who, JobKind.PURGE, address=target.address)


def _routing_type(text: str) -> RoutingType:
    for one in RoutingType:
        if one.value.lower() == text.strip().lower():
            return one
    raise WrongArgument("routingType", f"{quoted(text[:100])} is neither ANYCAST nor MULTICAST")


async def _create_address(
    node: Management,
    who: Principal,
    _: Target,
    *,
    name: str,
    routingTypes: str,  # noqa: N803
) -> str:
    kinds = [_routing_type(one) for one in routingTypes.split(",") if one.strip()]
    made = await node.create_address(who, name, kinds)
    shown = ", ".join(one.value for one in made.routing_types)
    return f"Address [name={made.name}, routingTypes={{{shown}}}, autoCreated=false]"


async def _delete_address(node: Management, who: Principal, _: Target, *, name: str) -> None:
    await node.delete_address(who, name)


async def _create_queue(
    node: Management,
    who: Principal,
    _: Target,
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
    _: Target,
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
    _: Target,
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
    _: Target,
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
        found = read_json(text)
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
    _: Target,
    *,
    name: str,
    removeConsumers: bool = False,  # noqa: N803
) -> int:
    return await node.delete_queue(who, name, force=removeConsumers)


async def _queue_names(
    node: Management,
    who: Principal,
    _: Target,
    *,
    routingType: str | None = None,  # noqa: N803
) -> list[str]:
    return await node.queue_names(who, _routing_type(routingType) if routingType else None)


async def _settings(
    node: Management,
    who: Principal,
    _: Target,
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
    _: Target,
    *,
    ipAddress: str,  # noqa: N803
) -> bool:
    return await node.close_connections(who, address=ipAddress) > 0


async def _close_of_user(node: Management, who: Principal, _: Target, *, userName: str) -> bool:  # noqa: N803
    return await node.close_connections(who, user=userName) > 0


async def _force_failover(node: Management, who: Principal, _: Target) -> None:
    await node.hand_over(who)


async def _close_connection(node: Management, who: Principal, _: Target, *, ID: str) -> bool:  # noqa: N803
    try:
        await node.close_connection(who, ID)
    except NotFound:
        return False
    return True


_MESSAGES: Final = "[Ljavax.management.openmbean.CompositeData;"
"""The type of a list of messages."""
_FILTER: Final = {"filter": STRING}
_ID: Final = {"messageID": LONG}
_OTHER: Final = {"otherQueueName": STRING}
_PAGE: Final = {"page": INT, "pageSize": INT}
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
QUEUE_OPERATIONS: Final = (
    Operation("countMessages", {}, LONG, _count),
    Operation("countMessages", _FILTER, LONG, _count),
    Operation("browse", {}, _MESSAGES, _browse),
    Operation("browse", _FILTER, _MESSAGES, _browse),
    Operation("browse", _PAGE, _MESSAGES, _browse),
    Operation("browse", {**_PAGE, **_FILTER}, _MESSAGES, _browse),
    Operation("removeAllMessages", {}, INT, _of_queue(JobKind.PURGE)),
    Operation("removeMessages", _FILTER, INT, _PURGE),
    Operation("removeMessages", {**_FLUSH, **_FILTER}, INT, _PURGE),
    Operation("removeMessage", _ID, BOOLEAN, _remove),
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
BROKER_OPERATIONS: Final = (
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
ADDRESS_OPERATIONS: Final = (Operation("purge", {}, LONG, _purge_address), *_PAUSES)
CLASSIC_QUEUE_OPERATIONS: Final = (
    Operation("purge", {}, VOID, _of_queue(JobKind.PURGE)),
    Operation("pause", {}, VOID, _pause),
    Operation("resume", {}, VOID, _resume),
)

# --- which is meant


def chosen(operations: Sequence[Operation], called: str, number: int) -> Operation:
    """Return the operation of a name, or signature, and number of arguments.

    Raises WrongArgument, which says what was expected.
    """
    name, has_signature, _ = called.partition("(")
    named = [one for one in operations if one.name == name]
    if not named:
        expected = ", ".join(dict.fromkeys(one.name for one in operations)) or "none"
        raise WrongArgument(
            "operation",
            f"there is no operation {quoted(name[:100])} here; expected one of {expected}",
        )
    signature = called.replace(" ", "")
    found = [
        one
        for one in named
        if (one.signature == signature if has_signature else True) and len(one.parameters) == number
    ]
    if len(found) != 1:
        expected = ", ".join(one.signature for one in named)
        raise WrongArgument(
            "operation",
            f"{number} arguments and {quoted(called[:300])} mean {len(found)} operations; expected"
            f" one of {expected}",
        )
    return found[0]


def fitting(operations: Sequence[Operation], called: str, given: Sequence[Any]) -> Operation:
    """Return the operation of a name, or signature, that takes arguments of such types.

    Raises WrongArgument.
    """
    several = [
        one for one in operations if one.name == called and len(one.parameters) == len(given)
    ]
    if len(several) > 1:
        fits = [
            one
            for one in several
            if all(
                is_of(value, kind)
                for value, kind in zip(given, one.parameters.values(), strict=True)
            )
        ]
        if len(fits) == 1:
            return fits[0]
    return chosen(operations, called, len(given))


def by_name(operation: Operation, given: Sequence[Any]) -> dict[str, Any]:
    """Return arguments by their names, each of its type; raises WrongArgument."""
    arguments: dict[str, Any] = {}
    for (parameter, kind), value in zip(operation.parameters.items(), given, strict=True):
        try:
            arguments[parameter] = converted(value, kind)
        except (ValueError, RecursionError) as error:
            raise WrongArgument(parameter, f"{parameter}: {error}") from None
    return arguments
