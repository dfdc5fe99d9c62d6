"""What a client may have the broker do by a SEND to ``activemq.management``, as in Artemis.

| header or body             | value                                                         |
|----------------------------|---------------------------------------------------------------|
| ``_AMQ_ResourceName``      | ``broker``                                                    |
| ``_AMQ_OperationName``     | ``destroyQueue``                                              |
| body                       | a JSON array: the queue's name, and ``true`` to delete it     |
|                            | although it has messages or consumers                         |
| ``receipt``                | its RECEIPT has ``deleted-messages``, once all is done        |

Artemis answers at ``reply-to``, and deletes the messages of a queue in any case.
"""

import json
from typing import NamedTuple

from orthia.broker.core.destinations import MANAGEMENT_ADDRESS
from orthia.broker.protocols.stomp.frames import ProtocolError
from orthia.broker.protocols.stomp.parser import Frame
from orthia.broker.quoting import quoted

DESTINATIONS = frozenset({MANAGEMENT_ADDRESS.encode(), f"/queue/{MANAGEMENT_ADDRESS}".encode()})
_RESOURCE = b"_AMQ_ResourceName"
_OPERATION = b"_AMQ_OperationName"


class DeleteQueue(NamedTuple):
    """A request to delete a queue."""

    name: str
    force: bool
    """Whether also with messages and consumers."""


def read_request(frame: Frame) -> DeleteQueue:
    """Return what a SEND asks for; raises ProtocolError."""
    if b"transaction" in frame.raw:
        raise ProtocolError("a management request is done at once, and cannot be in a transaction")
    if b"reply-to" in frame.raw:
        raise ProtocolError("a management request is answered by its RECEIPT, not at reply-to")
    resource, operation = frame.required(_RESOURCE), frame.required(_OPERATION)
    if (resource, operation) != ("broker", "destroyQueue"):
        raise ProtocolError(
            f"there is no operation {quoted(operation)} of {quoted(resource)} here; expected"
            " destroyQueue of broker"
        )
    try:
        match json.loads(frame.body):
            case [str(name)]:
                return DeleteQueue(name, force=False)
            case [str(name), bool(force)]:
                return DeleteQueue(name, force)
    except (ValueError, RecursionError):
        pass
    raise ProtocolError(
        'the body is not what destroyQueue takes; expected a JSON array as ["NAME"] or'
        ' ["NAME", true]'
    )
