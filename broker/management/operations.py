"""Management operations by Artemis' names, which clients of any protocol may request.

A request has the name of a resource, the name of an operation, and a JSON array of arguments:

| resource | operation     | arguments                                                            |
|----------|---------------|----------------------------------------------------------------------|
| broker   | destroyQueue  | the queue's name, and ``true`` to delete it although it has messages |
|          |               | or consumers                                                         |
| broker   | getQueueNames | none, or ``ANYCAST`` or ``MULTICAST`` for the queues of that type    |
| queue.N  | removeMessage | the id of a message that queue N holds until it is delivered later   |
| queue.N  | countMessages | none                                                                 |

Artemis deletes a queue with its messages in any case. A *question* changes nothing, and is answered
by a JSON array with one result, as in Artemis.
"""

import json
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final, NamedTuple

from orthia.broker.core.broker import Broker
from orthia.broker.core.errors import LimitExceeded
from orthia.broker.core.identity import Principal
from orthia.broker.quoting import quoted
from orthia.config.address_settings import RoutingType
from orthia.config.errors import OrthiaError

LONGEST_ANSWER: Final = 4 * 1024 * 1024
"""Bytes: enough for the names of as many queues as there may be, if they are not long."""
_NAMES_AT_A_TIME: Final = 500


class UnknownOperation(OrthiaError):  # noqa: N818 - named for the state
    """There is no such operation, or its arguments are wrong."""


class DestroyQueue(NamedTuple):
    """A request to delete a queue."""

    name: str
    force: bool
    """Whether to delete it with messages and consumers."""

    def perform(self, core: Broker, principal: Principal, done: Callable[[int], None]) -> None:
        """Delete the queue for ``principal``; ``done`` gets how many messages were deleted with it.

        Raises BrokerError if it is refused.
        """
        core.delete_queue(principal, self.name, done, force=self.force)


class RemoveMessage(NamedTuple):
    """A request to delete a scheduled message."""

    queue: str
    """The queue that holds it."""
    seq: int

    def perform(self, core: Broker, principal: Principal, done: Callable[[int], None]) -> None:
        """Delete the message for ``principal``; ``done`` gets 1, or 0 if there is no such message.

        Raises BrokerError if it is refused.
        """
        core.cancel_scheduled(principal, self.queue, self.seq, done)


class CountMessages(NamedTuple):
    """A question: how many messages a queue has."""

    queue: str

    def pieces(self, core: Broker, principal: Principal) -> Iterator[str]:
        """Yield the JSON of the result in pieces, none of which takes long to make.

        Raises BrokerError if it is refused.
        """
        yield str(core.inspection.count_messages(principal, self.queue))


class GetQueueNames(NamedTuple):
    """A question: which queues there are."""

    kind: RoutingType | None
    """The type of the queues; None for all."""

    def pieces(self, core: Broker, principal: Principal) -> Iterator[str]:
        """Yield the JSON of the result; see ``CountMessages.pieces``."""
        names = core.inspection.queue_names(principal, self.kind)
        before = "["
        while some := list(islice(names, _NAMES_AT_A_TIME)):
            text = json.dumps(some, ensure_ascii=False, separators=(",", ":"))
            yield before + text[1:-1]
            before = ","
        yield "[]" if before == "[" else "]"


Operation = DestroyQueue | RemoveMessage
"""A request that changes something."""
Question = CountMessages | GetQueueNames
"""A request that changes nothing and has an answer."""
_OF_QUEUE: Final = "queue."
_EXPECTED: Final = (
    "expected destroyQueue or getQueueNames of broker, or countMessages or removeMessage of"
    " queue.NAME"
)


def read_operation(resource: str, operation: str, arguments: bytes) -> Operation | Question:
    """Return the request; raises UnknownOperation, which says what was expected."""
    if resource.startswith(_OF_QUEUE):
        queue = resource.removeprefix(_OF_QUEUE)
        if operation == "removeMessage":
            return _remove_message(queue, arguments)
        if operation == "countMessages":
            return _count_messages(queue, arguments)
    if resource == "broker":
        if operation == "destroyQueue":
            return _destroy_queue(arguments)
        if operation == "getQueueNames":
            return _get_queue_names(arguments)
    raise UnknownOperation(
        f"there is no operation {quoted(operation)} of {quoted(resource)} here; {_EXPECTED}"
    )


def answer(question: Question, core: Broker, principal: Principal) -> Iterator[bytes]:
    """Yield the answer to ``question`` for ``principal`` in pieces, none of which takes long.

    Raises BrokerError if it is refused.
    """
    yield b"["
    size = 0
    for piece in question.pieces(core, principal):
        encoded = piece.encode()
        size += len(encoded)
        if size > LONGEST_ANSWER:
            raise LimitExceeded(
                f"the answer is longer than {LONGEST_ANSWER} bytes; orthia queue list shows the"
                " queues of a database"
            )
        yield encoded
    yield b"]"


def _arguments(text: bytes) -> object:
    """Return the value of a JSON text, None if it is not JSON; no text is an empty array."""
    try:
        return json.loads(text) if text.strip() else []
    except (ValueError, RecursionError):
        return None


def _destroy_queue(arguments: bytes) -> DestroyQueue:
    match _arguments(arguments):
        case [str(name)]:
            return DestroyQueue(name, force=False)
        case [str(name), bool(force)]:
            return DestroyQueue(name, force)
    raise UnknownOperation(
        'the body is not what destroyQueue takes; expected a JSON array as ["NAME"] or'
        ' ["NAME", true]'
    )


def _remove_message(queue: str, arguments: bytes) -> RemoveMessage:
    match _arguments(arguments):
        case [int(seq)] if not isinstance(seq, bool):
            return RemoveMessage(queue, seq)
    raise UnknownOperation(
        "the body is not what removeMessage takes; expected a JSON array of a message id, as [4711]"
    )


def _count_messages(queue: str, arguments: bytes) -> CountMessages:
    if _arguments(arguments) == []:
        return CountMessages(queue)
    raise UnknownOperation(
        "the body is not what countMessages takes; expected none, or [] (a filter would have to"
        " read the queue)"
    )


def _get_queue_names(arguments: bytes) -> GetQueueNames:
    match _arguments(arguments):
        case []:
            return GetQueueNames(None)
        case [str(kind)] if kind in RoutingType.__members__:
            return GetQueueNames(RoutingType[kind])
    raise UnknownOperation(
        'the body is not what getQueueNames takes; expected none, or ["ANYCAST"] or ["MULTICAST"]'
    )
