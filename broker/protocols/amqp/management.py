# mypyc compiles this module.
"""Management by messages to ``activemq.management``, as in Artemis.

| part                                         | value                                           |
|----------------------------------------------|-------------------------------------------------|
| ``_AMQ_ResourceName``, ``_AMQ_OperationName``, | application properties: see                   |
| ``_AMQ_Attribute``                           | ``orthia.broker.management.requests``           |
| body                                         | the operation's arguments, a JSON array         |
| ``reply-to``                                 | the address of the answer, a text               |
| ``correlation-id``, else ``message-id``      | the ``correlation-id`` of the answer            |

The request is accepted when its answer is in its place. Without ``reply-to`` it is accepted when it
is done, and rejected with the reason if that is refused.
"""

from typing import Final

from typing_extensions import override

from orthia.broker.core.api import ManagementAnswer, ManagementRequest, OutgoingMessage
from orthia.broker.core.errors import BrokerError, NotLive
from orthia.broker.core.management import (
    ATTRIBUTE,
    IN_TRANSACTION,
    OPERATION,
    RESOURCE,
    SUCCEEDED,
    asking,
    only_asks,
)
from orthia.broker.core.slices import Steps
from orthia.broker.protocols.amqp.conditions import (
    INVALID_FIELD,
    NOT_ALLOWED,
    LinkFault,
    unreadable,
)
from orthia.broker.protocols.amqp.encoding import TAG
from orthia.broker.protocols.amqp.link import LinkSession
from orthia.broker.protocols.amqp.nodes import Nodes
from orthia.broker.protocols.amqp.performatives import TransactionalState
from orthia.broker.protocols.amqp.producer import Producer
from orthia.broker.protocols.amqp.receiver import Delivery, Sink
from orthia.broker.protocols.amqp.sections import (
    NO_BODY,
    Properties,
    Sections,
    application_properties_of,
    decode_body,
    encode_application_properties,
    encode_properties,
    properties_of,
    sections_of,
    text_prefix,
)
from orthia.broker.protocols.amqp.types import NULL
from orthia.broker.protocols.amqp.uploads import LargeMessage
from orthia.broker.protocols.amqp.values import AmqpDecodeError, Value
from orthia.config.errors import OrthiaError
from orthia.journal.model.message import DEFAULT_PRIORITY

MOST_BYTES: Final = 512 * 1024


class ManagementSink(Sink):
    """Does what the messages of a link ask for; ``producer`` sends the answers."""

    __slots__ = ("_nodes", "_producer", "_session")

    def __init__(self, session: LinkSession, nodes: Nodes, producer: Producer) -> None:
        self._session = session
        self._nodes = nodes
        self._producer = producer

    @override
    def take(self, delivery: Delivery, data: bytes, begin: int) -> Steps | None:
        client = self._session.client
        try:
            request, said = read_request(delivery, data[begin:])
            if client.core.manager is not None:
                client.core.manager.check(client.principal, request)
            destination = self._answered_at(request, said)
        except NotLive:
            raise
        except AmqpDecodeError as error:
            self.refuse(delivery, unreadable(error))
            return None
        except (BrokerError, LinkFault) as error:
            self.refuse(delivery, error)
            return None
        return self._answering(delivery, request, said, destination)

    def _answered_at(self, request: ManagementRequest, said: Properties) -> str | None:
        """Return the destination of the answer, to which the client may send; None without one."""
        if said.reply_to:
            destination = self._nodes.of_core(said.reply_to, None)
            client = self._session.client
            client.core.check_send(client.principal, destination)
            return destination
        if only_asks(request):
            raise LinkFault(
                INVALID_FIELD,
                f"{request.operation[:100]} has no reply-to: it is answered there, and changes"
                " nothing",
            )
        return None

    def _answering(
        self,
        delivery: Delivery,
        request: ManagementRequest,
        said: Properties,
        destination: str | None,
    ) -> Steps:
        client = self._session.client
        answer = yield from asking(client.core.manager, client.principal, request)
        if delivery.link.is_closed:
            return
        if destination is not None:
            steps = self._producer.answer(delivery, destination, reply(answer, said))
            if steps is not None:
                yield from steps
        elif answer.error is not None:
            self.refuse(delivery, answer.error)
        elif not delivery.is_settled:
            self._session.accept(delivery.id)

    @property
    @override
    def most_named(self) -> str:
        return "a management request is short"

    @override
    def begin(self, payload: bytes) -> LargeMessage | None:
        return None  # none of them is large

    @override
    def finish(self, delivery: Delivery, large: LargeMessage) -> Steps:
        raise LinkFault(NOT_ALLOWED, "a management request is no large message")

    @override
    def refuse(self, delivery: Delivery, error: OrthiaError) -> None:
        self._producer.refuse(delivery, error)

    @override
    def close(self) -> None:
        """Do nothing: what was asked for goes on."""


def read_request(delivery: Delivery, payload: bytes) -> tuple[ManagementRequest, Properties]:
    """Return what a message asks for, and what it says of itself.

    Raises AmqpDecodeError and LinkFault.
    """
    if isinstance(delivery.state, TransactionalState):
        raise LinkFault(NOT_ALLOWED, IN_TRANSACTION)
    sections = sections_of(payload)
    head, body = payload[: sections.head], payload[sections.head :]
    named = application_properties_of(head, sections)
    resource, operation = _named(named, RESOURCE), _named(named, OPERATION)
    attribute = _named(named, ATTRIBUTE)
    if not resource:
        raise LinkFault(INVALID_FIELD, f"a management request has the property {RESOURCE}")
    if bool(operation) is bool(attribute):
        raise LinkFault(
            INVALID_FIELD,
            f"a management request has one of the properties {OPERATION} and {ATTRIBUTE}",
        )
    request = ManagementRequest(
        resource,
        operation or attribute,
        is_attribute=not operation,
        arguments=_arguments(sections, body),
    )
    return request, properties_of(head, sections)


def _arguments(sections: Sections, body: bytes) -> bytes:
    """Return the bytes of a body that is a text or a binary; empty without a body.

    Any other is not decoded: that takes long, and who asks may not even be allowed to.
    """
    if sections.first < 0 and sections.body != NO_BODY and sections.code != NULL:
        raise LinkFault(INVALID_FIELD, "the body of a management request is a text or a binary")
    arguments = decode_body(sections, body).value
    if isinstance(arguments, str):
        return arguments.encode(errors="replace")
    return arguments if isinstance(arguments, bytes) else b""


def _named(properties: dict[object, Value], name: str) -> str:
    value = properties.get(name)
    return value if isinstance(value, str) else ""


def reply(answer: ManagementAnswer, said: Properties) -> OutgoingMessage:
    """Return the message that answers a request; it is not durable, as in Artemis."""
    about = said.message_id if said.correlation_id is None else said.correlation_id
    head = b"".join(
        (
            encode_properties(Properties(correlation_id=about)),
            encode_application_properties({SUCCEEDED: answer.error is None}),
        )
    )
    body = text_prefix(len(answer.body)) + answer.body
    return OutgoingMessage(head, body, False, 0, DEFAULT_PRIORITY, None, TAG)  # noqa: FBT003
