"""What may be changed of a running node, by Artemis' names; whoever asks, in whatever protocol.

An operation is asked for by the name of a resource, its own name, and a JSON array of arguments:

| resource | operation    | arguments                                                            |
|----------|--------------|----------------------------------------------------------------------|
| broker   | destroyQueue | the queue's name, and ``true`` to delete it although it has messages |
|          |              | or consumers                                                         |
| queue.N  | removeMessage| the id of a message that queue N holds until it is delivered later   |

Artemis deletes the messages of a queue in any case.
"""

import json
from collections.abc import Callable
from typing import NamedTuple

from orthia.broker.core.api import BrokerCore
from orthia.broker.core.identity import Principal
from orthia.broker.quoting import quoted
from orthia.config.errors import OrthiaError


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


Operation = DestroyQueue | RemoveMessage
_OF_QUEUE = "queue."


def read_operation(resource: str, operation: str, arguments: bytes) -> Operation:
    """Return what is asked for; raises UnknownOperation, which says what was expected."""
    if resource.startswith(_OF_QUEUE) and operation == "removeMessage":
        return _remove_message(resource.removeprefix(_OF_QUEUE), arguments)
    if (resource, operation) != ("broker", "destroyQueue"):
        raise UnknownOperation(
            f"there is no operation {quoted(operation)} of {quoted(resource)} here; expected"
            " destroyQueue of broker, or removeMessage of queue.NAME"
        )
    try:
        match json.loads(arguments):
            case [str(name)]:
                return DestroyQueue(name, force=False)
            case [str(name), bool(force)]:
                return DestroyQueue(name, force)
    except (ValueError, RecursionError):
        pass
    raise UnknownOperation(
        'the body is not what destroyQueue takes; expected a JSON array as ["NAME"] or'
        ' ["NAME", true]'
    )


def _remove_message(queue: str, arguments: bytes) -> RemoveMessage:
    try:
        match json.loads(arguments):
            case [int(seq)] if not isinstance(seq, bool):
                return RemoveMessage(queue, seq)
    except (ValueError, RecursionError):
        pass
    raise UnknownOperation(
        "the body is not what removeMessage takes; expected a JSON array of a message id, as [4711]"
    )
