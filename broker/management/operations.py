"""What may be asked or changed of a running node, by Artemis' names, in whatever protocol.

An operation is asked for by the name of a resource, its own name, and a JSON array of arguments:

| resource | operation     | arguments                                                            |
|----------|---------------|----------------------------------------------------------------------|
| broker   | destroyQueue  | the queue's name, and ``true`` to delete it although it has messages |
|          |               | or consumers                                                         |
| broker   | getQueueNames | none, or ``ANYCAST`` or ``MULTICAST`` for the queues of that type    |
| queue.N  | removeMessage | the id of a message that queue N holds until it is delivered later   |
| queue.N  | countMessages | none                                                                 |

Artemis deletes the messages of a queue in any case. The questions among them change nothing, and
have an answer: a JSON array of one result, as in Artemis.
"""

import json
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final, NamedTuple

from orthia.broker.core.api import BrokerCore
from orthia.broker.core.errors import LimitExceeded
from orthia.broker.core.identity import Principal
from orthia.broker.quoting import quoted
from orthia.config.address_settings import RoutingType
from orthia.config.errors import OrthiaError

LONGEST_ANSWER: Final = 4 * 1024 * 1024
"""Bytes: all names of queues, where there are as many as there may be and they are not long."""
_NAMES_AT_A_TIME: Final = 500


class UnknownOperation(OrthiaError):  # noqa: N818 - named for what is the case
    """There is no such operation, or its arguments are not what it takes."""


class DestroyQueue(NamedTuple):
    """A request to delete a queue."""

    name: str
    force: bool
    """Whether also with messages and consumers."""

    def perform(self, core: BrokerCore, principal: Principal, done: Callable[[int], None]) -> None:
        """Have it done in the name of ``principal``; ``done`` gets how many messages went with it.

        Raises BrokerError if that is refused.
        """
        core.delete_queue(principal, self.name, done, force=self.force)


class RemoveMessage(NamedTuple):
    """A request to delete a message that is to be delivered later."""

    queue: str
    """Where it waits."""
    seq: int

    def perform(self, core: BrokerCore, principal: Principal, done: Callable[[int], None]) -> None:
        """Have it done in the name of ``principal``; ``done`` gets 1, or 0 if it is not there.

        Raises BrokerError if that is refused.
        """
        core.cancel_scheduled(principal, self.queue, self.seq, done)


class CountMessages(NamedTuple):
    """A question how many messages a queue has."""

    queue: str

    def pieces(self, core: BrokerCore, principal: Principal) -> Iterator[str]:
        """Yield the JSON of the result in pieces, of which none takes long to make.

        Raises BrokerError if the question is refused.
        """
        yield str(core.inspection.count_messages(principal, self.queue))


class GetQueueNames(NamedTuple):
    """A question which queues there are."""

    kind: RoutingType | None
    """Of which type; None for all."""

    def pieces(self, core: BrokerCore, principal: Principal) -> Iterator[str]:
        """Yield the JSON of the result; see ``CountMessages.pieces``."""
        names = core.inspection.queue_names(principal, self.kind)
        before = "["
        while some := list(islice(names, _NAMES_AT_A_TIME)):
            text = json.dumps(some, ensure_ascii=False, separators=(",", ":"))
            yield before + text[1:-1]
            before = ","
        yield "[]" if before == "[" else "]"


Operation = DestroyQueue | RemoveMessage
"""What changes something."""
Question = CountMessages | GetQueueNames
"""What changes nothing, and is asked for its answer."""
_OF_QUEUE: Final = "queue."
_EXPECTED: Final = (
    "expected destroyQueue or getQueueNames of broker, or countMessages or removeMessage of"
    " queue.NAME"
)


def read_operation(resource: str, operation: str, arguments: bytes) -> Operation | Question:
    """Return what is asked for; raises UnknownOperation, which says what was expected."""
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


def answer(question: Question, core: BrokerCore, principal: Principal) -> Iterator[bytes]:
    """Yield what ``question`` is answered in the name of ``principal``, in pieces.

    None of them takes long to make. Raises BrokerError if it is not answered.
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
    """Return what a JSON text says; none is an empty array. None if it is not JSON."""
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
