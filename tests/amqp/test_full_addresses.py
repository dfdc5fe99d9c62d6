"""A full address with the policy BLOCK: links that send there get no credit until there is room."""

import gc

import pytest

from orthia.broker.protocols.amqp.options import AmqpOptions
from orthia.broker.protocols.amqp.performatives import (
    SENDER,
    Attach,
    Close,
    Detach,
    End,
    Flow,
    Source,
    Target,
    TransactionalState,
)
from orthia.broker.protocols.amqp.producer import MOST_BEYOND
from orthia.broker.protocols.amqp.receiver import Receiver
from orthia.broker.protocols.amqp.sections import Properties
from orthia.config.acceptor_amqp import AcceptorAmqp
from orthia.config.address_settings import AddressFullPolicy
from orthia.config.settings import ClientLimits
from tests.amqp.support import Client, accepted
from tests.core.support import CoreUnderTest, settings


@pytest.fixture
def core() -> CoreUnderTest:
    """Give a core with an address that blocks its senders at two messages."""
    return CoreUnderTest(
        settings("orders", max_size_messages=2, address_full_policy=AddressFullPolicy.BLOCK)
    )


def connected(core: CoreUnderTest) -> Client:
    """Connect a client whose links get credit for five messages, once they have two or fewer."""
    options = AmqpOptions(ClientLimits(), amqp=AcceptorAmqp(credits=5, low_credits=2))
    return Client(core, options=options)


def credit(client: Client, handle: int) -> list[int | None]:
    """Return the credit that a link was given since the last time."""
    flows = [one for one in client.all() if isinstance(one, Flow)]
    return [one.link_credit for one in flows if one.handle == handle]


def attach(client: Client, handle: int, address: str) -> list[int | None]:
    """Attach a link that sends; return the credit that it gets."""
    client.say(Attach(f"s{handle}", handle, SENDER, source=Source(), target=Target(address)))
    return credit(client, handle)


def test_a_link_gets_no_credit_while_its_address_is_full(core: CoreUnderTest) -> None:
    """What it sends by the credit it has is taken, and the other links of the client go on."""
    client = connected(core)
    assert attach(client, 1, "orders") == [5]
    client.send(1, *"abcde")
    assert accepted(client.states()) == 5
    assert not client.connection.is_waiting
    receiver = client.receiver("orders", 10)
    messages = client.messages()
    assert [one.text for one in messages] == [*"abcde"]
    client.settle(*messages[:3])
    core.pass_time(1)
    assert credit(client, 1) == []
    client.settle(*messages[3:])
    core.pass_time(1)
    assert credit(client, 1) == [5]
    client.send(1, "f")
    client.flow(receiver, 10, count=5)
    assert [one.text for one in client.messages()] == ["f"]


def test_a_link_to_a_full_address_begins_without_credit(core: CoreUnderTest) -> None:
    """Whoever attaches anew gets around nothing; credit comes by itself, once there is room."""
    client = connected(core)
    core.send("/queue/orders", *"ab")
    assert attach(client, 1, "orders") == []
    client.say(Detach(1, closed=True))
    client.all()
    assert attach(client, 2, "orders") == []
    core.consume("/queue/orders", auto=True)
    core.pass_time(1)
    assert credit(client, 2) == [5]


@pytest.mark.parametrize("end", [Detach(1, closed=True), End(), Close(), None])
def test_nothing_is_kept_of_a_link_that_ends_while_it_waits(
    core: CoreUnderTest, end: object
) -> None:
    """However it ends; nothing is said of it once there is room."""
    client = connected(core)
    core.send("/queue/orders", *"ab")
    attach(client, 1, "orders")
    if end is None:
        client.connection.connection_lost()
    else:
        client.say(end)
    client.all()
    core.settle()
    gc.collect()
    assert [one for one in gc.get_objects() if type(one) is Receiver] == []
    core.consume("/queue/orders", auto=True)
    core.pass_time(1)
    assert client.all() == []


def test_a_commit_does_not_wait_for_room(core: CoreUnderTest) -> None:
    """Its links get no credit, so that what consumes by the same connection goes on."""
    client = connected(core)
    control = client.coordinator()
    assert attach(client, 1, "orders") == [5]
    core.send("/queue/orders", *"ab")
    for texts in ("cd", "e"):
        txn_id = client.declare(control)
        client.send(1, *texts, state=TransactionalState(txn_id))
        client.states()
        client.discharge(control, txn_id)
        assert accepted(client.states()) == 1
        assert not client.connection.is_waiting
    assert core.broker.depths()["orders"] == 5
    client.receiver("orders", 10)
    messages = client.messages()
    assert [one.text for one in messages] == [*"abcde"]
    client.settle(*messages)
    core.pass_time(1)
    assert credit(client, 1) == [5]


def test_what_a_client_sends_beyond_is_bounded(core: CoreUnderTest) -> None:
    """However much credit it has by other links and large messages: it is read no more then."""
    client = Client(core)
    senders = [client.sender(None) for _ in range(2)]
    text = "x" * (MOST_BEYOND // 32)
    waiting = []
    for number in range(34):
        client.send(senders[number % 2], text, properties=Properties(to="orders"))
        waiting.append(client.connection.is_waiting)
    assert waiting == [False] * 33 + [True]
    core.consume("/queue/orders", auto=True)
    core.pass_time(1)
    assert not client.connection.is_waiting
    assert client.connection.beyond == 0
