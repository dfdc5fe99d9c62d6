"""What a client gets that its application acknowledged in the database."""

import gc

import pytest

from orthia.broker.protocols.amqp.performatives import (
    ACCEPTED,
    RECEIVER,
    SENDER,
    Disposition,
    Flow,
    Outcome,
    Rejected,
    TransactionalState,
    Transfer,
)
from orthia.journal.model.message import Message
from tests.amqp.support import WINDOW, Client, Received
from tests.core.support import CoreUnderTest

QUEUE = "/queue/orders"


def settle(core: CoreUnderTest, *texts: str) -> None:
    """Tell the core of a commit that acknowledges messages."""
    (subscription,) = core.broker.queues()["orders"].subscriptions
    subscription.settle_delivered(
        {one.seq for one in subscription.held() if one.record.body.decode() in texts}
    )
    core.settle()


def test_what_was_acknowledged_by_sql_is_settled_with_the_client() -> None:
    """At once, by as few frames as can say it."""
    core = CoreUnderTest()
    core.send(QUEUE, *"abcd")
    client = Client(core)
    client.receiver("orders", 4)
    first, second, _, last = client.messages()
    settle(core, "a", "b", "d")
    assert client.outcomes() == [
        Disposition(SENDER, first.id, second.id, settled=True, state=ACCEPTED),
        Disposition(SENDER, last.id, last.id, settled=True, state=ACCEPTED),
    ]


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("outcome", [ACCEPTED, Rejected()])
@pytest.mark.parametrize("in_transaction", [False, True])
def test_an_outcome_of_a_settled_message_changes_nothing(
    outcome: Outcome, *, settled: bool, in_transaction: bool
) -> None:
    """Neither is it an error, nor does the message come back."""
    core = CoreUnderTest()
    core.send(QUEUE, *"abc")
    client = Client(core)
    client.receiver("orders", 3)
    messages = client.messages()
    settle(core, "a")
    client.all()
    coordinator = client.coordinator()
    txn_id = client.declare(coordinator)
    state = TransactionalState(txn_id, outcome) if in_transaction else outcome
    client.say(Disposition(RECEIVER, messages[0].id, settled=settled, state=state))
    client.discharge(coordinator, txn_id)
    assert client.states() == [ACCEPTED], "of the transaction alone"
    assert core.broker.queues()["orders"].depth == 2


def test_nothing_is_kept_of_settled_messages() -> None:
    """However many there are of them before the client says an outcome, if it ever does."""
    core = CoreUnderTest()
    client = Client(core)
    client.receiver("orders", 1_000)
    for one in range(20):
        core.send(QUEUE, f"text {one}")
        client.all()
        settle(core, f"text {one}")
    client.all()
    gc.collect()
    kept = [one for one in gc.get_objects() if type(one) is Message]
    assert [one for one in kept if one.body.startswith(b"text ")] == []


def test_a_message_that_is_not_written_whole_is_not_settled() -> None:
    """The client has not got it: it says an outcome, which changes nothing."""
    core = CoreUnderTest()
    core.send(QUEUE, "x" * 2_000)
    client = Client(core, max_frame_size=512)
    client.say(Flow(0, 2, 0, WINDOW))
    receiver = client.receiver("orders")
    client.say(Flow(0, 2, 0, WINDOW, receiver, 0, 10))
    begun = list(client.came())
    settle(core, "x" * 2_000)
    assert client.outcomes() == []
    client.say(Flow(2, WINDOW, 2, WINDOW))
    whole = [payload for said, payload in (*begun, *client.came()) if isinstance(said, Transfer)]
    message = Received(Transfer(receiver, 0), b"".join(whole))
    assert message.text == "x" * 2_000
    client.say(Disposition(RECEIVER, 0, settled=False, state=ACCEPTED))
    assert client.states() == [ACCEPTED]
    assert core.broker.queues()["orders"].depth == 0
