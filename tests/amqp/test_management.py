"""What an AMQP client can have the broker do by a message to the management address."""

import json
from typing import Any

import pytest

from orthia.broker.protocols.amqp.performatives import (
    ACCEPTED,
    Rejected,
    TransactionalState,
)
from orthia.broker.protocols.amqp.sections import (
    Properties,
    encode_application_properties,
    encode_properties,
)
from orthia.broker.protocols.amqp.values import ULong
from orthia.config.settings import Settings
from tests.amqp.support import Client
from tests.core.support import SETTINGS
from tests.management.support import Managed
from tests.stomp.support import PASSCODE, QUEUE, secured


class Asking:
    """A client of a node that does what clients ask for."""

    def __init__(
        self, options: Settings = SETTINGS, *messages: str, login: str | None = None
    ) -> None:
        self.managed = Managed(options)
        self.managed.manage()
        self.core = self.managed.core
        self.core.send(QUEUE, *messages)
        self.core.settle()
        self.client = Client(self.core, opens=login is None)
        if login is not None:
            self.client.log_in("PLAIN", f"\0{login}\0{PASSCODE}".encode())
            self.client.open()
        self.handle = self.client.sender("activemq.management")
        self.client.receiver("answers", 100)
        self.client.all()

    def ask(
        self, body: str, properties: Properties | None = None, state: Any = None, **named: Any
    ) -> None:
        """Send a request, and wait for what comes of it."""
        asked: dict[str, Any] = {f"_AMQ_{name}": value for name, value in named.items()}
        said = properties or Properties(reply_to="answers", correlation_id="c")

        def send() -> None:
            self.client.send(self.handle, body, properties=said, application=asked, state=state)

        self.managed.let(send)

    def transfer(self, payload: bytes) -> None:
        """Send a request as bytes, and wait for what comes of it."""

        def send() -> None:
            self.client.transfer(self.handle, payload)

        self.managed.let(send)

    def answer(self) -> tuple[bool, Any]:
        """Return whether the one request succeeded, and its result or the reason."""
        (message,) = self.client.messages()
        text = message.text
        assert isinstance(text, str)
        (result,) = json.loads(text)
        succeeded = message.application_properties["_AMQ_OperationSucceeded"]
        assert isinstance(succeeded, bool)
        return succeeded, result

    def rejection(self) -> str:
        """Return why the one request was rejected."""
        (state,) = self.client.states()
        assert isinstance(state, Rejected)
        assert state.error is not None
        return state.error.description or ""


OWN = "consume createAddress createDurableQueue"
COUNT: dict[str, Any] = {"ResourceName": "queue.orders", "OperationName": "countMessages"}


@pytest.mark.parametrize("about", ["a text", ULong(7), b"binary"])
def test_a_request_is_answered_at_its_reply_to(about: Any) -> None:
    """With its correlation id, of whatever type, or else its message id; then it is accepted."""
    asking = Asking(SETTINGS, "a", "b")
    asking.ask("", Properties(reply_to="answers", correlation_id=about), **COUNT)
    asking.ask("", Properties(reply_to="answers", message_id=about), **COUNT)
    first, second = asking.client.messages()
    assert (first.text, second.text) == ("[2]", "[2]")
    assert first.properties.correlation_id == second.properties.correlation_id == about
    asking.ask("", **COUNT)
    assert asking.client.states() == [ACCEPTED]


def test_operations_and_attributes_are_those_of_others() -> None:
    """The arguments are a JSON array; what is refused is told in the answer."""
    asking = Asking(SETTINGS, "a", "b")
    asking.ask('["red", "red", "ANYCAST"]', ResourceName="broker", OperationName="createQueue")
    assert asking.answer() == (True, None)
    asking.ask('[null, "red"]', ResourceName="queue.orders", OperationName="moveMessages")
    assert asking.answer() == (True, 2)
    asking.ask("", ResourceName="queue.red", Attribute="MessageCount")
    assert asking.answer() == (True, 2)
    asking.ask('["nosuch"]', ResourceName="broker", OperationName="destroyQueue")
    succeeded, reason = asking.answer()
    assert (succeeded, "no queue 'nosuch'" in reason) == (False, True)


def test_without_a_reply_to_the_outcome_is_the_answer() -> None:
    """It is accepted when it is done, or rejected with the reason."""
    asking = Asking(SETTINGS, "a")
    destroy: dict[str, Any] = {"ResourceName": "broker", "OperationName": "destroyQueue"}
    asking.ask('["orders"]', Properties(), **destroy)
    assert "by force only" in asking.rejection()
    asking.ask('["orders", true]', Properties(), **destroy)
    assert asking.client.states() == [ACCEPTED]
    assert "orders" not in asking.core.broker.queues()


@pytest.mark.parametrize(
    ("named", "said", "told"),
    [
        (COUNT, Properties(), "countMessages has no reply-to"),
        (COUNT, Properties(reply_to="activemq.management"), "takes management requests"),
        (COUNT | {"Attribute": "Name"}, Properties(reply_to="answers"), "one of the properties"),
        ({"ResourceName": "broker"}, Properties(reply_to="answers"), "one of the properties"),
        ({"OperationName": "x"}, Properties(reply_to="answers"), "property _AMQ_ResourceName"),
    ],
)
def test_what_cannot_be_answered_is_rejected(
    named: dict[str, Any], said: Properties, told: str
) -> None:
    """With the reason, and the link goes on."""
    asking = Asking(SETTINGS, "a")
    asking.ask("", said, **named)
    assert told in asking.rejection()
    asking.ask("", **COUNT)
    assert asking.answer() == (True, 1)


@pytest.mark.parametrize(
    "body", [b"\0Sw\xc0\3\2\xff\xff", b"\0Sv\xc0\3\2\xff\xff", b"\0Sw\xc1\2\1\xff"]
)
def test_arguments_are_a_text_or_a_binary(body: bytes) -> None:
    """What a list or a map has in it is not looked at, which takes long where it is much."""
    asking = Asking(SETTINGS, "a")
    head = encode_application_properties({f"_AMQ_{name}": one for name, one in COUNT.items()})
    asking.transfer(head + body)
    assert "is a text or a binary" in asking.rejection()


@pytest.mark.parametrize("body", [b"", b"\0Sw\x40", b"\0Su\xa0\2[]", b"\0SxE"])
def test_without_arguments_there_need_be_no_body(body: bytes) -> None:
    """Nor need there be anything in it; a footer is none."""
    asking = Asking(SETTINGS, "a")
    said = Properties(reply_to="answers")
    head = encode_properties(said) + encode_application_properties(
        {f"_AMQ_{name}": one for name, one in COUNT.items()}
    )
    asking.transfer(head + body)
    assert asking.answer() == (True, 1)


def test_a_request_is_in_no_transaction() -> None:
    """What it does could not be undone."""
    asking = Asking(SETTINGS, "a")
    txn_id = asking.client.declare(asking.client.coordinator())
    asking.client.all()
    asking.ask("", state=TransactionalState(txn_id), **COUNT)
    assert "cannot be in a transaction" in asking.rejection()


@pytest.mark.parametrize(
    ("granted", "told"),
    [
        (f"{OWN} send", "'manage' on address 'activemq.management'"),
        (f"{OWN} manage", "'send' on address 'answers'"),
    ],
)
def test_what_a_request_needs(granted: str, told: str) -> None:
    """The permission manage, and to send the answer; without both nothing is done."""
    asking = Asking(secured({"ann": "staff"}, {"#": {"staff": granted}}), "a", login="ann")
    asking.ask("", **COUNT)
    assert told in asking.rejection()
    asking.ask("", ResourceName="queue.orders", OperationName="removeAllMessages")
    assert told in asking.rejection()
    assert asking.core.broker.depths()["orders"] == 1
