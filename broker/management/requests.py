"""Management by messages: the operations and attributes of Artemis' management, by its names.

| part      | value                                                                            |
|-----------|----------------------------------------------------------------------------------|
| resource  | ``broker``, ``queue.NAME`` or ``address.NAME``                                   |
| operation | one of ``orthia.broker.management.operations``; or ``getX`` or ``isX`` without   |
|           | arguments, for the attribute X                                                   |
| attribute | one of ``orthia.broker.management.attributes``; its first letter may be small    |
| arguments | a JSON array, as many as the operation has                                       |

An answer is a JSON array of the result, or of the reason of a refusal, as in Artemis.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from typing_extensions import override

from orthia.broker.core.api import (
    ManagementAnswer,
    ManagementAnswered,
    ManagementRequest,
    Manager,
)
from orthia.broker.core.errors import BrokerError, LimitExceeded, NotLive
from orthia.broker.core.identity import Principal
from orthia.broker.core.slices import GO_ON, Finding
from orthia.broker.management.attributes import (
    OF_ADDRESS,
    OF_BROKER,
    OF_QUEUE,
    Attribute,
    sources_of_broker,
)
from orthia.broker.management.errors import NotPossible, WrongArgument
from orthia.broker.management.facade import Management
from orthia.broker.management.java_types import VOID
from orthia.broker.management.json_text import read_json
from orthia.broker.management.operations import (
    ADDRESS_OPERATIONS,
    BROKER_OPERATIONS,
    QUEUE_OPERATIONS,
    Operation,
    Target,
    by_name,
    fitting,
)
from orthia.broker.quoting import quoted
from orthia.broker.security.permissions import Security
from orthia.config.errors import OrthiaError

LONGEST_ARGUMENTS: Final = 256 * 1024
"""Bytes: reading them is one step of the loop."""
LONGEST_ANSWER: Final = 4 * 1024 * 1024
"""Bytes: enough for the names of as many queues as there may be, if they are not long."""
_AT_A_TIME: Final = 16
"""Members of a list that are written in one step."""
_COUNTS_DELETED: Final = frozenset({"destroyQueue", "removeMessage"})
"""Operations whose result is how many messages they deleted."""
_GETTERS: Final = ("get", "is")
LOGGER = logging.getLogger("orthia.broker")


class _Kind(NamedTuple):
    """A kind of resources."""

    operations: Sequence[Operation]
    attributes: Mapping[str, Attribute]


_BROKER: Final = _Kind(BROKER_OPERATIONS, OF_BROKER)
_ADDRESS: Final = _Kind(ADDRESS_OPERATIONS, OF_ADDRESS)
_QUEUE: Final = _Kind(QUEUE_OPERATIONS, OF_QUEUE)


class Requests(Manager):
    """Does what clients ask for by the facade of a live node."""

    def __init__(self, node: Management, security: Security) -> None:
        self._node = node
        self._security = security

    @override
    def check(self, principal: Principal, request: ManagementRequest) -> None:
        self._security.check_manage(principal, request.resource, request.operation)

    @override
    def begin(
        self, principal: Principal, request: ManagementRequest, answered: ManagementAnswered
    ) -> Callable[[], None]:
        doing = asyncio.ensure_future(self._answer(principal, request))

        def done(_: asyncio.Task[ManagementAnswer]) -> None:
            if doing.cancelled():
                return
            error = doing.exception()
            if error is None:
                answered(doing.result())
            elif isinstance(error, BrokerError):
                answered(error)
            else:
                LOGGER.error("%s of %s failed", request.operation, request.resource, exc_info=error)
                answered(_refused(NotPossible("the broker failed to do this; its log says why")))

        def abandon() -> None:
            doing.cancel()

        doing.add_done_callback(done)
        return abandon

    async def _answer(self, who: Principal, request: ManagementRequest) -> ManagementAnswer:
        """Return what came of a request; raises NotLive."""
        try:
            result, deleted = await self._result(who, request)
            return ManagementAnswer(await self._node.in_steps(_written(result)), None, deleted)
        except NotLive:
            raise
        except BrokerError as error:
            return _refused(error)
        except OrthiaError as error:
            return _refused(NotPossible(str(error)))

    async def _result(self, who: Principal, request: ManagementRequest) -> tuple[Any, int | None]:
        """Return the result, and how many messages were deleted by what tells that."""
        kind, target = _resource(request.resource)
        name = request.operation
        if request.is_attribute:
            return await self._read(who, kind, target, name), None
        given = _arguments(request.arguments)
        attribute = None if given else _getter(kind, name)
        if attribute is not None:
            return await self._read(who, kind, target, attribute), None
        operation = fitting(kind.operations, name, given)
        result = await operation.perform(self._node, who, target, **by_name(operation, given))
        deleted = int(result) if name in _COUNTS_DELETED else None
        return None if operation.result == VOID else result, deleted

    async def _read(self, who: Principal, kind: _Kind, target: Target, name: str) -> Any:
        attribute = kind.attributes.get(name[:1].upper() + name[1:])
        if attribute is None:
            expected = ", ".join(kind.attributes)
            raise WrongArgument(
                "attribute",
                f"there is no attribute {quoted(name[:100])} here; expected one of {expected}",
            )
        if target.queue:
            return attribute.get(await self._node.queue(who, target.queue))
        if target.address:
            return attribute.get(await self._node.address(who, target.address))
        sources = await sources_of_broker(self._node, who, {attribute.source}, {})
        return attribute.get(sources[attribute.source])


def _resource(text: str) -> tuple[_Kind, Target]:
    """Return what a resource is; raises WrongArgument."""
    kind, dot, name = text.partition(".")
    if text == "broker":
        return _BROKER, Target()
    if dot and name and kind == "queue":
        return _QUEUE, Target(queue=name)
    if dot and name and kind == "address":
        return _ADDRESS, Target(address=name)
    raise WrongArgument(
        "resource",
        f"there is no resource {quoted(text[:300])} here; expected broker, queue.NAME or"
        " address.NAME",
    )


def _arguments(text: bytes) -> list[Any]:
    """Return arguments; raises WrongArgument, LimitExceeded."""
    if len(text) > LONGEST_ARGUMENTS:
        raise LimitExceeded(
            f"the arguments have {len(text)} bytes, more than {LONGEST_ARGUMENTS}: send messages"
            " as such, and change many things by several requests"
        )
    try:
        given = read_json(text) if text.strip() else []
    except (ValueError, RecursionError) as error:
        raise WrongArgument("body", f"the body is not JSON: {error}") from None
    if not isinstance(given, list):
        raise WrongArgument("body", 'the body is no JSON array of arguments, as ["NAME", true]')
    return given


def _getter(kind: _Kind, name: str) -> str | None:
    """Return the attribute that ``getX`` or ``isX`` reads; None if it is an operation, or none."""
    if any(one.name == name for one in kind.operations):
        return None
    for prefix in _GETTERS:
        attribute = name.removeprefix(prefix)
        if attribute != name and attribute in kind.attributes:
            return attribute
    return None


def _refused(error: BrokerError) -> ManagementAnswer:
    return ManagementAnswer(json.dumps([str(error)]).encode(), error)


def _written(result: Any) -> Finding[bytes]:
    """Return the JSON array of a result, in steps; raises LimitExceeded."""
    members = result if isinstance(result, list) else [result]
    pieces: list[bytes] = []
    size = 0
    for start in range(0, len(members), _AT_A_TIME):
        text = json.dumps(
            members[start : start + _AT_A_TIME],
            ensure_ascii=False,
            separators=(",", ":"),
            default=str,
        )
        piece = text[1:-1].encode(errors="replace")
        size += len(piece)
        if size > LONGEST_ANSWER:
            raise LimitExceeded(
                f"the answer is longer than {LONGEST_ANSWER} bytes: ask for less, or by the"
                " management API"
            )
        pieces.append(piece)
        yield GO_ON
    joined = b",".join(pieces)
    return b"[[%b]]" % joined if isinstance(result, list) else b"[%b]" % joined
