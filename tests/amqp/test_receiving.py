"""A client of AMQP receives: its credit, its drains, its windows, and the outcomes it says."""

from dataclasses import replace

import pytest

from orthia.broker.protocols.amqp.performatives import (
    ACCEPTED,
    RECEIVER,
    RELEASED,
    SECOND,
    SENDER,
    SETTLED,
    Attach,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Modified,
    Outcome,
    Received,
    Rejected,
    Source,
    Target,
    Transfer,
)
from orthia.broker.protocols.amqp.sections import DELIVERY_ANNOTATIONS, sections_of
from orthia.broker.protocols.amqp.types import encode, encode_described
from orthia.broker.protocols.amqp.values import Described, Symbol, ULong
from orthia.config.address_settings import RoutingType
from tests.amqp.support import WINDOW, Client, accepted, encoded
from tests.core.support import CoreUnderTest, declared, settings

SELECTOR = Symbol("jms-selector")
COPY = Symbol("copy")
QUEUE = "/queue/orders"


def started(*texts: str, **more: object) -> CoreUnderTest:
    """Return a core with a queue that has these messages, sent by AMQP."""
    options = settings("orders", dead_letter_address="dead", **more)
    core = CoreUnderTest(replace(options, addresses=(declared("dead", "dead"),)))
    client = Client(core, container_id="before")
    client.send(
        client.sender("orders", target=Target("orders", capabilities=(Symbol("queue"),))), *texts
    )
    client.connection.connection_lost()
    return core


def selecting(text: str, **more: object) -> Source:
    """Return a source with a selector."""
    found = {SELECTOR: Described(ULong(0x0000468C00000004), text)}
    return Source("orders", filter=found, **more)  # type: ignore[arg-type]


def depth(core: CoreUnderTest) -> int:
    """Return how many messages the queue has."""
    return core.broker.depths()["orders"]


def test_as_many_messages_come_as_there_is_credit() -> None:
    """Without any, none; and what comes does not come twice."""
    client = Client(started(*"abcde"))
    receiver = client.receiver("orders")
    assert client.texts() == []
    client.flow(receiver, 2)
    assert client.texts() == ["a", "b"]
    client.flow(receiver, 2, count=2)
    assert client.texts() == ["c", "d"]
    client.flow(receiver, 2, count=2)
    assert client.texts() == []


def test_credit_counts_from_where_the_client_is() -> None:
    """What is on its way to it is not given again; it may take credit back."""
    client = Client(started(*"abcde"))
    receiver = client.receiver("orders", 3)
    assert client.texts() == ["a", "b", "c"]
    client.flow(receiver, 3, count=1)
    assert client.texts() == ["d"]
    client.flow(receiver, 0, count=4)
    client.flow(receiver, 1, count=0)
    assert client.texts() == []


def test_a_flow_that_says_nothing_of_credit_leaves_it() -> None:
    """As one by which a client asks how far its link is."""
    core = started()
    client = Client(core)
    receiver = client.receiver("orders", 2)
    client.say(Flow(0, WINDOW, 0, WINDOW, receiver, echo=True))
    assert client.take(Flow).link_credit == 2
    core.send(QUEUE, *"abc")
    assert client.texts() == ["a", "b"]


def test_a_client_without_credit_holds_nothing() -> None:
    """Others get all of it."""
    core = started(*"abc")
    idle = Client(core)
    idle.receiver("orders")
    other = Client(core)
    other.receiver("orders", 10)
    assert other.texts() == ["a", "b", "c"]
    assert idle.connection.unacknowledged == 0


def test_a_message_comes_byte_for_byte_as_it_was_sent() -> None:
    """But for what is of one hop alone."""
    core = started()
    client = Client(core)
    payload = encoded("a", application={"n": 1, "s": "x"})
    client.transfer(client.sender("orders"), payload)
    client.receiver("orders", 1)
    (message,) = client.messages()
    assert message.payload == payload
    assert message.transfer.message_format == 0
    assert message.transfer.settled is False


@pytest.mark.parametrize("text", ["short", "x" * 3_000])
def test_annotations_of_a_delivery_end_with_it(text: str) -> None:
    """They are of one hop: all else is as it was sent, also of a message in several frames."""
    core = started()
    client = Client(core, max_frame_size=512)
    sender = client.sender("orders")
    for _ in range(2):
        hop = encode_described(DELIVERY_ANNOTATIONS, encode({Symbol("x-hop"): 1}))
        client.transfer(sender, encoded(text, annotations=hop, application={"n": 1}))
    client.receiver("orders", 2)
    assert [one.payload for one in client.messages()] == [encoded(text, application={"n": 1})] * 2


@pytest.mark.parametrize("count", [0, 3])
def test_a_drain_is_answered_once_there_is_nothing_more(count: int) -> None:
    """With no credit left, and the count of all that it was for."""
    client = Client(started(*"abc"[:count]))
    receiver = client.receiver("orders")
    client.flow(receiver, 10, drain=True)
    said = client.all()
    assert sum(isinstance(one, Transfer) for one in said) == count
    flow = said[-1]
    assert isinstance(flow, Flow)
    assert (flow.delivery_count, flow.link_credit, flow.drain) == (10, 0, True)


def test_a_drain_that_uses_up_its_credit_is_answered_too() -> None:
    """Nothing is left of the credit then, either."""
    client = Client(started(*"abc"))
    client.flow(client.receiver("orders"), 2, drain=True)
    said = client.all()
    assert [type(one) for one in said] == [Transfer, Transfer, Flow]


def test_a_drain_waits_for_what_is_in_the_store_only() -> None:
    """A queue of an earlier node is read first."""
    before = started(*"abc")
    core = before.takeover(settings("orders")).counted()
    client = Client(core)
    receiver = client.receiver("orders")
    client.flow(receiver, 10, drain=True)
    core.pass_time(1)
    said = client.all()
    assert sum(isinstance(one, Transfer) for one in said) == 3
    assert isinstance(said[-1], Flow)


def test_a_drain_with_a_selector_that_matches_nothing_is_answered() -> None:
    """After all that is there was looked at."""
    core = started(*"abc")
    client = Client(core)
    receiver = client.receiver("", source=selecting("n = 1"))
    client.flow(receiver, 10, drain=True)
    core.pass_time(1)
    (flow,) = client.all()
    assert isinstance(flow, Flow)
    assert flow.drain


def test_a_drain_of_a_client_that_takes_nothing_is_answered_in_the_end() -> None:
    """After some seconds at most: it waits for the answer."""
    core = started(*"abc")
    client = Client(core)
    receiver = client.receiver("orders")
    client.has_room = False
    client.flow(receiver, 10, drain=True)
    assert client.all() == []
    for _ in range(200):
        core.pass_time(0.05)
    (flow,) = client.all()
    assert isinstance(flow, Flow)
    assert flow.drain


def test_an_echo_is_answered() -> None:
    """Of a link and of the session alone."""
    client = Client(started())
    receiver = client.receiver("orders")
    client.flow(receiver, 7, echo=True)
    flow = client.take(Flow)
    assert (flow.handle, flow.link_credit, flow.delivery_count) == (receiver, 7, 0)
    client.say(Flow(0, WINDOW, 0, WINDOW, echo=True))
    assert client.take(Flow).handle is None


def test_the_window_of_a_session_bounds_what_comes() -> None:
    """Of all its links; it is asked for a new one, which lets more come."""
    client = Client(started(*"abcde"))
    receiver = client.receiver("orders")
    client.say(Flow(0, 2, 0, WINDOW, receiver, 0, 100))
    *messages, asked = client.all()
    assert [type(one) for one in messages] == [Transfer, Transfer]
    assert isinstance(asked, Flow)
    assert asked.echo
    assert asked.next_outgoing_id == 2
    client.say(Flow(1, 2, 0, WINDOW))
    assert client.texts() == ["c"]
    client.say(Flow(3, WINDOW, 0, WINDOW))
    assert client.texts() == ["d", "e"]


def test_a_message_larger_than_a_frame_comes_in_several_transfers() -> None:
    """As the client's frames and windows have room."""
    text = "x" * 3_000
    client = Client(started(text, "b"), max_frame_size=512)
    receiver = client.receiver("orders")
    client.say(Flow(0, 2, 0, WINDOW, receiver, 0, 100))
    first = list(client.came())
    assert [type(said) for said, _ in first] == [Transfer, Transfer, Flow]
    assert all(said.more for said, _ in first if isinstance(said, Transfer))
    client.say(Flow(2, WINDOW, 0, WINDOW))
    rest = list(client.came())
    sizes = [len(payload) for _, payload in rest]
    assert max(sizes) <= 512
    whole = b"".join(payload for _, payload in [*first, *rest[:-1]])
    assert whole == encoded(text)


def test_a_client_that_settles_first_is_sent_settled() -> None:
    """What it got is gone from the queue at once."""
    core = started(*"abc")
    client = Client(core)
    client.receiver("orders", 2, snd_settle_mode=SETTLED)
    messages = client.messages()
    assert [one.transfer.settled for one in messages] == [True, True]
    assert depth(core) == 1


def test_an_accepted_message_is_gone_and_a_released_one_comes_again() -> None:
    """The second without an attempt, which the delivery count says is none of failed ones."""
    core = started("a", "b")
    client = Client(core)
    receiver = client.receiver("orders", 2)
    a, b = client.messages()
    client.settle(a)
    assert depth(core) == 1
    client.settle(b, state=RELEASED)
    client.flow(receiver, 1, count=2)
    (again,) = client.messages()
    assert again.text == "b"
    assert again.header.delivery_count == 1  # which is how JMS learns that it may have been there
    assert again.header.durable


@pytest.mark.parametrize("state", [Rejected(), Modified(undeliverable_here=True)])
def test_a_rejected_message_is_a_dead_letter(state: Rejected | Modified) -> None:
    """And so is one that is not to be delivered here again."""
    core = started("a")
    client = Client(core)
    client.receiver("orders", 1)
    client.settle(*client.messages(), state=state)
    assert depth(core) == 0
    assert core.broker.depths()["dead"] == 1


def test_a_modified_message_counts_as_an_attempt_if_its_delivery_failed() -> None:
    """The delivery count says how many; beyond the most there may be it is a dead letter."""
    core = started("a", max_delivery_attempts=3)
    client = Client(core)
    receiver = client.receiver("orders")
    for attempt in range(3):
        client.flow(receiver, 1, count=attempt)
        (message,) = client.messages()
        assert message.header.delivery_count == attempt
        client.settle(message, state=Modified(delivery_failed=True))
    client.flow(receiver, 1, count=3)
    assert client.messages() == []
    assert core.broker.depths()["dead"] == 1


@pytest.mark.parametrize("state", [RELEASED, Modified()])
def test_a_released_message_is_no_attempt_however_often(state: Outcome) -> None:
    """It becomes no dead letter: nobody failed with it, as a client that closes early."""
    core = started("a", max_delivery_attempts=1)
    client = Client(core)
    receiver = client.receiver("orders")
    for delivery in range(3):
        client.flow(receiver, 1, count=delivery)
        (message,) = client.messages()
        assert message.header.delivery_count == min(delivery, 1)
        client.settle(message, state=state)
    assert core.broker.depths() == {"orders": 1, "dead": 0}


def test_annotations_of_a_modified_message_are_left_out() -> None:
    """As in Artemis: it comes again as it was sent."""
    core = started("a")
    client = Client(core)
    client.receiver("orders", 5)
    (message,) = client.messages()
    client.settle(message, state=Modified(message_annotations={Symbol("x"): 1}))
    (again,) = client.messages()
    assert again.text == "a"
    assert again.payload.endswith(message.payload[sections_of(message.payload).header :])


def test_an_outcome_names_a_range_of_messages() -> None:
    """Of several links, and with ids in it that are settled already."""
    core = started(*"abcdef")
    client = Client(core)
    for receiver in [client.receiver("orders"), client.receiver("orders")]:
        client.flow(receiver, 3)
    ids = [one.id for one in client.messages()]
    client.say(Disposition(RECEIVER, ids[1], settled=True, state=ACCEPTED))
    client.say(Disposition(RECEIVER, ids[0], ids[4], settled=True, state=ACCEPTED))
    client.say(Disposition(RECEIVER, ids[0], 2**32 - 5, settled=True, state=ACCEPTED))
    assert depth(core) == 0
    client.say(Disposition(RECEIVER, ids[0], ids[5], settled=True, state=ACCEPTED))
    client.say(Disposition(SENDER, ids[0], ids[5], settled=True, state=ACCEPTED))
    assert client.all() == []


def test_an_outcome_that_is_not_settled_is_settled_once_it_is_stored() -> None:
    """By the broker, each range in one frame: the client forgets its messages then."""
    core = started(*"abcd")
    client = Client(core)
    client.receiver("orders", 4, rcv_settle_mode=SECOND)
    messages = client.messages()
    core.journal.auto_commit = False
    for one in (0, 1, 3):
        client.settle(messages[one], settled=False)
    assert client.all() == []
    core.store_all()
    assert client.states() == [ACCEPTED] * 3
    client.say(Disposition(RECEIVER, messages[0].id, messages[3].id, state=RELEASED, settled=False))
    core.store_all()
    (said,) = client.outcomes()
    assert (said.role, said.first, said.settled, said.state) == (
        SENDER,
        messages[2].id,
        True,
        RELEASED,
    )


def test_what_is_no_outcome_changes_nothing() -> None:
    """As a client says how far it is, or that it is there."""
    core = started("a")
    client = Client(core)
    client.receiver("orders", 1)
    (message,) = client.messages()
    client.settle(message, state=Received(0, 0), settled=False)
    client.say(Disposition(RECEIVER, message.id))
    assert client.all() == []
    client.settle(message)
    assert depth(core) == 0


@pytest.mark.parametrize(
    ("default", "left"), [(None, 1), (ACCEPTED, 0), (Modified(delivery_failed=True), 1)]
)
def test_what_is_settled_without_an_outcome_has_that_of_its_source(
    default: object, left: int
) -> None:
    """Released, if that says none."""
    core = started("a")
    client = Client(core)
    client.receiver("", 1, source=Source("orders", default_outcome=default))  # type: ignore[arg-type]
    (message,) = client.messages()
    client.say(Disposition(RECEIVER, message.id, settled=True))
    assert depth(core) == left


@pytest.mark.parametrize("how", ["detach", "close", "end", "lose"])
def test_what_is_not_settled_goes_back_when_the_link_ends(how: str) -> None:
    """In its place, however it ends; only of a lost connection the oldest counts as an attempt."""
    core = started(*"abc")
    client = Client(core)
    receiver = client.receiver("orders", 2)
    client.settle(client.messages()[1])
    if how in ("detach", "close"):
        client.say(Detach(receiver, closed=how == "close"))
        assert client.take(Detach).closed == (how == "close")
    elif how == "end":
        client.say(End())
        client.take(End)
    else:
        client.connection.connection_lost()
    other = Client(core)
    other.receiver("orders", 5)
    messages = other.messages()
    assert [one.text for one in messages] == ["a", "c"]
    assert messages[0].header.delivery_count == 1


@pytest.mark.parametrize(
    ("how", "dead"), [("detach", 0), ("end", 0), ("close", 0), ("stop", 0), ("lose", 1)]
)
def test_only_a_lost_connection_is_a_failed_attempt(how: str, dead: int) -> None:
    """Of the oldest message that it had; a client that ends in good order failed with nothing."""
    core = started("a", "b", max_delivery_attempts=1)
    client = Client(core)
    receiver = client.receiver("orders", 2)
    assert client.texts() == ["a", "b"]
    if how == "stop":
        client.connection.go_away()
    elif how == "lose":
        client.connection.connection_lost()
    else:
        client.say({"detach": Detach(receiver), "end": End(), "close": Close()}[how])
    core.settle()
    assert core.broker.depths() == {"orders": 2 - dead, "dead": dead}


def test_ids_and_counts_go_on_with_zero() -> None:
    """After four thousand millions of deliveries; a range of them does, too."""
    count = 600
    core = started(*map(str, range(count)))
    client = Client(core)
    receiver = client.receiver("orders")
    session = client.connection._sessions[0]
    assert session is not None
    session._next_delivery_id = session._next_outgoing_id = 2**32 - 2
    link = session.senders[0]
    link._delivery_count = 2**32 - 2
    client.say(Flow(2**32 - 2, WINDOW, 0, WINDOW, receiver, 2**32 - 2, 3))
    messages = client.messages()
    assert [one.id for one in messages] == [2**32 - 2, 2**32 - 1, 0]
    client.say(Flow(1, WINDOW, 0, WINDOW, receiver, 2**32 - 1, 3, echo=True))
    pairs = list(client.came())
    (flow,) = (said for said, _ in pairs if isinstance(said, Flow))
    assert (flow.next_outgoing_id, flow.delivery_count, flow.link_credit) == (2, 2, 0)
    client.say(Disposition(RECEIVER, 2**32 - 2, 0, settled=True, state=ACCEPTED))
    assert depth(core) == count - 3
    client.flow(receiver, count, count=2)
    client.all()
    client.say(Disposition(RECEIVER, 2**32 - 2, count, settled=False, state=ACCEPTED))
    assert accepted(client.states()) == count - 3
    assert depth(core) == 0


def test_a_selector_is_echoed_and_acts() -> None:
    """By the name that the client gave it; one that cannot be read is refused."""
    core = started()
    client = Client(core)
    sender = client.sender("orders")
    client.send(sender, "1", application={"n": 1})
    client.send(sender, "2", application={"n": 2})
    client.all()
    source = selecting("n = 2")
    attach = client.attach(Attach("r", 5, RECEIVER, source=source, target=Target()))
    assert attach.source is not None
    assert attach.source.filter == source.filter
    client.flow(5, 10)
    assert client.texts() == ["2"]
    error = client.refused(Attach("x", 6, RECEIVER, source=selecting("n ="), target=Target()))
    assert error.condition == "amqp:invalid-field"


def test_a_filter_that_is_not_known_is_refused_by_its_name() -> None:
    """Nothing is taken that does not act."""
    client = Client(started())
    source = Source("orders", filter={Symbol("xpath"): Described(Symbol("x:path"), "//a")})
    error = client.refused(Attach("x", 6, RECEIVER, source=source, target=Target()))
    assert error.condition == "amqp:not-implemented"
    assert "'xpath'" in (error.description or "")


def test_a_browser_creates_the_queue_that_is_missing() -> None:
    """As a consumer does, and as in Artemis; not where nothing is created."""
    core = CoreUnderTest(settings("kept", auto_create_queues=False, auto_create_addresses=False))
    client = Client(core)
    receiver = client.receiver("orders", source=Source("orders", distribution_mode=COPY))
    assert core.broker.depths() == {"orders": 0}
    client.flow(receiver, 5, drain=True)
    assert any(isinstance(one, Flow) and not one.link_credit for one in client.all())
    for address in ("kept", "orders::another"):
        source = Source(address, distribution_mode=COPY)
        attach = Attach("b", client.new_handle(), RECEIVER, source=source, target=Target())
        assert client.refused(attach).condition == "amqp:not-found"
    assert core.broker.depths() == {"orders": 0}


def test_a_browser_sees_all_and_takes_nothing() -> None:
    """Whatever it says of what it saw; a drain tells it that this was all."""
    core = started(*"abc")
    client = Client(core)
    source = Source("orders", distribution_mode=COPY, capabilities=(Symbol("queue"),))
    receiver = client.receiver("", source=source)
    client.flow(receiver, 10, drain=True)
    core.pass_time(1)
    pairs = list(client.came())
    assert sum(isinstance(said, Transfer) for said, _ in pairs) == 3
    assert isinstance(pairs[-1][0], Flow)
    client.say(Disposition(RECEIVER, 0, 2, settled=True, state=Rejected()))
    assert depth(core) == 3


def test_a_browser_does_not_see_what_was_accepted_before_it_came() -> None:
    """Though the store does not know that yet: it begins once it does."""
    core = started(*"abc")
    client = Client(core)
    client.receiver("orders", 2)
    first, second = client.messages()
    core.journal.auto_commit = False
    client.settle(first)
    source = Source("orders", distribution_mode=COPY, capabilities=(Symbol("queue"),))
    handle = client.new_handle()
    client.say(Attach("b", handle, RECEIVER, source=source, target=Target()))
    client.flow(handle, 10, drain=True)
    core.pass_time(1)
    assert not [one for one in client.all() if isinstance(one, Transfer | Flow)]
    core.store_all()
    core.pass_time(1)
    seen = client.messages()
    assert [one.text for one in seen] == [second.text, "c"]


def test_a_subscriber_of_a_topic_gets_again_what_it_gave_back() -> None:
    """A topic stores nothing: its link keeps that, in front of what is new."""
    core = CoreUnderTest()
    client = Client(core)
    topic = Source("news", capabilities=(Symbol("topic"),))
    receiver = client.receiver("", 1, source=topic)
    core.send("/topic/news", "a", "b")
    (message,) = client.messages()
    client.settle(message, state=RELEASED)
    client.flow(receiver, 2, count=1)
    again, new = client.messages()
    assert (again.text, again.header.delivery_count) == ("a", 1)
    assert (new.text, new.header.delivery_count) == ("b", 0)
    client.settle(again, new)
    assert client.connection.unacknowledged == 0


def test_no_local_leaves_out_what_the_connection_sends() -> None:
    """To a topic; of a queue it is refused."""
    core = CoreUnderTest()
    client = Client(core)
    found = {Symbol("no-local"): Described(ULong(0x0000468C00000003), [])}
    source = Source("news", filter=found, capabilities=(Symbol("topic"),))
    client.receiver("", 10, source=source)
    topic = Target("news", capabilities=(Symbol("topic"),))
    client.send(client.sender("", target=topic), "own")
    core.send("/topic/news", "other")
    assert client.texts() == ["other"]
    queue = source._replace(address="orders", capabilities=(Symbol("queue"),))
    error = client.refused(Attach("x", 9, RECEIVER, source=queue, target=Target()))
    assert "no-local" in (error.description or "")


def test_a_link_whose_queue_is_deleted_ends_with_an_error() -> None:
    """The connection and its other links go on."""
    core = started("a")
    client = Client(core)
    client.receiver("orders", 1)
    client.messages()
    client.receiver("other", 1)
    core.broker.delete_queue(client.connection.principal, "orders", lambda _: None, force=True)
    core.settle()
    detach = client.take(Detach)
    assert detach.closed
    assert detach.error is not None
    assert detach.error.condition == "amqp:resource-deleted"
    core.send("/queue/other", "b")
    assert client.texts() == ["b"]


def test_a_session_has_one_link_of_a_name_in_each_direction() -> None:
    """A second one is refused; one that sends may be called as one that receives."""
    client = Client(started("a"))
    client.receiver("orders", name="orders")
    client.attach(Attach("orders", 1, SENDER, source=Source(), target=Target("orders")))
    for said in (
        Attach("orders", 2, RECEIVER, source=Source("orders"), target=Target()),
        Attach("orders", 3, SENDER, source=Source(), target=Target("orders")),
    ):
        assert client.refused(said).condition == "amqp:session:errant-link"


def test_a_node_is_made_for_a_link_and_goes_with_it() -> None:
    """Others send to it by the address that the client is told."""
    core = CoreUnderTest()
    client = Client(core)
    attach = client.attach(Attach("r", 0, RECEIVER, source=Source(dynamic=True), target=Target()))
    assert attach.source is not None
    address = attach.source.address or ""
    client.flow(0, 10)
    other = Client(core)
    other.send(other.sender(address), "a")
    assert client.texts() == ["a"]
    other.all()
    error = other.refused(Attach("x", 9, RECEIVER, source=Source(address), target=Target()))
    assert error.condition == "amqp:not-found"
    client.say(Detach(0, closed=True))
    client.all()
    core.settle()
    assert not core.broker.queues()


def test_a_node_that_is_made_for_a_link_that_is_refused_goes_with_it() -> None:
    """Nobody would delete it before the end of its connection, which may try again and again."""
    core = CoreUnderTest()
    client = Client(core)
    found = {Symbol("no-local"): Described(ULong(0x0000468C00000003), [])}
    source = Source(dynamic=True, filter=found)
    client.refused(Attach("r", 0, RECEIVER, source=source, target=Target()))
    core.settle()
    assert not core.broker.queues()


@pytest.mark.parametrize(
    ("capability", "kind"),
    [("temporary-queue", RoutingType.ANYCAST), ("temporary-topic", RoutingType.MULTICAST)],
)
def test_a_node_that_is_made_is_a_queue_or_a_topic(capability: str, kind: RoutingType) -> None:
    """As JMS makes them: by a link to send to it, from which it goes with the connection, too."""
    core = CoreUnderTest()
    client = Client(core)
    target = Target(dynamic=True, capabilities=(Symbol(capability),))
    attach = client.attach(Attach("s", 0, SENDER, source=Source(), target=target))
    assert isinstance(attach.target, Target)
    address = attach.target.address or ""
    assert bool(core.broker.queues()) == (kind is RoutingType.ANYCAST)
    client.receiver(address, 1)
    client.send(0, "a")
    assert client.texts() == ["a"]
    client.connection.connection_lost()
    core.settle()
    assert not core.broker.queues()


@pytest.mark.parametrize(
    "source",
    [
        Source(),
        Source("a", dynamic=True),
        Source(
            dynamic=True,
            dynamic_node_properties={
                Symbol("lifetime-policy"): Described(Symbol("amqp:delete-on-no-links:list"), [])
            },
        ),
    ],
)
def test_what_a_source_cannot_be_is_refused(source: Source) -> None:
    """No link is left of it."""
    client = Client(CoreUnderTest())
    client.refused(Attach("x", 9, RECEIVER, source=source, target=Target()))
    assert client.connection.links == 0
