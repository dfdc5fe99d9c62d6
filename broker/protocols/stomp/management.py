"""Management by a SEND to ``activemq.management``, as in Artemis.

| header or body             | value                                                         |
|----------------------------|---------------------------------------------------------------|
| ``_AMQ_ResourceName``      | ``broker``, or ``queue.NAME``                                 |
| ``_AMQ_OperationName``     | one of ``orthia.broker.management.operations``                |
| body                       | the operation's arguments, a JSON array                       |
| ``receipt``                | of an operation that changes something: its RECEIPT has       |
|                            | ``deleted-messages``, once all is done                        |
| ``reply-to``               | of a question: the destination of the answer, the body of a   |
|                            | MESSAGE that has the ``correlation-id`` of the SEND           |

Artemis answers all operations at ``reply-to``, refusals too; here a refusal is an ERROR.
"""

from typing import Final

from orthia.broker.core.api import OutgoingMessage
from orthia.broker.core.destinations import MANAGEMENT_ADDRESS
from orthia.broker.management.operations import (
    Operation,
    Question,
    UnknownOperation,
    read_operation,
)
from orthia.broker.protocols.stomp.client_frame import Frame
from orthia.broker.protocols.stomp.composite import destinations_of
from orthia.broker.protocols.stomp.encoding import header_lines
from orthia.broker.protocols.stomp.frames import ProtocolError
from orthia.journal.model.message import DEFAULT_PRIORITY

DESTINATIONS = frozenset({MANAGEMENT_ADDRESS.encode(), f"/queue/{MANAGEMENT_ADDRESS}".encode()})
_RESOURCE: Final = b"_AMQ_ResourceName"
_OPERATION: Final = b"_AMQ_OperationName"
_SUCCEEDED: Final = "_AMQ_OperationSucceeded"


def read_request(frame: Frame) -> Operation | Question:
    """Return the operation that a SEND asks for; raises ProtocolError."""
    if b"transaction" in frame.raw:
        raise ProtocolError("a management request is done at once, and cannot be in a transaction")
    operation = frame.required(_OPERATION)
    try:
        request = read_operation(frame.required(_RESOURCE), operation, frame.body)
    except UnknownOperation as error:
        raise ProtocolError(str(error)) from error
    if isinstance(request, Operation) and b"reply-to" in frame.raw:
        raise ProtocolError(f"{operation} is answered by its RECEIPT, not at reply-to")
    return request


def reply_to(frame: Frame) -> str:
    """Return the destination of the answer to a question; raises ProtocolError."""
    destination = frame.get(b"reply-to")
    if not destination:
        raise ProtocolError(
            f"{frame.required(_OPERATION)} has no reply-to header: it is answered there, and"
            " changes nothing"
        )
    if destinations_of(destination) is not None:
        raise ProtocolError("an answer goes to one destination, and reply-to names several")
    return destination


def reply(frame: Frame, answer: bytes) -> OutgoingMessage:
    """Return the message that answers a question; it is not persistent, as in Artemis."""
    headers = {_SUCCEEDED: "true", "persistent": "false"}
    correlation_id = frame.get(b"correlation-id")
    if correlation_id is not None:
        headers["correlation-id"] = correlation_id
    return OutgoingMessage(header_lines(headers), answer, False, 0, DEFAULT_PRIORITY)  # noqa: FBT003
