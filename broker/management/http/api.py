"""The operations of ``/api/v1``: each a line of the table that its OpenAPI document is made of."""

import base64
import binascii
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any, Final, NamedTuple, TypeVar

from orthia.broker.core.identity import Principal
from orthia.broker.management.errors import WrongArgument
from orthia.broker.management.facade import Management
from orthia.broker.management.http.arguments import Argument
from orthia.broker.management.listing import MOST_OF_A_PAGE, Asked, check_page
from orthia.broker.management.views import JobKind, TransactionView, View, as_json
from orthia.broker.quoting import quoted
from orthia.config.address_settings import RoutingType

_View = TypeVar("_View", bound=View)
Handler = Callable[..., Awaitable[Any]]
"""Takes the facade, who asks, the parts of the path, and the arguments by name."""


class Operation(NamedTuple):
    """One operation of the API."""

    method: str
    path: str
    about: str
    perform: Handler
    query: Sequence[Argument] = ()
    body: Sequence[Argument] = ()
    status: HTTPStatus = HTTPStatus.OK


_PAGE: Final = (
    Argument("search", str, "a part of the name, in any case of letters"),
    Argument("sort", str, "the member to sort by; with a - before it, descending"),
    Argument("offset", int, "how many to leave out at the beginning"),
    Argument("limit", int, f"how many to return at most, up to {MOST_OF_A_PAGE}; 100 if not given"),
)
_SELECTOR: Final = Argument("selector", str, "only messages that it matches")
_MOST_CONSUMERS: Final = Argument("max-consumers", int, "how many may consume; -1 any number")
_OPTIONS: Final = Argument("options", dict, "its options by their names in broker.xml")
_PLACED: Final = (
    _SELECTOR,
    Argument("after", str, "what the page before said as its next"),
    Argument("limit", int, "how many to return at most; 100 if not given"),
)
_REASON: Final = Argument("reason", str, "what the client is told")
_PERSIST: Final = Argument(
    "persist", bool, "whether it stays so after a takeover; true if not given"
)
_JOB: Final = (
    Argument("kind", JobKind, "what to do with each message", required=True),
    _SELECTOR,
    Argument("ids", list, "only messages with these ids"),
    Argument("target", str, "the queue to move or copy to"),
    Argument("priority", int, "the priority to give, 0 to 9"),
    Argument("stream", str, "the attached stream that acknowledges"),
    Argument("up-to", int, "the last message that it acknowledges, by its seq"),
)
_OF_QUEUES: Final = (
    Argument("address", str, "only queues of this address"),
    Argument("routing-type", RoutingType, "only queues of this type"),
    Argument("paused", bool, "only those that are paused, or that are not"),
    Argument("temporary", bool, "only temporary ones, or others"),
)


class Created(NamedTuple):
    """What was created, and where it is to be asked for."""

    view: View
    location: str


# --- the node


async def _overview(node: Management, who: Principal) -> Any:
    return await node.overview(who)


async def _memory(node: Management, who: Principal) -> Any:
    return await node.memory(who)


async def _transactions(node: Management, who: Principal, **page: Any) -> Any:
    def texts(one: TransactionView) -> tuple[str | None, ...]:
        return one.id, one.user, one.client_id

    found = await node.transactions(who)
    return partial(_page, "transactions", found, texts, **{"sort": "since-ms", **page})


async def _commit(node: Management, who: Principal, transaction: str) -> Any:
    return await node.commit_transaction(who, transaction)


async def _roll_back(node: Management, who: Principal, transaction: str) -> Any:
    return await node.roll_back_transaction(who, transaction)


async def _hand_over(node: Management, who: Principal) -> Any:
    return await node.hand_over(who)


async def _set_log_level(node: Management, who: Principal, *, logger: str, level: str) -> Any:
    await node.set_log_level(who, logger, level)
    return {}


# --- queues


async def _queues(
    node: Management,
    who: Principal,
    *,
    search: str = "",
    sort: str = "name",
    offset: int = 0,
    limit: int = 100,
    **where: Any,
) -> Any:
    asked = _asked(search, sort, offset, limit, tuple(sorted(where.items())))
    found = await node.queues(who, asked)
    return lambda: {
        "queues": [as_json(one) for one in found.items],
        "total": found.total,
        "made-ms": found.made_ms,
    }


def _asked(
    search: str, sort: str, offset: int, limit: int, where: tuple[tuple[str, object], ...] = ()
) -> Asked:
    field = sort.removeprefix("-").replace("-", "_")
    return Asked(search, where, field, sort.startswith("-"), offset, limit)


async def _dead_letter_queues(node: Management, who: Principal) -> Any:
    return {"queues": [as_json(one) for one in await node.dead_letter_queues(who)]}


async def _queue(node: Management, who: Principal, queue: str) -> Any:
    return await node.queue(who, queue)


async def _create_queue(
    node: Management,
    who: Principal,
    *,
    name: str,
    options: Mapping[str, Any] | None = None,
    **given: Any,
) -> Any:
    return Created(await node.create_queue(who, name, options=options, **given), f"queues/{name}")


async def _change_queue(node: Management, who: Principal, queue: str, **given: Any) -> Any:
    return await node.change_queue(who, queue, **given)


async def _delete_queue(
    node: Management, who: Principal, queue: str, *, force: bool = False
) -> Any:
    return {"deleted": await node.delete_queue(who, queue, force=force)}


async def _pause_queue(
    node: Management, who: Principal, queue: str, *, persist: bool = True
) -> Any:
    return await node.pause_queue(who, queue, persist=persist)


async def _resume_queue(node: Management, who: Principal, queue: str) -> Any:
    return await node.resume_queue(who, queue)


async def _messages(node: Management, who: Principal, queue: str, **given: Any) -> Any:
    return await node.browse(who, queue, **given)


async def _message(node: Management, who: Principal, queue: str, message: str, **given: Any) -> Any:
    return await node.message(who, queue, _number("message", message), **given)


async def _count(
    node: Management, who: Principal, queue: str, *, selector: str | None = None
) -> Any:
    return {"messages": await node.count(who, queue, selector)}


async def _queue_job(
    node: Management, who: Principal, queue: str, *, kind: JobKind, **given: Any
) -> Any:
    job = await node.start_job(who, kind, queue=queue, **given)
    return Created(job, f"jobs/{job.id}")


async def _scheduled(node: Management, who: Principal, **given: Any) -> Any:
    return await node.scheduled(who, **given)


async def _queue_scheduled(node: Management, who: Principal, queue: str, **given: Any) -> Any:
    return await node.scheduled(who, queue, **given)


async def _cancel_scheduled(node: Management, who: Principal, message: str) -> Any:
    await node.cancel_scheduled(who, _number("message", message))
    return {}


async def _consumers(node: Management, who: Principal) -> Any:
    return partial(_all, "consumers", await node.consumers(who))


async def _queue_consumers(node: Management, who: Principal, queue: str) -> Any:
    return partial(_all, "consumers", await node.consumers(who, queue))


async def _stream(node: Management, who: Principal, queue: str) -> Any:
    return await node.stream(who, queue)


async def _attach_stream(node: Management, who: Principal, queue: str, *, stream: str) -> Any:
    return await node.attach_stream(who, queue, stream)


async def _detach_stream(
    node: Management, who: Principal, queue: str, *, stream: str | None = None
) -> Any:
    return await node.detach_stream(who, queue, stream)


# --- addresses


async def _addresses(node: Management, who: Principal, **page: Any) -> Any:
    found = await node.addresses(who)
    return partial(_page, "addresses", found, lambda one: (one.name,), **{"sort": "name", **page})


async def _address(node: Management, who: Principal, address: str) -> Any:
    return await node.address(who, address)


async def _create_address(
    node: Management, who: Principal, *, name: str, routing_type: RoutingType
) -> Any:
    return Created(await node.create_address(who, name, [routing_type]), f"addresses/{name}")


async def _delete_address(node: Management, who: Principal, address: str) -> Any:
    await node.delete_address(who, address)
    return {}


async def _pause_address(
    node: Management, who: Principal, address: str, *, persist: bool = True
) -> Any:
    return await node.pause_address(who, address, persist=persist)


async def _resume_address(node: Management, who: Principal, address: str) -> Any:
    return await node.resume_address(who, address)


async def _settings(node: Management, who: Principal, address: str) -> Any:
    return dict(await node.settings(who, address))


async def _bindings(node: Management, who: Principal, address: str) -> Any:
    return partial(_all, "bindings", await node.bindings(who, address))


async def _purge_address(node: Management, who: Principal, address: str) -> Any:
    job = await node.start_job(who, JobKind.PURGE, address=address)
    return Created(job, f"jobs/{job.id}")


# --- sending


async def _send(
    node: Management,
    who: Principal,
    *,
    destination: str,
    body: str = "",
    body_base64: str | None = None,
    **given: Any,
) -> Any:
    data = body.encode()
    if body_base64 is not None:
        if body:
            raise WrongArgument("body-base64", "body and body-base64 are both given")
        try:
            data = base64.b64decode(body_base64, validate=True)
        except (binascii.Error, ValueError) as error:
            raise WrongArgument("body-base64", f"body-base64 is not base64: {error}") from None
    return {"id": await node.send(who, destination, data, **given)}


# --- consumers, connections, jobs


async def _close_consumer(
    node: Management, who: Principal, consumer: str, *, reason: str = ""
) -> Any:
    await node.close_consumer(who, consumer, reason)
    return {}


async def _connections(
    node: Management,
    who: Principal,
    *,
    search: str = "",
    sort: str = "id",
    offset: int = 0,
    limit: int = 100,
) -> Any:
    found = await node.connections(who, _asked(search, sort, offset, limit))
    return {"connections": [as_json(one) for one in found.items], "total": found.total}


async def _close_connection(
    node: Management, who: Principal, connection: str, *, reason: str = ""
) -> Any:
    await node.close_connection(who, connection, reason)
    return {}


async def _close_connections(node: Management, who: Principal, **given: Any) -> Any:
    return {"closed": await node.close_connections(who, **given)}


async def _jobs(node: Management, who: Principal) -> Any:
    return {"jobs": [as_json(one) for one in await node.jobs(who)]}


async def _job(node: Management, who: Principal, job: str) -> Any:
    return await node.job(who, _number("job", job))


async def _stop_job(node: Management, who: Principal, job: str) -> Any:
    return await node.stop_job(who, _number("job", job))


async def _continue_job(node: Management, who: Principal, job: str) -> Any:
    return await node.continue_job(who, _number("job", job))


def _number(name: str, text: str) -> int:
    if text.isdecimal() and len(text) < 20:
        return int(text)
    raise WrongArgument(name, f"{name} {quoted(text[:100])} is no number")


def _all(name: str, found: Iterable[View]) -> dict[str, Any]:
    """Return all of a list; on any thread."""
    return {name: [as_json(one) for one in found]}


def _page(
    name: str,
    views: Sequence[_View],
    texts: Callable[[_View], Iterable[str | None]],
    *,
    search: str = "",
    sort: str,
    offset: int = 0,
    limit: int = 100,
) -> dict[str, Any]:
    """Return a page of a list, of which ``texts`` are searched; on any thread."""
    member = sort.removeprefix("-").replace("-", "_")
    if views and sort.removeprefix("-") not in as_json(views[0]):
        raise WrongArgument("sort", f"{name} are not sorted by {quoted(sort[:100])}")
    check_page(offset, limit)
    part = search.casefold()
    found = [one for one in views if any(part in (text or "").casefold() for text in texts(one))]
    found.sort(key=lambda one: _sortable(getattr(one, member)), reverse=sort.startswith("-"))
    some = found[offset : offset + limit]
    return {name: [as_json(one) for one in some], "total": len(found)}


def _sortable(value: Any) -> tuple[bool, Any]:
    """Return what puts None first, and what is no number by its text."""
    return value is not None, value if isinstance(value, int) else str(value)


_CREATED: Final = HTTPStatus.CREATED
_ACCEPTED: Final = HTTPStatus.ACCEPTED
OPERATIONS: Final = (
    Operation("GET", "/overview", "The node in a few numbers", _overview),
    Operation("GET", "/memory", "What the node holds, against its limits", _memory),
    Operation(
        "GET",
        "/transactions",
        "A page of open transactions of clients, and prepared ones that are not resolved",
        _transactions,
        _PAGE,
    ),
    Operation(
        "POST", "/transactions/{transaction}/commit", "Commit a prepared transaction", _commit
    ),
    Operation(
        "POST",
        "/transactions/{transaction}/rollback",
        "Roll a prepared transaction back",
        _roll_back,
    ),
    Operation("POST", "/handover", "Hand over to the backup, and wait until it serves", _hand_over),
    Operation(
        "POST",
        "/log-level",
        "Have a logger of the node tell more or less, until the node ends",
        _set_log_level,
        body=(
            Argument("logger", str, "its name, as orthia.broker", required=True),
            Argument("level", str, "DEBUG, INFO, WARNING or ERROR", required=True),
        ),
    ),
    Operation("GET", "/queues", "A page of the queues", _queues, (*_PAGE, *_OF_QUEUES)),
    Operation(
        "POST",
        "/queues",
        "Create a queue",
        _create_queue,
        body=(
            Argument("name", str, "its name", required=True),
            Argument("address", str, "the address it belongs to; its name if not given"),
            Argument("routing-type", RoutingType, "how messages reach it"),
            Argument("durable", bool, "whether it outlives the node; true if not given"),
            _MOST_CONSUMERS,
            _OPTIONS,
        ),
        status=_CREATED,
    ),
    Operation(
        "GET",
        "/dead-letter-queues",
        "The queues that dead letters and expired messages go to",
        _dead_letter_queues,
    ),
    Operation("GET", "/queues/{queue}", "One queue", _queue),
    Operation(
        "PATCH",
        "/queues/{queue}",
        "Change options of a queue",
        _change_queue,
        body=(_MOST_CONSUMERS, _OPTIONS),
    ),
    Operation(
        "DELETE",
        "/queues/{queue}",
        "Delete a queue",
        _delete_queue,
        (Argument("force", bool, "although it has messages or consumers"),),
    ),
    Operation(
        "POST",
        "/queues/{queue}/pause",
        "Deliver nothing more from a queue",
        _pause_queue,
        body=(_PERSIST,),
    ),
    Operation("POST", "/queues/{queue}/resume", "Deliver from a queue again", _resume_queue),
    Operation(
        "GET",
        "/queues/{queue}/messages",
        "A page of a queue's messages, which stay",
        _messages,
        (
            *_PLACED,
            Argument("body-bytes", int, "show bodies of up to so many bytes; 0 if not given"),
        ),
    ),
    Operation(
        "GET",
        "/queues/{queue}/messages/{message}",
        "One message",
        _message,
        (Argument("body-bytes", int, "show its body if it has up to so many bytes"),),
    ),
    Operation(
        "GET", "/queues/{queue}/count", "How many messages a queue has", _count, (_SELECTOR,)
    ),
    Operation(
        "GET",
        "/queues/{queue}/scheduled",
        "A page of what is to be delivered to a queue later, the earliest first",
        _queue_scheduled,
        _PLACED,
    ),
    Operation("GET", "/queues/{queue}/consumers", "The consumers of a queue", _queue_consumers),
    Operation(
        "POST",
        "/queues/{queue}/jobs",
        "Purge, delete, move, copy, retry, expire, re-prioritise, cancel or acknowledge messages",
        _queue_job,
        body=_JOB,
        status=_ACCEPTED,
    ),
    Operation("GET", "/queues/{queue}/stream", "Which stream reads a queue", _stream),
    Operation(
        "POST",
        "/queues/{queue}/stream",
        "Let a stream alone read a queue from the store, in place of consumers",
        _attach_stream,
        body=(Argument("stream", str, "an id that it keeps", required=True),),
    ),
    Operation(
        "DELETE",
        "/queues/{queue}/stream",
        "Let consumers have a queue again that a stream reads",
        _detach_stream,
        (Argument("stream", str, "only if it is this one"),),
    ),
    Operation("GET", "/addresses", "A page of the addresses", _addresses, _PAGE),
    Operation(
        "POST",
        "/addresses",
        "Create an address",
        _create_address,
        body=(
            Argument("name", str, "its name", required=True),
            Argument("routing-type", RoutingType, "the type of its queues", required=True),
        ),
        status=_CREATED,
    ),
    Operation("GET", "/addresses/{address}", "One address", _address),
    Operation("DELETE", "/addresses/{address}", "Delete an address", _delete_address),
    Operation(
        "GET", "/addresses/{address}/settings", "The settings in effect of an address", _settings
    ),
    Operation("GET", "/addresses/{address}/bindings", "What of it goes to which queue", _bindings),
    Operation(
        "POST",
        "/addresses/{address}/pause",
        "Deliver nothing more from the queues of an address",
        _pause_address,
        body=(_PERSIST,),
    ),
    Operation("POST", "/addresses/{address}/resume", "Deliver from them again", _resume_address),
    Operation(
        "POST",
        "/addresses/{address}/purge",
        "Delete all messages of all queues of an address",
        _purge_address,
        status=_ACCEPTED,
    ),
    Operation(
        "POST",
        "/messages",
        "Send a message",
        _send,
        body=(
            Argument("destination", str, "/queue/NAME, /topic/NAME or a name", required=True),
            Argument("body", str, "its text"),
            Argument("body-base64", str, "its bytes, instead"),
            Argument("properties", dict, "its properties"),
            Argument("content-type", str, "what the body is"),
            Argument("correlation-id", str, "what it answers"),
            Argument("reply-to", str, "where answers go"),
            Argument("priority", int, "0 to 9; 4 if not given"),
            Argument("durable", bool, "whether it is stored; true if not given"),
            Argument("expires-ms", int, "when it expires, in milliseconds since 1970 UTC"),
            Argument("delivery-ms", int, "when it is delivered, in the same"),
        ),
        status=_CREATED,
    ),
    Operation(
        "GET",
        "/scheduled",
        "A page of what is to be delivered later, the earliest first",
        _scheduled,
        _PLACED,
    ),
    Operation(
        "DELETE",
        "/scheduled/{message}",
        "Cancel a message that is to be delivered later",
        _cancel_scheduled,
    ),
    Operation("GET", "/consumers", "All consumers", _consumers),
    Operation("DELETE", "/consumers/{consumer}", "End a consumer", _close_consumer, (_REASON,)),
    Operation("GET", "/connections", "A page of the connections", _connections, _PAGE),
    Operation(
        "POST",
        "/connections/close",
        "Disconnect all clients of a user, or at an IP address",
        _close_connections,
        body=(
            Argument("user", str, "whose connections"),
            Argument("address", str, "or from where"),
            _REASON,
        ),
    ),
    Operation(
        "DELETE", "/connections/{connection}", "Disconnect a client", _close_connection, (_REASON,)
    ),
    Operation("GET", "/jobs", "The jobs that run, and the last ones that are over", _jobs),
    Operation("GET", "/jobs/{job}", "One job", _job),
    Operation("POST", "/jobs/{job}/stop", "Stop a job after the step it is at", _stop_job),
    Operation("POST", "/jobs/{job}/continue", "Start an interrupted job again", _continue_job),
)
