"""A client of AMQP sends: what is accepted, and when; what is rejected, and with which words."""

import pytest

from orthia.broker.protocols.amqp.frames import AMQP_ID, encode_frame
from orthia.broker.protocols.amqp.options import AmqpOptions
from orthia.broker.protocols.amqp.performatives import (
    ACCEPTED,
    RECEIVER,
    SENDER,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    Rejected,
    Source,
    Target,
    Transfer,
    encode_performative,
)
from orthia.broker.protocols.amqp.sections import Header, Properties, encode_annotations
from orthia.broker.protocols.amqp.values import Symbol, Timestamp, UByte, Value
from orthia.config.acceptor_amqp import AcceptorAmqp
from orthia.config.address_settings import AddressFullPolicy
from orthia.config.settings import ClientLimits
from orthia.journal.errors import StoreFull, UnitRefused
from tests.amqp.support import Client, accepted, encoded
from tests.core.support import Clock, CoreUnderTest, settings
from tests.stomp.support import secured

COPY = Symbol("copy")


def test_a_message_is_accepted_once_it_is_stored() -> None:
    """Not before its commit, whatever else is answered."""
    core = CoreUnderTest(auto_commit=False)
    client = Client(core)
    core.store_all()
    sender = client.sender("orders")
    client.send(sender, "a", "b")
    assert client.states() == []
    core.store_all()
    assert accepted(client.states()) == 2


def test_what_is_stored_together_is_accepted_together() -> None:
    """By one frame, which names the first and the last."""
    core = CoreUnderTest(auto_commit=False)
    client = Client(core)
    sender = client.sender("orders")
    core.store_all()
    client.send(sender, *"abcd")
    core.journal.commit(len(core.journal.waiting))
    core.settle()
    (said,) = client.outcomes()
    assert (said.role, said.first, said.last, said.settled) == (RECEIVER, 0, 3, True)


def test_what_is_accepted_with_a_gap_is_said_by_ranges() -> None:
    """What is not stored is accepted before what is; each frame names what has no gap."""
    core = CoreUnderTest(auto_commit=False)
    client = Client(core)
    sender, other = client.sender("orders"), client.sender("others")
    core.store_all()
    client.send(sender, "a", "b")
    client.send(other, "c", header=Header())
    client.send(sender, "d")
    assert [(one.first, one.last) for one in client.outcomes()] == [(2, 2)]
    core.journal.commit(len(core.journal.waiting))
    core.settle()
    assert [(one.first, one.last) for one in client.outcomes()] == [(0, 1), (3, 3)]


def test_links_of_one_session_send_in_turns() -> None:
    """Each message goes where its own link does, whatever came before it."""
    core = CoreUnderTest()
    client = Client(core)
    one, two = client.sender("one"), client.sender("two")
    for number in range(300):
        client.send(one if number % 3 else two, str(number), settled=number % 5 == 0)
    assert core.consume("/queue/one").texts == [str(at) for at in range(300) if at % 3]
    assert core.consume("/queue/two").texts == [str(at) for at in range(0, 300, 3)]
    said = {number for one in client.outcomes() for number in range(one.first, (one.last or 0) + 1)}
    assert said == {number for number in range(300) if number % 5}


def test_a_settled_message_is_stored_and_not_answered() -> None:
    """Its client has forgotten it."""
    core = CoreUnderTest()
    client = Client(core)
    client.send(client.sender("orders"), "a", settled=True)
    assert client.states() == []
    assert core.stored_texts() == ["a"]


def test_a_message_that_is_not_durable_is_not_stored() -> None:
    """Nor is one without a header; both are accepted."""
    core = CoreUnderTest()
    client = Client(core)
    sender = client.sender("orders")
    client.send(sender, "a", header=Header(priority=7))
    client.transfer(sender, encoded("b")[7:])
    assert accepted(client.states()) == 2
    assert core.stored_texts() == []
    assert core.consume("/queue/orders").texts == ["a", "b"]


def test_a_message_may_come_in_many_transfers() -> None:
    """It is settled by whichever says so, and dropped if it is aborted."""
    core = CoreUnderTest()
    client = Client(core)
    sender = client.sender("orders")
    payload = encoded("abcdefghij")
    for at in range(len(payload)):
        is_first = not at
        said = Transfer(
            sender,
            0 if is_first else None,
            b"0" if is_first else None,
            0 if is_first else None,
            more=at + 1 < len(payload),
        )
        client.say(said, payload[at : at + 1])
    assert accepted(client.states()) == 1
    client.say(Transfer(sender, 1, b"1", 0, more=True), payload)
    client.say(Transfer(sender, aborted=True))
    client.say(Transfer(sender, 2, b"2", 0, more=True), payload[:9])
    client.say(Transfer(sender, settled=True), payload[9:])
    client.say(Transfer(sender, 3, b"3", 0, settled=True, more=True), payload[:9])
    client.say(Transfer(sender), payload[9:])
    assert client.states() == []
    assert core.stored_texts() == ["abcdefghij"] * 3


def test_what_a_message_says_of_its_delivery_acts() -> None:
    """Its priority, its expiry by either field, its delay by either annotation."""
    clock = Clock()
    client = Client(clock.core)
    sender = client.sender("orders")
    now = clock.ms()
    client.send(sender, "ttl", header=Header(durable=True, ttl=1_000))
    client.send(sender, "at", properties=Properties(absolute_expiry_time=Timestamp(now + 2_000)))
    client.send(sender, "high", header=Header(durable=True, priority=9))
    due = encode_annotations({Symbol("x-opt-delivery-time"): now + 5_000})
    client.send(sender, "due", annotations=due)
    delay = encode_annotations({Symbol("x-opt-delivery-delay"): 7_000})
    client.send(sender, "late", annotations=delay)
    assert accepted(client.states()) == 5
    clock.pass_ms(1_500)
    consumer = clock.core.consume("/queue/orders")
    assert consumer.texts == ["high", "at"]
    clock.pass_ms(3_600)
    assert consumer.texts == ["high", "at", "due"]
    clock.pass_ms(2_000)
    assert consumer.texts == ["high", "at", "due", "late"]


def test_a_message_expires_when_it_says() -> None:
    """After its time to live, or at its absolute expiry, which wins over that."""
    clock = Clock()
    client = Client(clock.core)
    sender = client.sender("orders")
    at = Properties(absolute_expiry_time=Timestamp(clock.ms() + 2_000))
    client.send(sender, "ttl", header=Header(durable=True, ttl=1_000))
    client.send(sender, "at", properties=at)
    client.send(sender, "sooner", header=Header(durable=True, ttl=500), properties=at)
    client.send(sender, "later", header=Header(durable=True, ttl=9_000), properties=at)
    client.send(sender, "never", properties=Properties(absolute_expiry_time=Timestamp(0)))
    for passed_ms, left in (
        (900, ["ttl", "at", "sooner", "later", "never"]),
        (200, ["at", "sooner", "later", "never"]),
        (800, ["at", "sooner", "later", "never"]),
        (200, ["never"]),
    ):
        clock.pass_ms(passed_ms)
        client.all()
        browser = client.receiver("", 10, source=Source("orders", distribution_mode=COPY))
        assert client.texts() == left
        client.say(Detach(browser, closed=True))


def test_a_delay_is_counted_from_when_its_message_came() -> None:
    """Of each message of a link by itself; a time to be delivered at wins over a delay."""
    clock = Clock()
    client = Client(clock.core)
    sender = client.sender("orders")
    consumer = clock.core.consume("/queue/orders")
    delay = encode_annotations({Symbol("x-opt-delivery-delay"): 1_000})
    for text in "ab":
        client.send(sender, text, annotations=delay)
        clock.pass_ms(600)
    assert consumer.texts == ["a"]
    both = encode_annotations(
        {Symbol("x-opt-delivery-time"): clock.ms() + 600, Symbol("x-opt-delivery-delay"): 9_000}
    )
    client.send(sender, "c", annotations=both)
    clock.pass_ms(500)
    assert consumer.texts == ["a", "b"]
    clock.pass_ms(200)
    assert consumer.texts == ["a", "b", "c"]


def test_a_priority_above_9_is_the_highest() -> None:
    """As JMS has none above; others learn that it is."""
    core = CoreUnderTest()
    client = Client(core)
    sender = client.sender("orders")
    client.send(sender, "high", header=Header(durable=True, priority=9))
    client.send(sender, "above", header=Header(durable=True, priority=200))
    consumer = core.consume("/queue/orders")
    assert consumer.texts == ["high", "above"]
    assert [one.record.priority for one in consumer.received] == [9, 9]


def test_a_message_with_a_duplicate_id_is_stored_once() -> None:
    """It is accepted each time."""
    core = CoreUnderTest()
    client = Client(core)
    sender = client.sender("orders")
    for _ in range(2):
        client.send(sender, "a", application={"_AMQ_DUPL_ID": "1"})
    assert accepted(client.states()) == 2
    assert core.stored_texts() == ["a"]


def test_the_messages_of_a_group_go_to_one_consumer() -> None:
    """The group is the one of its properties."""
    core = CoreUnderTest()
    client = Client(core)
    one, other = core.consume("/queue/orders"), core.consume("/queue/orders")
    client.send(client.sender("orders"), *"abcd", properties=Properties(group_id="g"))
    assert sorted([len(one.texts), len(other.texts)]) == [0, 4]


def test_a_link_without_an_address_sends_where_its_messages_say() -> None:
    """To a queue or a topic, as JMS says it beside that."""
    core = CoreUnderTest()
    client = Client(core)
    sender = client.sender(None)
    heard = core.consume("/topic/news")
    topic = encode_annotations({Symbol("x-opt-jms-dest"): UByte(1)})
    client.send(sender, "a", properties=Properties(to="news"), annotations=topic)
    client.send(sender, "b", properties=Properties(to="orders"))
    client.send(sender, "c")
    states = client.states()
    assert accepted(states[:2]) == 2
    assert isinstance(states[2], Rejected)
    assert states[2].error is not None
    assert states[2].error.condition == "amqp:invalid-field"
    assert heard.texts == ["a"]
    assert core.consume("/queue/orders").texts == ["b"]


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        (b"", None),
        (b"\0\x53\x77", "cut off"),
        (b"rubbish", "a section of a message"),
        (encoded("a")[:-2] + b"\xff", "cut off"),
        (b"\0\x53\x74\xc1\x04\x02\x52\x01\x41\0\x53\x77\xa1\x01a", "names of properties"),
    ],
)
def test_a_message_that_cannot_be_read_is_rejected(payload: bytes, problem: str | None) -> None:
    """The link goes on; one without a body can be read."""
    core = CoreUnderTest()
    client = Client(core)
    sender = client.sender("orders")
    client.transfer(sender, payload)
    (state,) = client.states()
    if problem is None:
        assert accepted([state])
    else:
        assert isinstance(state, Rejected)
        assert state.error is not None
        assert state.error.condition == "amqp:decode-error"
        assert problem in (state.error.description or "")
    client.send(sender, "b")
    assert accepted(client.states()) == 1


def test_a_message_beyond_a_quota_is_rejected_and_the_next_may_be_taken() -> None:
    """Nothing of the connection ends for it."""
    core = CoreUnderTest(
        settings("orders", max_size_messages=1, address_full_policy=AddressFullPolicy.FAIL)
    )
    client = Client(core)
    sender = client.sender("orders")
    client.send(sender, "a", "b")
    first, second = client.states()
    assert accepted([first])
    assert isinstance(second, Rejected)
    assert second.error is not None
    assert second.error.condition == "amqp:resource-limit-exceeded"
    core.consume("/queue/orders", auto=True)
    client.send(sender, "c")
    assert accepted(client.states()) == 1


def test_a_settled_message_that_is_not_taken_ends_its_link() -> None:
    """Its client would not learn of it otherwise."""
    core = CoreUnderTest()
    client = Client(core)
    sender = client.sender("orders")
    client.transfer(sender, b"rubbish", settled=True)
    detach = client.take(Detach)
    assert detach.closed
    assert detach.error is not None
    assert detach.error.condition == "amqp:decode-error"
    client.send(sender, "ignored")
    assert client.all() == []
    client.say(Detach(sender, closed=True))
    assert client.all() == []
    client.send(client.sender("orders", handle=sender), "b")
    assert accepted(client.states()) == 1


def test_who_may_not_send_learns_so_when_the_link_begins() -> None:
    """By the condition for it, and the reason."""
    core = CoreUnderTest(secured({"ann": "reader"}, {"#": {"reader": "consume"}}))
    client = Client(core, opens=False)
    client.log_in("PLAIN", b"\0ann\0s3cret")
    client.header(0)
    client.say(Open("c"))
    client.say(Begin(None, 0, 100, 100))
    client.all()
    error = client.refused(Attach("s", 0, SENDER, source=Source(), target=Target("orders")))
    assert error.condition == "amqp:unauthorized-access"
    assert "'send'" in (error.description or "") or "send" in (error.description or "")


@pytest.mark.parametrize("role", [SENDER, RECEIVER])
def test_who_may_make_no_queue_is_given_no_node(role: bool) -> None:
    """Of either direction; nothing is left of it."""
    core = CoreUnderTest(secured({"ann": "s"}, {"#": {"s": "send consume"}}))
    client = Client(core, opens=False)
    client.log_in("PLAIN", b"\0ann\0s3cret")
    client.open()
    source, target = Source(dynamic=role is RECEIVER), Target(dynamic=role is SENDER)
    error = client.refused(Attach("n", 0, role, source=source, target=target))
    assert error.condition == "amqp:unauthorized-access"
    assert not core.broker.queues()


def test_a_client_gets_credit_and_more_before_it_has_none() -> None:
    """As the acceptor's parameters say."""
    options = AmqpOptions(ClientLimits(), AcceptorAmqp(credits=3, low_credits=1))
    client = Client(CoreUnderTest(), options=options)
    client.say(Attach("s", 0, SENDER, source=Source(), target=Target("orders")))
    attach, flow = client.all()
    assert isinstance(attach, Attach)
    assert isinstance(flow, Flow)
    assert (flow.handle, flow.delivery_count, flow.link_credit) == (0, 0, 3)
    client.send(0, "a")
    assert [one for one in client.all() if isinstance(one, Flow)] == []
    client.send(0, "b")
    (flow,) = [one for one in client.all() if isinstance(one, Flow)]
    assert (flow.delivery_count, flow.link_credit) == (2, 3)
    client.send(0, "c")
    client.say(Flow(0, 9, 3, 9, 0, 3, 2, echo=True))
    (flow,) = [one for one in client.all() if isinstance(one, Flow)]
    assert (flow.delivery_count, flow.link_credit) == (3, 2)


def test_delivery_counts_and_ids_of_transfers_begin_anew_at_their_end() -> None:
    """As serial numbers of 32 bits do."""
    client = Client(CoreUnderTest(), opens=False)
    client.header(0)
    client.say(Open("c"))
    client.say(Begin(None, 2**32 - 1, 100, 100))
    source, target = Source(), Target("orders")
    client.say(
        Attach("s", 0, SENDER, source=source, target=target, initial_delivery_count=2**32 - 2)
    )
    client.all()
    client.send(0, "a", "b", "c")
    client.say(Flow(0, 9, 2, 9, 0, 1, 0, echo=True))
    (flow,) = [one for one in client.all() if isinstance(one, Flow)]
    assert (flow.delivery_count, flow.next_incoming_id) == (1, 2)


def test_an_aborted_message_counts_against_the_credit_and_is_given_back() -> None:
    """However often: credit is given anew."""
    options = AmqpOptions(ClientLimits(), AcceptorAmqp(credits=1, low_credits=0))
    client = Client(CoreUnderTest(), options=options)
    sender = client.sender("orders")
    for at in range(5):
        client.say(Transfer(sender, at, b"0", 0, more=True), b"\0")
        client.say(Transfer(sender, aborted=True))
    client.all()
    client.transfer(sender, encoded("a"))
    assert accepted(client.states()) == 1


def test_a_transfer_beyond_the_window_ends_the_session() -> None:
    """The window is given anew before that, to a client that heeds it."""
    client = Client(CoreUnderTest())
    sender = client.sender("orders")
    for at in range(3_000):
        client.say(Transfer(sender, 0 if not at else None, b"0" if not at else None, more=True))
    flows = [one for one in client.all() if isinstance(one, Flow)]
    assert flows
    assert {one.incoming_window for one in flows} == {2_048}
    assert [one.next_incoming_id for one in flows[:2]] == [1_024, 2_048]
    assert not client.closed


def test_ids_and_counts_of_a_client_go_on_with_zero() -> None:
    """Wherever it begins to count; the broker says how far it is of each."""
    client = Client(CoreUnderTest(), opens=False)
    client.header(AMQP_ID)
    client.say(Open("c"))
    client.say(Begin(None, 2**32 - 2, 100, 100))
    client.all()
    client.say(
        Attach(
            "s", 0, SENDER, source=Source(), target=Target("a"), initial_delivery_count=2**32 - 2
        )
    )
    client.all()
    for delivery_id in (2**32 - 2, 2**32 - 1, 0, 1):
        client.say(Transfer(0, delivery_id, b"0", 0), encoded("a"))
    assert accepted(client.states()) == 4
    client.say(Flow(0, 100, 2, 100, handle=0, echo=True))
    flow = client.take(Flow)
    assert (flow.next_incoming_id, flow.delivery_count) == (2, 2)


@pytest.mark.parametrize(
    ("said", "condition"),
    [
        (Transfer(9, 0, b"0", 0), "amqp:session:unattached-handle"),
        (Detach(9), "amqp:session:unattached-handle"),
        (Flow(0, 1, 0, 1, handle=9), "amqp:session:unattached-handle"),
        (
            Attach("again", 0, SENDER, source=Source(), target=Target("orders")),
            "amqp:session:handle-in-use",
        ),
    ],
)
def test_what_breaks_the_rules_of_a_session_ends_it(said: object, condition: str) -> None:
    """The connection goes on, and may begin another on the same channel."""
    client = Client(CoreUnderTest())
    client.sender("orders", handle=0)
    client.say(said)
    end = client.take(End)
    assert end.error is not None
    assert end.error.condition == condition
    client.send(0, "ignored")
    assert client.all() == []
    client.say(End())
    client.say(Begin(None, 0, 100, 100))
    client.take(Begin)
    client.send(client.sender("orders"), "a")
    assert accepted(client.states()) == 1


def test_a_message_that_begins_amid_another_ends_its_link() -> None:
    """A part of a message says the delivery id of that message, or none."""
    client = Client(CoreUnderTest())
    client.sender("orders", handle=0)
    client.say(Transfer(0, 0, b"0", 0, more=True), encoded("a")[:5])
    client.say(Transfer(0, 0, more=True), encoded("a")[5:7])
    client.say(Transfer(0, 1, b"1", 0), encoded("b"))
    detach = client.take(Detach)
    assert detach.error is not None
    assert detach.error.condition == "amqp:invalid-field"
    assert client.connection.buffered == 0


@pytest.mark.parametrize(
    ("transfer", "condition"),
    [
        (Transfer(0), "amqp:invalid-field"),
        (Transfer(0, 0, b"0", 1), "amqp:not-implemented"),
        (Transfer(0, 0, b"0", 0, resume=True), "amqp:not-implemented"),
    ],
)
def test_what_a_link_cannot_do_ends_it(transfer: Transfer, condition: str) -> None:
    """By the name of what it is."""
    client = Client(CoreUnderTest())
    client.sender("orders", handle=0)
    client.say(transfer, encoded("a"))
    detach = client.take(Detach)
    assert detach.error is not None
    assert detach.error.condition == condition


def test_what_the_store_refuses_is_rejected_and_the_link_goes_on() -> None:
    """Each message has an outcome of its own: what was sent behind it is stored."""
    core = CoreUnderTest()
    client = Client(core)
    sender = client.sender("orders")
    client.send(sender, "first")
    client.all()
    core.journal.auto_commit = False
    poison, fine = client.send(sender, "poison", "fine")
    core.journal.refuse(UnitRefused("value out of range"))
    core.journal.commit()
    core.settle()
    rejected, accepted = client.outcomes()
    assert isinstance(rejected.state, Rejected)
    assert rejected.state.error is not None
    assert "value out of range" in (rejected.state.error.description or "")
    assert (rejected.first, accepted.first, accepted.state) == (poison, fine, ACCEPTED)
    core.journal.auto_commit = True
    client.send(sender, "next")
    assert client.states() == [ACCEPTED]
    assert core.stored_texts() == ["first", "fine", "next"]


def test_what_was_sent_settled_and_the_store_refuses_ends_its_link() -> None:
    """Its client would not learn it otherwise; other links go on."""
    core = CoreUnderTest()
    client = Client(core)
    sender, other = client.sender("orders"), client.sender("others")
    client.send(sender, "first")
    client.all()
    core.journal.auto_commit = False
    client.send(sender, "poison", settled=True)
    core.journal.refuse(StoreFull("no space left"))
    core.journal.commit()
    core.settle()
    detach = client.take(Detach)
    assert (detach.handle, detach.error is not None) == (sender, True)
    assert detach.error is not None
    assert detach.error.condition == "amqp:resource-limit-exceeded"
    core.journal.auto_commit = True
    client.send(other, "fine")
    assert client.states() == [ACCEPTED]


@pytest.mark.parametrize("settled", [True, False])
def test_nothing_is_said_of_a_session_that_is_over(*, settled: bool) -> None:
    """Its channel may be another's by the time the store answers."""
    core = CoreUnderTest()
    client = Client(core)
    sender = client.sender("orders")
    client.send(sender, "first")
    client.all()
    core.journal.auto_commit = False
    client.send(sender, "poison", "fine", settled=settled)
    client.say(End())
    client.take(End)
    core.journal.refuse(UnitRefused("value out of range"))
    core.journal.commit()
    core.settle()
    assert client.all() == []
    assert client.connection.held < 10_000


@pytest.mark.parametrize(
    "end",
    [
        Detach(0, closed=True),
        Transfer(0, 1, b"1", 7),
        Transfer(9, 1, b"1", 0),
        End(),
        Close(),
        Begin(None, 0, 1, 1),
    ],
)
def test_what_is_stored_is_accepted_before_the_end_of_what_it_came_by(end: object) -> None:
    """Whoever ends link, session or connection: the client would send it again otherwise."""
    core = CoreUnderTest()
    client = Client(core)
    client.sender("orders", handle=0)
    core.journal.auto_commit = False
    client.send(0, "a")
    core.journal.commit()
    core.journal.run_posted()
    assert client.all() == []
    client.connection.receive(encode_frame(encode_performative(end)))
    accepted, *rest = client.all()
    assert isinstance(accepted, Disposition)
    assert accepted.state == ACCEPTED
    assert [type(one) for one in rest if isinstance(one, Detach | End | Close)]


@pytest.mark.parametrize("others", [{}, {Symbol("x-opt-jms-msg-type"): UByte(5)}])
def test_where_a_message_was_is_not_the_senders_to_say(others: dict[object, Value]) -> None:
    """Whatever goes back there by an operator's word needs no permission of the sender."""
    core = CoreUnderTest()
    client = Client(core)
    sender = client.sender("orders")
    forged: dict[object, Value] = {
        Symbol("x-opt-ORIG-QUEUE"): "secret",
        Symbol("x-opt-ACTUAL-EXPIRY"): 7,
    }
    claims: dict[str, Value] = {"_AMQ_ORIG_QUEUE": "secret", "_AMQ_ORIG_ADDRESS": "secret", "a": 1}
    for _ in range(2):
        client.send(
            sender, "text", annotations=encode_annotations({**forged, **others}), application=claims
        )
    assert accepted(client.states()) == 2
    client.receiver("orders", 2)
    for one in client.messages():
        assert one.text == "text"
        assert one.annotations == others
        assert one.application_properties == claims
    client.say(End())
    for reference in core.consume("/queue/orders").received:
        said = reference.record.properties()
        assert said["a"] == 1
        assert not [name for name in said if name.startswith(("_AMQ_ORIG_", "_AMQ_ACTUAL"))]
