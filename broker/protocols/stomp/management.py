"""How a client asks for an operation by a SEND to ``activemq.management``, as in Artemis.

| header or body             | value                                                         |
|----------------------------|---------------------------------------------------------------|
| ``_AMQ_ResourceName``      | of what: ``broker``, or ``queue.NAME``                        |
| ``_AMQ_OperationName``     | what: ``orthia.broker.management.operations`` has those       |
| body                       | its arguments, a JSON array                                   |
| ``receipt``                | its RECEIPT has ``deleted-messages``, once all is done        |

Artemis answers at ``reply-to``.
"""

from orthia.broker.core.destinations import MANAGEMENT_ADDRESS
from orthia.broker.management.operations import Operation, UnknownOperation, read_operation
from orthia.broker.protocols.stomp.client_frame import Frame
from orthia.broker.protocols.stomp.frames import ProtocolError

DESTINATIONS = frozenset({MANAGEMENT_ADDRESS.encode(), f"/queue/{MANAGEMENT_ADDRESS}".encode()})
_RESOURCE = b"_AMQ_ResourceName"
_OPERATION = b"_AMQ_OperationName"


def read_request(frame: Frame) -> Operation:
    """Return what a SEND asks for; raises ProtocolError."""
    if b"transaction" in frame.raw:
        raise ProtocolError("a management request is done at once, and cannot be in a transaction")
    if b"reply-to" in frame.raw:
        raise ProtocolError("a management request is answered by its RECEIPT, not at reply-to")
    try:
        return read_operation(frame.required(_RESOURCE), frame.required(_OPERATION), frame.body)
    except UnknownOperation as error:
        raise ProtocolError(str(error)) from error
