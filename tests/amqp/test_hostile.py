"""What a client that is logged in sends to hold up others, or to fill the memory uncounted."""

import struct
import tracemalloc

import pytest

from orthia.broker.protocols.amqp.frames import encode_frame
from orthia.broker.protocols.amqp.performatives import (
    ACCEPTED,
    MAX_PERFORMATIVE_BYTES,
    RECEIVER,
    RELEASED,
    SENDER,
    Attach,
    Begin,
    Declared,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Modified,
    Rejected,
    Source,
    TransactionalState,
    Transfer,
    encode_performative,
)
from orthia.broker.protocols.amqp.sections import (
    MAX_HEAD_BYTES,
    MAX_HEAD_VALUES,
    data_prefix,
)
from orthia.broker.protocols.amqp.types import encode_map, encode_string, has_more_values
from orthia.broker.protocols.amqp.values import Symbol
from orthia.journal.model.message import Message
from tests.amqp.support import WINDOW, Client, Received
from tests.core.support import CoreUnderTest

_A_SEQUENCE = b"\0SvE"
"""An empty one."""


def _list_of(count: int, value: bytes = b"\x40") -> bytes:
    return b"\xd0" + struct.pack(">II", 4 + count * len(value), count) + count * value


def _properties_with(value: bytes) -> bytes:
    """Return a section of application properties of which one is a value."""
    content = encode_string("name") + value
    return b"\0St\xd1" + struct.pack(">II", 4 + len(content), 2) + content


# --- what takes long to read


@pytest.mark.parametrize("size", [25_000, 50_000])
def test_a_body_of_very_many_sections_is_refused(size: int) -> None:
    """Taken whole or as it comes: each would be looked at by itself."""
    client = Client(CoreUnderTest())
    sender = client.sender("orders")
    client.transfer(sender, _A_SEQUENCE * size)
    (state,) = client.states()
    assert isinstance(state, Rejected)
    assert state.error is not None
    assert "at most 1024 sections" in (state.error.description or "")


def test_a_large_body_may_have_as_many_sections_as_fit_its_length() -> None:
    """One more for each KiB: so do clients that write a stream section by section."""
    core = CoreUnderTest()
    client = Client(core)
    sender = client.sender("orders")
    section = data_prefix(1_024) + b"x" * 1_024
    client.transfer(sender, section * 300)
    client.transfer(sender, (data_prefix(1) + b"x") * 1_024)
    assert client.states() == [ACCEPTED, ACCEPTED]


@pytest.mark.parametrize(
    "value",
    [
        _list_of(MAX_HEAD_VALUES),
        _list_of(60_000),
        b"\xf0" + struct.pack(">II", 60_005, 60_000) + b"\x50" + b"x" * 60_000,  # bytes
        b"\xf0" + struct.pack(">II", 60_004, 1) + _list_of(59_991),  # a list
    ],
)
@pytest.mark.parametrize("body", [b"", b"\0Su\xa0\1x"])
def test_properties_of_very_many_values_are_refused(value: bytes, body: bytes) -> None:
    """Wherever they are in each other, and with a body or without: each would be decoded."""
    client = Client(CoreUnderTest())
    sender = client.sender("orders")
    client.transfer(sender, _properties_with(value) + body)
    (state,) = client.states()
    assert isinstance(state, Rejected)
    assert state.error is not None
    assert f"at most {MAX_HEAD_VALUES} values" in (state.error.description or "")


def test_a_message_may_have_as_many_properties_as_a_frame_of_stomp() -> None:
    """The default of max-headers, less one."""
    client = Client(CoreUnderTest())
    sender = client.sender("orders")
    client.send(sender, "a", application={f"name-{one}": "x" * 200 for one in range(255)})
    assert client.states() == [ACCEPTED]


def test_a_head_without_a_body_has_the_same_greatest_length() -> None:
    """Though nothing follows that would show how long it is."""
    client = Client(CoreUnderTest())
    sender = client.sender("orders")
    client.transfer(sender, _properties_with(encode_string("x" * MAX_HEAD_BYTES)))
    (state,) = client.states()
    assert isinstance(state, Rejected)
    assert "bytes before the body" in ((state.error or Error(Symbol("x"))).description or "")


def test_what_describes_a_section_is_a_number_or_a_symbol() -> None:
    """Anything else, of whatever length, is not even decoded."""
    client = Client(CoreUnderTest())
    sender = client.sender("orders")
    client.transfer(sender, b"\0" + _list_of(50_000) + b"\x45")
    client.transfer(sender, b"\0" + b"\0" * 50)
    assert [type(state) for state in client.states()] == [Rejected, Rejected]


@pytest.mark.parametrize(
    ("data", "count"),
    [
        (b"\x40" * 5, 5),
        (b"\x53\1\x80" + b"x" * 8 + b"\xa1\3abc\xb1\0\0\0\3abc", 4),
        (_list_of(3) + _list_of(2), 7),
        (encode_map({"a": {"b": "c"}}), 5),
        (b"\0\x53\1\x45", 3),
    ],
)
def test_values_are_counted_wherever_they_are(data: bytes, count: int) -> None:
    """Those of lists, of maps and of what is described; one that is cut off ends the count."""
    assert has_more_values(data, 0, len(data), count - 1)
    assert not has_more_values(data, 0, len(data), count)
    assert not has_more_values(b"\xb1\0\0", 0, 3, 1)


def test_a_list_of_very_many_values_is_left_encoded_for_others() -> None:
    """Each delivery would show each of them."""
    few, many = (Message("q", b"", b"\0Sw" + _list_of(one), 0, 0, 4) for one in (500, 513))
    shown = [one._replace(encoding=2).content() for one in (few, many)]
    assert shown[0].body == b"[" + b",".join([b"null"] * 500) + b"]"
    assert shown[1].body == many.body


# --- what is kept


def _growth(client: Client, data: bytes) -> int:
    """Return how many bytes more are taken once a client has sent something."""
    tracemalloc.start()
    try:
        client.send_bytes(data)
        client.all()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("payload", [b"", b"ab"])
def test_a_message_in_very_small_parts_takes_no_more_than_its_bytes(payload: bytes) -> None:
    """Nor does one of parts without any."""
    client = Client(CoreUnderTest())
    sender = client.sender("orders")
    client.transfer(sender, b"x", more=True)
    part = encode_frame(encode_performative(Transfer(sender, more=True)) + payload)
    assert _growth(client, part * 5_000) < 20_000 + 4 * len(payload) * 5_000


def test_what_is_kept_of_a_message_that_is_not_whole_counts() -> None:
    """The state of its delivery is not kept but for its transaction, whose id is short."""
    client = Client(CoreUnderTest())
    sender = client.sender("orders")
    long = TransactionalState(b"x" * 10_000)
    client.transfer(sender, b"x", more=True, state=long)
    detach = client.take(Detach)
    assert detach.error is not None
    assert detach.error.condition == "amqp:transaction:unknown-id"


def test_what_an_outcome_says_beside_is_not_kept() -> None:
    """Neither until a transaction ends, nor as the default of a link."""
    core = CoreUnderTest()
    core.send("/queue/orders", "a", "b", "c")
    client = Client(core)
    long = Error(Symbol("amqp:internal-error"), "x" * 10_000)
    source = Source("orders", default_outcome=Modified(message_annotations={Symbol("a"): "b" * 99}))
    client.receiver("orders", 3, source=source)
    first, second, third = client.messages()
    coordinator = client.coordinator()
    txn_id = client.declare(coordinator)
    client.settle(first, state=TransactionalState(txn_id, Rejected(long)), settled=False)
    client.settle(second, state=TransactionalState(txn_id), settled=False)
    client.discharge(coordinator, txn_id)
    client.settle(third, state=Rejected(long), settled=False)
    kept = [one for one in client.states() if isinstance(one, Rejected | Modified)]
    assert kept == [Rejected(), Modified(), Rejected()]


def test_handles_of_links_that_were_refused_count_until_the_client_detaches_them() -> None:
    """In each session; there may be a million of them."""
    client = Client(CoreUnderTest())
    client.say(Begin(None, 0, WINDOW, WINDOW), channel=1)
    before = client.connection.held
    for handle in range(100):
        client.say(Attach("x", handle, SENDER, source=Source()), channel=1)
    assert client.connection.held - before >= 100 * 100
    client.say(Detach(0, closed=True), channel=1)
    client.say(End(), channel=1)
    assert client.connection.held < before


def test_what_a_link_had_counts_when_it_was_ended_until_the_client_detaches_it() -> None:
    """What of it is settled in a transaction, however long the range, lets none of it commit."""
    core = CoreUnderTest()
    core.send("/queue/orders", *("x" for _ in range(50)))
    client = Client(core)
    receiver = client.receiver("orders", 50)
    messages = client.messages()
    coordinator = client.coordinator()
    for last in (messages[-1].id, 2**31):
        txn_id = client.declare(coordinator)
        before = client.connection.held - client.connection.unacknowledged
        if last == messages[-1].id:
            client.settle(messages[0], state=Declared(b"x"))
            client.all()
            assert client.connection.held - before > 50 * 100 - 3_100
        state = TransactionalState(txn_id, ACCEPTED)
        client.say(Disposition(RECEIVER, messages[0].id, last, settled=True, state=state))
        client.discharge(coordinator, txn_id)
        (outcome,) = client.states()
        assert isinstance(outcome, Rejected)
    held = client.connection.held
    client.say(Detach(receiver, closed=True))
    assert held - client.connection.held > 50 * 100


def test_the_selector_of_a_link_counts() -> None:
    """As that of a STOMP subscription does, by its characters."""
    client = Client(CoreUnderTest())
    before = client.connection.held
    selector = " OR ".join(f"n = {one}" for one in range(100))
    filters = {Symbol("apache.org:selector-filter:string"): selector}
    client.receiver("orders", source=Source("orders", filter=filters))
    assert client.connection.held - before > 100 * len(selector)


def test_a_coordinator_takes_short_messages_only() -> None:
    """Whatever it is asked fits a frame's own part."""
    client = Client(CoreUnderTest())
    coordinator = client.coordinator()
    client.transfer(coordinator, b"x" * (MAX_PERFORMATIVE_BYTES + 1), more=True)
    detach = client.take(Detach)
    assert detach.error is not None
    assert detach.error.condition == "amqp:link:message-size-exceeded"


# --- what is asked for again and again


def test_a_window_that_is_shut_and_opened_again_and_again_keeps_nothing() -> None:
    """All links go on once more for it, however often that was asked for meanwhile."""
    client = Client(CoreUnderTest())
    for _ in range(200):
        client.receiver("orders")
    shut, opened = (Flow(0, window, 0, WINDOW) for window in (0, WINDOW))
    data = b"".join(encode_frame(encode_performative(one)) for one in (shut, opened)) * 1_000
    tracemalloc.start()
    try:
        client.send_bytes(data)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_drains_that_wait_are_looked_at_by_one_timer() -> None:
    """Of as many links as there are, asked for however often; all are answered."""
    core = CoreUnderTest()
    client = Client(core)
    receivers = [client.receiver("orders") for _ in range(20)]
    for _ in range(5):
        for receiver in receivers:
            client.say(Flow(0, 0, 0, WINDOW, receiver, 0, 10, drain=True))
    core.now += 0.001
    fired = 0
    while (due := core.next_timer()) is not None and due <= core.now:
        core.turn()
        fired += 1
    assert 1 <= fired <= 3
    client.all()
    client.say(Flow(0, WINDOW, 0, WINDOW))
    core.pass_time(1)
    answered = [one.handle for one in client.all() if isinstance(one, Flow) and one.drain]
    assert sorted(one for one in answered if one is not None) == receivers


def test_a_long_range_is_settled_whole() -> None:
    """In steps, and each of its deliveries once."""
    core = CoreUnderTest()
    core.send("/queue/orders", *("x" for _ in range(1_500)))
    client = Client(core)
    client.receiver("orders", 2_000)
    assert len(client.messages()) == 1_500
    client.say(Disposition(RECEIVER, 100, 99, settled=False, state=ACCEPTED))
    settled = [range(one.first, (one.last or one.first) + 1) for one in client.outcomes()]
    assert sorted(one for ids in settled for one in ids) == list(range(1_500))
    assert len(settled) > 1
    assert client.connection.unacknowledged == 0


def test_many_answers_of_a_transaction_are_rolled_back_together() -> None:
    """Those that were settled alike, whatever the order in which they were said."""
    core = CoreUnderTest()
    core.send("/queue/orders", *(str(one) for one in range(600)))
    client = Client(core)
    client.receiver("orders", 600)
    messages = client.messages()
    coordinator = client.coordinator()
    txn_id = client.declare(coordinator)
    for index, one in enumerate(messages):
        outcome = ACCEPTED if index % 2 else RELEASED
        client.settle(one, state=TransactionalState(txn_id, outcome), settled=False)
    client.discharge(coordinator, txn_id, fail=True)
    client.all()
    client.settle(*messages)
    assert client.connection.unacknowledged == 0


def test_what_a_topics_subscriber_gives_back_comes_again_in_turns_with_others() -> None:
    """However much credit it gives at once; a drain is answered behind all of it."""
    core = CoreUnderTest()
    client = Client(core)
    receiver = client.receiver("/topic/news", 300)
    core.send("/topic/news", *(str(one) for one in range(300)))
    messages = client.messages()
    client.say(Disposition(RECEIVER, 0, 299, settled=True, state=RELEASED))
    flow = Flow(300, WINDOW, 0, WINDOW, receiver, 300, 1_000, drain=True)
    client.connection.receive(encode_frame(encode_performative(flow)))
    at_once = client.messages()
    assert 0 < len(at_once) <= 128
    core.pass_time(1)
    *transfers, (last, _) = client.came()
    rest = [Received(said, body) for said, body in transfers if isinstance(said, Transfer)]
    assert [one.text for one in at_once + rest] == [one.text for one in messages]
    assert isinstance(last, Flow)
    assert last.drain
    assert last.delivery_count == 1_300
