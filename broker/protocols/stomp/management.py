"""Management by a SEND to ``activemq.management``, as in Artemis.

| header or body             | value                                                         |
|----------------------------|---------------------------------------------------------------|
| ``_AMQ_ResourceName``      | ``broker``, ``queue.NAME`` or ``address.NAME``                |
| ``_AMQ_OperationName``     | the operation; or instead                                     |
| ``_AMQ_Attribute``         | the attribute to be read                                      |
| body                       | the operation's arguments, a JSON array                       |
| ``reply-to``               | the destination of the answer: a MESSAGE that has the         |
|                            | ``correlation-id`` of the SEND, and says in                   |
|                            | ``_AMQ_OperationSucceeded`` whether its body is the result or |
|                            | why nothing was done                                          |
| ``receipt``                | comes when the answer is in its place; without ``reply-to``   |
|                            | it is the answer, and an ERROR the refusal                    |

What only asks needs a ``reply-to``. Artemis does not answer without one.
"""

from typing import Final

from orthia.broker.core import management
from orthia.broker.core.api import ManagementAnswer, ManagementRequest, OutgoingMessage
from orthia.broker.protocols.stomp.client_frame import Frame
from orthia.broker.protocols.stomp.composite import destinations_of
from orthia.broker.protocols.stomp.encoding import header_lines
from orthia.broker.protocols.stomp.frames import ProtocolError
from orthia.journal.model.message import DEFAULT_PRIORITY

DESTINATIONS: Final = frozenset(one.encode() for one in management.DESTINATIONS)
_RESOURCE: Final = management.RESOURCE.encode()
_OPERATION: Final = management.OPERATION.encode()
_ATTRIBUTE: Final = management.ATTRIBUTE.encode()


def read_request(frame: Frame) -> ManagementRequest:
    """Return what a SEND asks for; raises ProtocolError."""
    if b"transaction" in frame.raw:
        raise ProtocolError(management.IN_TRANSACTION)
    attribute = frame.get(_ATTRIBUTE)
    if not attribute:
        return ManagementRequest(
            frame.required(_RESOURCE), frame.required(_OPERATION), arguments=frame.body
        )
    if frame.get(_OPERATION):
        raise ProtocolError("a management request has an _AMQ_OperationName or an _AMQ_Attribute")
    return ManagementRequest(frame.required(_RESOURCE), attribute, is_attribute=True)


def reply_to(frame: Frame, request: ManagementRequest) -> str | None:
    """Return the destination of the answer; None if the RECEIPT is. Raises ProtocolError."""
    destination = frame.get(b"reply-to")
    if not destination:
        if not management.only_asks(request):
            return None
        raise ProtocolError(
            f"{request.operation[:100]} has no reply-to header: it is answered there, and changes"
            " nothing"
        )
    if destinations_of(destination) is not None:
        raise ProtocolError("an answer goes to one destination, and reply-to names several")
    return destination


def reply(frame: Frame, answer: ManagementAnswer) -> OutgoingMessage:
    """Return the message that answers a request; it is not persistent, as in Artemis."""
    succeeded = "true" if answer.error is None else "false"
    headers = {management.SUCCEEDED: succeeded, "persistent": "false"}
    correlation_id = frame.get(b"correlation-id")
    if correlation_id is not None:
        headers["correlation-id"] = correlation_id
    return OutgoingMessage(header_lines(headers), answer.body, False, 0, DEFAULT_PRIORITY)  # noqa: FBT003
