"""What a client and the broker do at the same time: nothing is lost, doubled, or left waiting."""

import gc
import itertools

import pytest

from orthia.broker.core.errors import Refusal
from orthia.broker.protocols.amqp.conditions import UNATTACHED_HANDLE
from orthia.broker.protocols.amqp.frames import encode_frame
from orthia.broker.protocols.amqp.performatives import (
    ACCEPTED,
    RECEIVER,
    RELEASED,
    Accepted,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Outcome,
    Rejected,
    Source,
    Target,
    TransactionalState,
    Transfer,
    encode_performative,
)
from orthia.broker.protocols.amqp.values import Symbol
from orthia.journal.errors import UnitRefused
from tests.amqp.support import WINDOW, Client, encoded
from tests.core.support import ANYONE, CoreUnderTest, settings

SOLE = Symbol("sole-connection-for-container")
QUEUE = "/queue/orders"


def is_rolled_back(client: Client) -> bool:
    """Return whether the one outcome that came says that a transaction was rolled back."""
    (state,) = client.states()
    if not isinstance(state, Rejected):
        assert state == ACCEPTED
        return False
    assert state.error is not None
    return state.error.condition == "amqp:transaction:rollback"


def test_a_drain_is_not_answered_before_its_link_is_there() -> None:
    """The flow that answers it would name a handle that the client does not know."""
    core = CoreUnderTest(auto_commit=False)
    client = Client(core)
    core.store_all()
    client.all()
    client.say(Attach("r", 3, RECEIVER, source=Source("orders"), target=Target()))
    client.flow(3, 5, drain=True, echo=True)
    assert client.all() == []
    core.store_all()
    core.pass_time(1)
    attach, flow = client.all()
    assert isinstance(attach, Attach)
    assert isinstance(flow, Flow)
    assert flow.drain
    assert flow.link_credit == 0


def test_drains_that_cannot_be_answered_yet_wait_together() -> None:
    """One look later for all of them, however many are asked for."""
    core = CoreUnderTest()
    client = Client(core)
    receiver = client.receiver("orders")
    client.connection.set_writable(writable=False)
    for _ in range(100):
        client.flow(receiver, 5, drain=True)
    assert len(core._timers) == 1


def test_a_container_without_a_name_is_free_again_when_its_connection_is_lost() -> None:
    """As every container of which there is one connection."""
    core = CoreUnderTest()
    for _ in range(2):
        client = Client(core, container_id="", desired_capabilities=(SOLE,))
        client.connection.connection_lost()


def test_windows_that_open_and_close_wake_the_links_once() -> None:
    """Not each time, while they are not all awake from the time before."""
    passed = itertools.count()
    core = CoreUnderTest(clock=lambda: next(passed) / 10_000)
    client = Client(core)
    for _ in range(50):
        client.receiver("orders")
    said = [Flow(0, 0, 0, WINDOW), Flow(0, 5, 0, WINDOW)] * 500
    client.connection.receive(b"".join(encode_frame(encode_performative(one)) for one in said))
    core.settle()
    before = next(passed)
    client.flow(client.receiver("orders"), 1, echo=True)
    assert isinstance(client.all()[-1], Flow)
    assert before < 5_000


@pytest.mark.parametrize("channel", [0, 1])
def test_a_subscription_that_is_asked_for_again_while_it_ends_is_made_anew(channel: int) -> None:
    """By any session. The client need not wait; what the old one had is gone with it."""
    core = CoreUnderTest()
    client = Client(core)
    client.say(Begin(None, 0, WINDOW, WINDOW), channel=1)
    client.take(Begin)
    audit = Source("news", 2, Symbol("never"), capabilities=(Symbol("topic"),))
    old, new = client.receiver("", source=audit, name="audit"), client.new_handle()
    core.send("/topic/news", "kept")
    said = (
        (0, Detach(old, closed=True)),
        (channel, Attach("audit", new, RECEIVER, source=audit, target=Target())),
        (channel, Flow(0, WINDOW, 0, WINDOW, new, 0, 5)),
    )
    frames = [encode_frame(encode_performative(one), where) for where, one in said]
    client.connection.receive(b"".join(frames))
    core.settle()
    ended, attached = client.all()
    assert ended == Detach(old, closed=True)
    assert isinstance(attached, Attach)
    assert attached.source is not None
    core.send("/topic/news", "new")
    assert client.texts() == ["new"]


def test_a_session_may_end_before_the_end_of_a_subscription_is_answered() -> None:
    """It hears no more of it; the subscription is deleted."""
    core = CoreUnderTest()
    client = Client(core)
    audit = Source("news", 2, Symbol("never"), capabilities=(Symbol("topic"),))
    receiver = client.receiver("", source=audit, name="audit")
    said = Detach(receiver, closed=True), End()
    client.connection.receive(b"".join(encode_frame(encode_performative(one)) for one in said))
    core.settle()
    assert client.take(End) == End()
    assert not core.broker.queues()


def test_a_link_that_is_closed_twice_while_its_subscription_ends_is_a_fault() -> None:
    """Its handle is no other link's before the client is answered: that link would be lost."""
    core = CoreUnderTest()
    client = Client(core)
    audit = Source("news", 2, Symbol("never"), capabilities=(Symbol("topic"),))
    handle = client.receiver("", source=audit, name="audit")
    core.send("/queue/orders", "a")
    said = (
        Detach(handle, closed=True),
        Detach(handle, closed=True),
        Attach("orders", handle, RECEIVER, source=Source("orders"), target=Target()),
        Flow(0, WINDOW, 0, WINDOW, handle, 0, 5),
    )
    client.connection.receive(b"".join(encode_frame(encode_performative(one)) for one in said))
    core.settle()
    ended = client.take(End)
    assert ended.error is not None
    assert ended.error.condition == UNATTACHED_HANDLE
    client.connection.connection_lost()
    core.settle()
    assert core.consume("/queue/orders").texts == ["a"]


def test_of_a_message_on_its_way_to_the_store_no_more_is_kept_than_its_answer_needs() -> None:
    """Whatever its transfer says beside it, which nobody counts."""
    core = CoreUnderTest()
    client = Client(core)
    sender = client.sender("orders")
    state = Rejected(Error(Symbol("a"), "why" * 1_000))
    transfer = Transfer(sender, 0, b"0", 0, state=state)
    frame = encode_frame(encode_performative(transfer) + encoded("a"))
    gc.collect()
    before = rejections()
    client.connection.receive(frame)
    assert rejections() == before
    core.settle()
    assert isinstance(client.take(Disposition).state, Accepted)


def rejections() -> int:
    """Return how many there are in memory."""
    return sum(isinstance(one, Rejected) for one in gc.get_objects())


# --- transactions


def test_a_transaction_ends_with_the_link_that_declared_it() -> None:
    """Rolled back: the client has forgotten it, and what it settled is for others again."""
    core = CoreUnderTest()
    core.send(QUEUE, "in")
    client = Client(core)
    control, sender = client.coordinator(), client.sender("orders")
    client.receiver("orders", 5)
    messages = client.messages()
    txn_id = client.declare(control)
    client.settle(*messages, state=TransactionalState(txn_id, ACCEPTED))
    client.send(sender, "out", state=TransactionalState(txn_id), settled=True)
    client.say(Detach(control, closed=True))
    assert client.connection.open_transactions() == []
    assert client.texts() == ["in"]


def test_a_transaction_lacks_nothing_that_was_sent_settled() -> None:
    """Its commit is refused, for the client may not know yet that a message was not taken."""
    core = CoreUnderTest()
    client = Client(core)
    control, sender = client.coordinator(), client.sender("orders")
    state = TransactionalState(client.declare(control))
    client.send(sender, "a", state=state, settled=True)
    client.transfer(sender, b"none", state=state, settled=True)
    assert isinstance(client.take(Detach), Detach)
    client.discharge(control, state.txn_id)
    assert is_rolled_back(client)
    assert core.broker.depths().get("orders", 0) == 0


@pytest.mark.parametrize("amid", [True, False])
def test_a_transaction_lacks_nothing_that_came_by_a_link_which_was_ended(*, amid: bool) -> None:
    """Before the client could know, or amid a message."""
    core = CoreUnderTest()
    client = Client(core)
    control, sender = client.coordinator(), client.sender("orders")
    state = TransactionalState(client.declare(control))
    if amid:
        client.transfer(sender, encoded("a"), state=state, more=True)
        client.say(Transfer(sender, 99, b"t", 0), encoded("b"))  # amid another
    else:
        client.transfer(sender, b"none", settled=True)
        client.send(sender, "a", state=state)
    assert isinstance(client.take(Detach), Detach)
    client.discharge(control, state.txn_id)
    assert is_rolled_back(client)


def test_a_link_that_ends_while_a_long_range_is_settled_lacks_none_of_it() -> None:
    """In a transaction, whose commit is refused: the rest of the range went back."""
    passed = itertools.count()
    core = CoreUnderTest(clock=lambda: next(passed) / 10)
    core.send(QUEUE, *map(str, range(1_500)))
    client = Client(core)
    control = client.coordinator()
    client.receiver("orders", 1_500)
    first, *_, last = client.messages()
    txn_id = client.declare(control)
    state = TransactionalState(txn_id, ACCEPTED)
    said = Disposition(RECEIVER, first.id, last.id, settled=True, state=state)
    client.connection.receive(encode_frame(encode_performative(said)))
    (subscription,) = core.broker.queues()["orders"].subscriptions
    assert [one.acknowledges for one in client.connection.open_transactions()] == [0]
    subscription.fail("the permissions were changed", Refusal.AUTHORIZATION)
    core.settle()
    client.all()
    client.discharge(control, txn_id)
    assert is_rolled_back(client)
    assert core.broker.depths()["orders"] == 1_500


def test_a_client_that_is_lost_was_at_the_oldest_of_what_was_rolled_back() -> None:
    """That delivery failed, and none behind it."""
    core = CoreUnderTest(settings(dead_letter_address="DLQ", max_delivery_attempts=1))
    core.send(QUEUE, "first", "second")
    client = Client(core)
    control = client.coordinator()
    client.receiver("orders", 5)
    first, _ = client.messages()
    txn_id = client.declare(control)
    client.settle(first, state=TransactionalState(txn_id, ACCEPTED), settled=False)
    client.discharge(control, txn_id, fail=True)
    client.connection.connection_lost()
    core.settle()
    assert core.consume("/queue/DLQ").texts == ["first"]


@pytest.mark.parametrize("outcome", [ACCEPTED, RELEASED, Rejected()])
def test_a_subscriber_of_a_topic_gets_again_what_a_refused_commit_settled(outcome: Outcome) -> None:
    """From its link, for a topic stores nothing; what is committed counts no more."""
    core = CoreUnderTest()
    client = Client(core)
    control, sender = client.coordinator(), client.sender("orders")
    client.receiver("", 5, source=Source("news", capabilities=(Symbol("topic"),)))
    client.send(sender, "before")
    client.all()
    core.send("/topic/news", "a")
    (message,) = client.messages()
    for refused in (True, False):
        txn_id = client.declare(control)
        client.settle(message, state=TransactionalState(txn_id, outcome))
        client.send(sender, "out", state=TransactionalState(txn_id), settled=True)
        core.journal.auto_commit = not refused
        client.discharge(control, txn_id)
        if refused:
            core.journal.refuse(UnitRefused("value out of range"))
            core.journal.commit()
            core.settle()
            (message,) = client.messages()
    assert client.texts() == (["a"] if outcome == RELEASED else [])
    client.connection.connection_lost()
    assert client.connection.unacknowledged == 0
    assert core.broker.parts.factory.topic_memory.used == 0


def test_a_transaction_settles_nothing_that_went_back_before() -> None:
    """With a link that was ended: another client may have it, and do the work twice."""
    core = CoreUnderTest()
    core.send(QUEUE, "in")
    client = Client(core)
    control, sender = client.coordinator(), client.sender("out")
    receiver = client.receiver("orders", 5)
    (message,) = client.messages()
    state = TransactionalState(client.declare(control), ACCEPTED)
    (subscription,) = core.broker.queues()["orders"].subscriptions
    subscription.fail("the permissions were changed", Refusal.AUTHORIZATION)
    client.send(sender, "out", state=TransactionalState(state.txn_id), settled=True)
    client.settle(message, state=state)
    assert isinstance(client.take(Detach), Detach)
    client.discharge(control, state.txn_id)
    assert is_rolled_back(client)
    assert core.broker.depths()["orders"] == 1
    assert core.broker.depths().get("out", 0) == 0
    client.say(Detach(receiver, closed=True))
    client.discharge(control, client.declare(control))
    assert not is_rolled_back(client)


@pytest.mark.parametrize("end", [End(), Close()])
@pytest.mark.parametrize("meanwhile", ["nothing", "lost", "deleted", "stopped"])
def test_a_client_that_ends_many_links_lets_others_have_turns(end: object, meanwhile: str) -> None:
    """What goes back by one link comes by no other, whatever happens until all are ended."""
    passed = itertools.count()
    core = CoreUnderTest(clock=lambda: next(passed) / 1_000)
    client = Client(core)
    for _ in range(20):
        client.receiver("orders", 5)
    core.send(QUEUE, *(str(one) for one in range(90)))
    assert len(client.messages()) == 90
    client.connection.receive(encode_frame(encode_performative(end)))
    assert 0 < client.connection.links < 20
    if meanwhile == "lost":
        client.connection.connection_lost()
    elif meanwhile == "stopped":
        client.connection.stop_serving()
    elif meanwhile == "deleted":
        core.broker.delete_queue(ANYONE, "orders", lambda _: None, force=True)
    core.settle()
    assert client.all() == ([] if meanwhile in ("lost", "stopped") else [end])
    assert client.connection.links == 0
    assert client.connection.unacknowledged == 0
    if meanwhile == "deleted":
        assert not core.broker.queues()
    elif meanwhile != "stopped":
        taken = core.consume(QUEUE)
        core.settle()
        assert taken.texts == [str(one) for one in range(90)]
