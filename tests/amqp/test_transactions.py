"""Transactions of AMQP: what is sent and settled in one is done whole, or not at all."""

from dataclasses import replace

import pytest

from orthia.broker.protocols.amqp.performatives import (
    ACCEPTED,
    RECEIVER,
    RELEASED,
    Declare,
    Declared,
    Detach,
    Disposition,
    End,
    Flow,
    Modified,
    Outcome,
    Rejected,
    Source,
    TransactionalState,
    Transfer,
    encode_performative,
)
from orthia.broker.protocols.amqp.sections import VALUE, Properties
from orthia.broker.protocols.amqp.types import encode_described
from orthia.broker.protocols.amqp.values import Symbol
from orthia.config.settings import ClientLimits
from orthia.journal.errors import UnitRefused
from tests.amqp.support import Client, Received, encoded
from tests.core.support import SETTINGS, CoreUnderTest, settings
from tests.stomp.support import secured

QUEUE = "/queue/orders"


def settle(client: Client, txn_id: bytes, *messages: Received, settled: bool = True) -> None:
    """Accept messages in a transaction."""
    state = TransactionalState(txn_id, ACCEPTED)
    client.settle(*messages, state=state, settled=settled)


def depth(core: CoreUnderTest) -> int:
    """Return how many messages the queue has."""
    return core.broker.depths().get("orders", 0)


def test_what_is_sent_in_a_transaction_is_there_after_its_commit() -> None:
    """Each message is accepted in the transaction, and nothing is stored before."""
    core = CoreUnderTest()
    client = Client(core)
    control, sender = client.coordinator(), client.sender("orders")
    txn_id = client.declare(control)
    client.send(sender, "a", "b", state=TransactionalState(txn_id))
    assert client.states() == [TransactionalState(txn_id, ACCEPTED)] * 2
    assert depth(core) == 0
    client.discharge(control, txn_id)
    assert client.states() == [ACCEPTED]
    assert depth(core) == 2


@pytest.mark.parametrize("of_first", [True, False])
@pytest.mark.parametrize("commits", [True, False])
def test_a_message_in_several_frames_is_of_a_transaction_if_one_of_them_says_so(
    *, of_first: bool, commits: bool
) -> None:
    """It is sent with the commit, and not at once."""
    core = CoreUnderTest()
    client = Client(core)
    control, sender = client.coordinator(), client.sender("orders")
    txn_id = client.declare(control)
    states = [TransactionalState(txn_id), None]
    first, second = states if of_first else reversed(states)
    payload = encoded("a")
    client.say(Transfer(sender, 7, b"7", 0, state=first, more=True), payload[:5])
    client.say(Transfer(sender, state=second), payload[5:])
    assert client.states() == [TransactionalState(txn_id, ACCEPTED)]
    assert depth(core) == 0
    client.discharge(control, txn_id, fail=not commits)
    assert client.states() == [ACCEPTED]
    assert depth(core) == commits


@pytest.mark.parametrize(
    "descriptor", [b"\0\x53\x77", b"\0\x80\0\0\0\0\0\0\0\x77", b"\0\xa3\x11amqp:amqp-value:*"]
)
def test_a_transaction_begins_whatever_form_its_section_has(descriptor: bytes) -> None:
    """A section says what it is by a short number, a long one, or a symbol."""
    client = Client(CoreUnderTest())
    client.transfer(client.coordinator(), descriptor + encode_performative(Declare()))
    assert [type(one) for one in client.states()] == [Declared]


def test_a_commit_is_answered_once_it_is_stored() -> None:
    """Not before, as every outcome."""
    core = CoreUnderTest()
    client = Client(core)
    control, sender = client.coordinator(), client.sender("orders")
    txn_id = client.declare(control)
    client.send(sender, "a", state=TransactionalState(txn_id), settled=True)
    core.journal.auto_commit = False
    client.discharge(control, txn_id)
    assert client.states() == []
    core.store_all()
    assert client.states() == [ACCEPTED]


def test_what_is_sent_and_settled_together_is_one_unit() -> None:
    """A message is taken and another sent, or neither."""
    core = CoreUnderTest()
    core.send(QUEUE, "in")
    client = Client(core)
    control, sender = client.coordinator(), client.sender("out")
    client.send(sender, "before")
    client.receiver("orders", 1)
    messages = client.messages()
    txn_id = client.declare(control)
    settle(client, txn_id, *messages)
    client.send(sender, "out", state=TransactionalState(txn_id), settled=True)
    core.journal.auto_commit = False
    client.discharge(control, txn_id)
    assert len(core.journal.waiting) == 1
    core.store_all()
    assert client.states() == [ACCEPTED]
    assert core.stored_texts() == ["before", "out"]


def test_what_is_rolled_back_was_not_sent_and_comes_again() -> None:
    """As a failed delivery, for the client has forgotten it."""
    core = CoreUnderTest()
    core.send(QUEUE, "in")
    client = Client(core)
    control, sender = client.coordinator(), client.sender("orders")
    receiver = client.receiver("orders", 1)
    (message,) = client.messages()
    txn_id = client.declare(control)
    settle(client, txn_id, message)
    client.send(sender, "out", state=TransactionalState(txn_id), settled=True)
    client.discharge(control, txn_id, fail=True)
    assert client.states() == [ACCEPTED]
    client.flow(receiver, 5, count=1)
    (again,) = client.messages()
    assert (again.text, again.header.delivery_count) == ("in", 1)
    assert depth(core) == 1


def test_what_the_client_has_not_settled_is_its_own_again_after_a_roll_back() -> None:
    """It may say an outcome of it then, as of every delivery."""
    core = CoreUnderTest()
    core.send(QUEUE, "in")
    client = Client(core)
    control = client.coordinator()
    client.receiver("orders", 1)
    messages = client.messages()
    txn_id = client.declare(control)
    settle(client, txn_id, *messages, settled=False)
    client.discharge(control, txn_id, fail=True)
    client.settle(*messages)
    assert depth(core) == 0


def test_what_the_client_has_not_settled_is_settled_with_the_commit() -> None:
    """By the broker, which says so."""
    core = CoreUnderTest()
    core.send(QUEUE, "in")
    client = Client(core)
    control = client.coordinator()
    client.receiver("orders", 1)
    (message,) = client.messages()
    txn_id = client.declare(control)
    settle(client, txn_id, message, settled=False)
    client.discharge(control, txn_id)
    said = client.outcomes()
    assert [(one.role, one.first, one.state) for one in said] == [
        (False, message.id, ACCEPTED),
        (RECEIVER, 1, ACCEPTED),
    ]


def test_a_failed_delivery_in_a_transaction_goes_back_with_its_commit() -> None:
    """And is counted as an attempt."""
    core = CoreUnderTest()
    core.send(QUEUE, "in")
    client = Client(core)
    control = client.coordinator()
    receiver = client.receiver("orders", 1)
    (message,) = client.messages()
    txn_id = client.declare(control)
    client.settle(message, state=TransactionalState(txn_id, Modified(delivery_failed=True)))
    client.flow(receiver, 1, count=1)
    assert client.messages() == []
    client.discharge(control, txn_id)
    assert [one.header.delivery_count for one in client.messages()] == [1]


@pytest.mark.parametrize("settled", [True, False])
@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize(
    ("outcome", "depths", "count"),
    [
        (ACCEPTED, {"orders": 0, "DLQ": 0}, None),
        (RELEASED, {"orders": 1, "DLQ": 0}, 1),
        (Modified(), {"orders": 1, "DLQ": 0}, 1),
        (Modified(delivery_failed=True), {"orders": 1, "DLQ": 0}, 1),
        (Modified(undeliverable_here=True), {"orders": 0, "DLQ": 1}, None),
        (Rejected(), {"orders": 0, "DLQ": 1}, None),
    ],
)
def test_every_outcome_acts_with_the_commit_of_its_transaction(
    outcome: Outcome, depths: dict[str, int], count: int | None, *, settled: bool, commits: bool
) -> None:
    """As it does without one; until then, and if it is rolled back, the message is as it was."""
    core = CoreUnderTest(settings(dead_letter_address="DLQ", max_delivery_attempts=5))
    core.send("/queue/DLQ", "x")
    core.send(QUEUE, "in")
    client = Client(core)
    control = client.coordinator()
    client.receiver("orders", 1)
    (message,) = client.messages()
    txn_id = client.declare(control)
    client.settle(message, state=TransactionalState(txn_id, outcome), settled=settled)
    assert client.all() == []
    before = core.broker.depths()
    client.discharge(control, txn_id, fail=not commits)
    assert before["orders"] == 1
    *said, discharged = client.outcomes()
    assert discharged.state == ACCEPTED
    assert [one.state for one in said] == ([outcome] if commits and not settled else [])
    found = {name: depth for name, depth in core.broker.depths().items() if name in depths}
    found["DLQ"] -= 1
    assert found == (depths if commits else {"orders": 1, "DLQ": 0})
    client.connection.connection_lost()
    if commits and count is not None:
        other = Client(core)
        other.receiver("orders", 1)
        assert [one.header.delivery_count for one in other.messages()] == [count]


@pytest.mark.parametrize("commits", [True, False])
def test_a_subscriber_of_a_topic_gets_again_what_it_released_in_a_transaction(
    *, commits: bool
) -> None:
    """From its link, with the commit or without it; what it accepts is gone."""
    core = CoreUnderTest()
    client = Client(core)
    control = client.coordinator()
    client.receiver("", 5, source=Source("news", capabilities=(Symbol("topic"),)))
    core.send("/topic/news", "a", "b")
    released, accepted = client.messages()
    txn_id = client.declare(control)
    client.settle(released, state=TransactionalState(txn_id, RELEASED))
    client.settle(accepted, state=TransactionalState(txn_id, ACCEPTED))
    assert client.all() == []
    client.discharge(control, txn_id, fail=not commits)
    assert client.texts() == (["a"] if commits else ["a", "b"])


@pytest.mark.parametrize("fail", [True, False])
def test_a_transaction_that_is_not_open_is_refused(fail: bool) -> None:
    """By the condition for it; so is a message in one."""
    client = Client(CoreUnderTest())
    control, sender = client.coordinator(), client.sender("orders")
    client.discharge(control, b"none", fail=fail)
    client.send(sender, "a", state=TransactionalState(b"none"))
    for state in client.states():
        assert isinstance(state, Rejected)
        assert state.error is not None
        assert state.error.condition == "amqp:transaction:unknown-id"


def test_a_transaction_of_several_resources_is_refused() -> None:
    """And what is no message to a coordinator ends its link."""
    client = Client(CoreUnderTest())
    control = client.coordinator()
    client.transfer(control, encode_described(VALUE, encode_performative(Declare("global"))))
    (state,) = client.states()
    assert isinstance(state, Rejected)
    assert state.error is not None
    assert state.error.condition == "amqp:not-implemented"
    client.send(control, "text")
    detach = client.take(Detach)
    assert detach.error is not None
    assert detach.error.condition == "amqp:decode-error"


def test_a_commit_that_is_refused_is_rolled_back() -> None:
    """Its client learns so by the condition for it, and the connection goes on."""
    core = CoreUnderTest()
    core.send(QUEUE, "in")
    client = Client(core)
    control, sender = client.coordinator(), client.sender("later")
    receiver = client.receiver("orders", 1)
    (message,) = client.messages()
    txn_id = client.declare(control)
    settle(client, txn_id, message)
    client.send(sender, "out", state=TransactionalState(txn_id), settled=True)
    core.broker.delete_queue(client.connection.principal, "later", lambda _: None, force=True)
    core.settle()
    client.all()
    core.broker.parts.book.address("later").declare(frozenset())
    client.say(Detach(receiver, closed=True))
    client.all()
    client.discharge(control, txn_id)
    (state,) = client.states()
    assert isinstance(state, Rejected)
    assert state.error is not None
    assert state.error.condition == "amqp:transaction:rollback"
    assert depth(core) == 1
    assert not client.closed


@pytest.mark.parametrize("is_settled", [True, False])
def test_a_commit_that_the_store_refuses_is_rolled_back(*, is_settled: bool) -> None:
    """What was settled in it comes again, with a failed delivery; what was sent was not."""
    core = CoreUnderTest()
    core.send(QUEUE, "in")
    client = Client(core)
    control, sender = client.coordinator(), client.sender("orders")
    client.receiver("orders", 5)
    (message,) = client.messages()
    client.send(sender, "before")
    client.all()
    txn_id = client.declare(control)
    state = TransactionalState(txn_id, ACCEPTED)
    client.settle(message, state=state, settled=is_settled)
    client.send(sender, "out", state=TransactionalState(txn_id), settled=True)
    core.journal.auto_commit = False
    client.discharge(control, txn_id)
    core.journal.refuse(UnitRefused("value out of range"))
    core.journal.commit()
    core.settle()
    *released, rejected, again = [one for one in client.all() if not isinstance(one, Flow)]
    assert [one.state for one in released if isinstance(one, Disposition)] == (
        [] if is_settled else [RELEASED]
    )
    assert isinstance(rejected, Disposition)
    assert isinstance(rejected.state, Rejected)
    assert rejected.state.error is not None
    assert rejected.state.error.condition == "amqp:transaction:rollback"
    assert "value out of range" in (rejected.state.error.description or "")
    assert isinstance(again, Transfer)
    core.journal.auto_commit = True
    client.say(Disposition(RECEIVER, again.delivery_id or 0, settled=True, state=ACCEPTED))
    client.send(sender, "after")
    assert client.states()[-1] == ACCEPTED
    assert core.stored_texts() == ["before", "after"]


@pytest.mark.parametrize("how", ["end", "lose"])
def test_a_transaction_ends_with_its_session(how: str) -> None:
    """Rolled back: nothing of it was done."""
    core = CoreUnderTest()
    core.send(QUEUE, "in")
    client = Client(core)
    control, sender = client.coordinator(), client.sender("orders")
    client.receiver("orders", 1)
    (message,) = client.messages()
    txn_id = client.declare(control)
    settle(client, txn_id, message)
    client.send(sender, "out", state=TransactionalState(txn_id), settled=True)
    assert [one.sends for one in client.connection.open_transactions()] == [1]
    if how == "end":
        client.say(End())
        assert client.connection.open_transactions() == []
    else:
        client.connection.connection_lost()
    core.settle()
    assert core.stored_texts() == ["in"]


def test_a_subscriber_of_a_topic_gets_again_what_was_rolled_back() -> None:
    """Its link keeps that, for a topic stores nothing."""
    core = CoreUnderTest()
    client = Client(core)
    control = client.coordinator()
    client.receiver("", 5, source=Source("news", capabilities=(Symbol("topic"),)))
    core.send("/topic/news", "a")
    messages = client.messages()
    txn_id = client.declare(control)
    settle(client, txn_id, *messages)
    client.discharge(control, txn_id, fail=True)
    (again,) = client.messages()
    assert (again.text, again.header.delivery_count) == ("a", 1)


@pytest.mark.parametrize(
    ("limits", "problem"),
    [
        (ClientLimits(max_transactions=1), "max-transactions 1"),
        (ClientLimits(max_transaction_bytes=1_000), "max-transaction-bytes 1000"),
    ],
)
def test_open_transactions_are_bounded(limits: ClientLimits, problem: str) -> None:
    """In number and in size."""
    client = Client(CoreUnderTest(), limits=limits)
    control = client.coordinator()
    client.declare(control)
    client.transfer(control, encode_described(VALUE, encode_performative(Declare())))
    (state,) = client.states()
    assert isinstance(state, Rejected)
    assert state.error is not None
    assert state.error.condition == "amqp:resource-limit-exceeded"
    assert problem in (state.error.description or "")


def test_what_a_transaction_does_is_bounded_in_number() -> None:
    """What it sends, and what it settles."""
    core = CoreUnderTest()
    core.send(QUEUE, "x", "y")
    client = Client(core, limits=ClientLimits(max_transaction_entries=2))
    control, sender = client.coordinator(), client.sender("orders")
    client.receiver("orders", 1)
    messages = client.messages()
    txn_id = client.declare(control)
    client.send(sender, "a", "b", "c", state=TransactionalState(txn_id))
    *taken, refused = client.states()
    assert taken == [TransactionalState(txn_id, ACCEPTED)] * 2
    assert isinstance(refused, Rejected)
    settle(client, txn_id, *messages)
    detach = client.take(Detach)
    assert detach.error is not None
    assert "max-transaction-entries 2" in (detach.error.description or "")


def test_a_transaction_that_is_over_holds_nothing() -> None:
    """However it ended: the limits are of those that are open, one after the other."""
    core = CoreUnderTest()
    core.send(QUEUE, *map(str, range(10)))
    client = Client(core, limits=ClientLimits(max_transaction_bytes=5_000))
    control, sender = client.coordinator(), client.sender("out")
    receiver = client.receiver("orders")
    connection = client.connection
    before = connection.held, connection.sent
    for count in range(10):
        client.flow(receiver, 1, count=count)
        messages = client.messages()
        txn_id = client.declare(control)
        client.send(sender, "out", state=TransactionalState(txn_id), settled=True)
        settle(client, txn_id, *messages)
        assert connection.held > before[0] + 1_000
        client.discharge(control, txn_id, fail=bool(count % 2))
        assert client.states() == [ACCEPTED]
        assert (connection.held, connection.sent) == before
    assert core.broker.depths() == {"orders": 5, "out": 5}


def test_what_a_transaction_settles_makes_room_for_more() -> None:
    """Before its commit: a client that commits after many messages would wait for ever."""
    limits = ClientLimits(max_unacknowledged_bytes=10_000)
    core = CoreUnderTest(replace(SETTINGS, stomp_limits=limits))
    core.send(QUEUE, *("x" * 900 for _ in range(30)))
    client = Client(core)
    control = client.coordinator()
    txn_id = client.declare(control)
    client.receiver("orders", 30)
    got: list[Received] = []
    while messages := client.messages():
        got += messages
        settle(client, txn_id, *messages)
    assert len(got) == 30
    client.discharge(control, txn_id)
    assert client.states() == [ACCEPTED]
    assert depth(core) == 0


def test_a_message_whose_transaction_is_rolled_back_too_often_is_a_dead_letter() -> None:
    """As every message whose client fails with it."""
    core = CoreUnderTest(settings(dead_letter_address="DLQ", max_delivery_attempts=2))
    core.send("/queue/DLQ", "x")
    core.send(QUEUE, "in")
    client = Client(core)
    control = client.coordinator()
    client.receiver("orders", 5)
    for _ in range(2):
        (message,) = client.messages()
        txn_id = client.declare(control)
        settle(client, txn_id, message)
        client.discharge(control, txn_id, fail=True)
    assert client.messages() == []
    assert core.broker.depths() == {"orders": 0, "DLQ": 2}


def test_what_a_transaction_has_no_room_to_settle_goes_back() -> None:
    """With its link, which ends; nothing of it is done by the commit."""
    core = CoreUnderTest()
    core.send(QUEUE, "x" * 3_000)
    client = Client(core, limits=ClientLimits(max_transaction_bytes=2_000))
    control = client.coordinator()
    client.receiver("orders", 1)
    messages = client.messages()
    txn_id = client.declare(control)
    settle(client, txn_id, *messages)
    detach = client.take(Detach)
    assert detach.error is not None
    assert "max-transaction-bytes 2000" in (detach.error.description or "")
    client.discharge(control, txn_id)
    (state,) = client.states()
    assert isinstance(state, Rejected)
    assert core.consume(QUEUE).texts == ["x" * 3_000]


def test_who_may_not_send_to_one_of_its_addresses_learns_so_before_the_commit() -> None:
    """By the outcome of the message, also of a link without an address."""
    rights = {"a": {"s": "send createDurableQueue createAddress"}}
    core = CoreUnderTest(secured({"ann": "s"}, rights))
    client = Client(core, opens=False)
    client.log_in("PLAIN", b"\0ann\0s3cret")
    client.open()
    control, sender = client.coordinator(), client.sender(None)
    txn_id = client.declare(control)
    for state in (TransactionalState(txn_id), None):
        for to in ("a", "b"):
            client.send(sender, "x", properties=Properties(to=to), state=state)
        allowed, refused = client.states()
        assert allowed == (ACCEPTED if state is None else TransactionalState(txn_id, ACCEPTED))
        assert isinstance(refused, Rejected)
        assert refused.error is not None
        assert refused.error.condition == "amqp:unauthorized-access"
