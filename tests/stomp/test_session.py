"""What a client sees of its session: frames in, frames out, on a real core without sockets."""

import pytest

from orthia.broker.core.errors import AuthenticationFailed
from orthia.broker.core.limits.memory import MESSAGE_OVERHEAD
from orthia.config.settings import ClientLimits
from orthia.journal.model.fields import Fields
from tests.core.support import ANYONE, CoreUnderTest, settings
from tests.stomp.support import PASSCODE, QUEUE, Client, acknowledge, bodies, fill, secured

# --- connecting


@pytest.mark.parametrize(
    ("accepted", "version"),
    [
        (None, "1.0"),
        ("1.0", "1.0"),
        ("1.1", "1.1"),
        ("1.0,1.1,1.2", "1.2"),
        ("1.2, 1.1", "1.2"),
        ("1.1,9.9", "1.1"),
    ],
)
@pytest.mark.parametrize("command", ["CONNECT", "STOMP"])
def test_the_highest_common_version_is_taken(
    accepted: str | None, version: str, command: str
) -> None:
    """CONNECTED says which; without accept-version it is 1.0."""
    client = Client(CoreUnderTest(), None)
    client.send(command, **({"accept_version": accepted} if accepted else {}))
    frame = client.read()
    assert (frame.command, frame.get(b"version")) == ("CONNECTED", version)
    assert frame.raw[b"server"].startswith(b"orthia/")
    assert frame.raw[b"session"]
    assert frame.raw[b"heart-beat"] == b"0,0"


def waiting_for_its_login() -> Client:
    """Return a client whose login is not answered yet, and that sends on."""
    client = Client(CoreUnderTest(), None)
    client.socket.answers_logins = False
    client.send("CONNECT", accept_version="1.2", host="h", receipt="login")
    client.send("SEND", destination=QUEUE, receipt="sent")
    assert client.commands() == []
    assert client.session.is_waiting
    return client


def test_what_follows_a_login_that_takes_long_is_done_after_it() -> None:
    """In order, and the client is read from again."""
    client = waiting_for_its_login()
    assert client.socket.answered is not None
    client.socket.answered(ANYONE)
    client.core.settle()
    assert client.commands() == ["CONNECTED", "RECEIPT"]
    assert not client.session.is_waiting
    assert client.core.broker.depths() == {"orders": 1}


def test_a_login_that_is_refused_late_ends_its_client_alone() -> None:
    """Nothing of what came behind it is done."""
    client = waiting_for_its_login()
    assert client.socket.answered is not None
    client.socket.answered(AuthenticationFailed("login or passcode is wrong"))
    client.core.settle()
    assert "login or passcode is wrong" in client.error()
    assert not client.core.broker.depths()


def test_a_login_that_is_answered_after_its_client_left_does_nothing() -> None:
    """Nobody is written to, and nothing is held."""
    client = waiting_for_its_login()
    assert client.socket.answered is not None
    client.session.connection_lost()
    client.socket.answered(ANYONE)
    client.core.settle()
    assert client.commands() == []
    assert client.session.is_closed
    assert client.session.held == 0


def test_a_client_that_never_connects_is_ended() -> None:
    """The connect time-out holds for sockets that say nothing, or half a frame."""
    client = Client(CoreUnderTest(), None, limits=ClientLimits(connect_timeout=1_000))
    client.session.receive(b"CONNECT\n")
    client.session.tick(0.9)
    assert not client.closed
    client.session.tick(1.1)
    assert "no CONNECT frame within 1000 ms" in client.error()


def test_a_client_that_is_not_read_from_has_its_time_to_connect_later() -> None:
    """While the journal is full nobody is: the second half of its CONNECT may be there long ago."""
    client = Client(CoreUnderTest(), None, limits=ClientLimits(connect_timeout=1_000))
    client.session.receive(b"CONNECT\n")
    client.session.tick(0.5)
    client.session.tick(30.0, is_read=False)
    client.session.tick(60.0, is_read=False, paused=20.0)
    client.session.tick(60.4)
    assert not client.closed
    client.session.tick(60.6)
    assert "no CONNECT frame within 1000 ms" in client.error()


SENDER = secured({"ada": "senders"}, {"#": {"senders": "send createAddress createNonDurableQueue"}})


@pytest.mark.parametrize(
    "login",
    [{}, {"login": "ada"}, {"login": "ada", "passcode": "x"}, {"login": "eve", "passcode": ""}],
)
def test_a_wrong_login_is_refused_without_saying_which(login: dict[str, str]) -> None:
    """Neither the name nor the passcode is told apart, or printed."""
    client = Client(CoreUnderTest(SENDER), None)
    client.send("CONNECT", accept_version="1.2", **login)
    assert client.error() == "login or passcode is wrong\n"


def test_what_a_user_may_not_do_is_refused_with_the_permission() -> None:
    """The error names user, permission and address."""
    client = Client(CoreUnderTest(SENDER), login="ada", passcode=PASSCODE)
    client.send("SUBSCRIBE", destination=QUEUE, id="1")
    error = client.error()
    assert "'ada' has no role with permission 'consume' on address 'orders'" in error
    assert PASSCODE not in error


# --- headers that would be frames of their own


@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2"])
@pytest.mark.parametrize("note", ["x\0RECEIPT", "x\rmessage-id:7"])
def test_a_header_that_ends_frames_is_refused(version: str, note: str) -> None:
    """The sender learns which header, and nobody gets the message."""
    core = CoreUnderTest()
    client = Client(core, version)
    client.send("SEND", destination=QUEUE, note=note, receipt="r")
    assert "header 'note' has a " in client.error()
    assert Client(core).subscribe() == []


@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2"])
@pytest.mark.parametrize("header", [b"note:x\0RECEIPT", b"note:x\rmessage-id:7", b"a\rb\0c:x"])
def test_what_an_older_journal_has_forges_nothing(version: str, header: bytes) -> None:
    """A message that was taken before such headers were refused: one MESSAGE, with its headers."""
    core = CoreUnderTest()
    core.send(QUEUE, "body", headers=b"a:b\n" + header + b"\nz:y\n")
    client = Client(core, version)
    client.send("SUBSCRIBE", destination=QUEUE, id="s", ack="client")
    assert client.written.count(b"\0") == 1
    assert b"\r" not in client.written
    frame = client.read()
    assert (frame.command, frame.body) == ("MESSAGE", b"body")
    assert (frame.get(b"a"), frame.get(b"z")) == ("b", "y")
    assert frame.get(b"message-id") != "7"


@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2"])
@pytest.mark.parametrize("destination", [QUEUE, "/topic/news"])
def test_a_message_of_no_protocol_is_delivered(version: str, destination: str) -> None:
    """What it says of itself is in headers, whatever version and however many hear it."""
    core = CoreUnderTest()
    client = Client(core, version)
    client.send("SUBSCRIBE", destination=destination, id="s", ack="auto")
    said = Fields(correlation_id="c", properties={"n": 1, "co\\lour": "red"})
    core.send(destination, "body", stated=said)
    frame = client.read()
    assert (frame.command, frame.body) == ("MESSAGE", b"body")
    assert (frame.get(b"correlation-id"), frame.get(b"n")) == ("c", "1")
    name = b"co\\lour" if version == "1.0" else b"co\\\\lour"
    assert frame.raw[name] == b"red"


@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2"])
def test_line_ends_that_a_sender_escaped_stay_within_their_header(version: str) -> None:
    """As they are to 1.2, and as spaces where the receiver's version cannot say them."""
    core = CoreUnderTest()
    Client(core).send("SEND", "body", destination=QUEUE, note=r"a\nack:1\r\nb\c")
    client = Client(core, version)
    client.send("SUBSCRIBE", destination=QUEUE, id="s", ack="client")
    note = {"1.0": "a ack:1  b:", "1.1": "a\nack:1 \nb:", "1.2": "a\nack:1\r\nb:"}
    frame = client.read()
    assert frame.get(b"note") == note[version]
    assert client.written == b""


# --- sending


def test_a_receipt_means_stored() -> None:
    """RECEIPT comes after the commit and not before; without the header nothing comes."""
    core = CoreUnderTest(auto_commit=False)
    client = Client(core)
    client.send("SEND", "a", destination=QUEUE, receipt="r1")
    client.send("SEND", "b", destination=QUEUE)
    assert client.frames() == []
    core.journal.commit()
    core.settle()
    frame = client.read()
    assert (frame.command, frame.get(b"receipt-id")) == ("RECEIPT", "r1")


def test_receipts_come_in_the_order_of_the_frames() -> None:
    """A client may count on it."""
    core = CoreUnderTest()
    client = Client(core)
    for number in range(5):
        client.send("SEND", "a", destination=QUEUE, receipt=str(number))
    assert [frame.get(b"receipt-id") for frame in client.frames()] == list("01234")


def test_the_senders_headers_reach_the_receiver() -> None:
    """Its own headers pass, those between it and the broker do not."""
    core = CoreUnderTest()
    Client(core).send(
        "SEND", "x", destination=QUEUE, receipt="r", colour="red", content_type="text/plain"
    )
    (frame,) = Client(core).subscribe()
    assert frame.get(b"colour") == "red"
    assert frame.get(b"content-type") == "text/plain"
    assert frame.get(b"destination") == QUEUE
    assert frame.get(b"subscription") == "s"
    assert frame.get(b"redelivered") == "false"
    assert frame.raw[b"content-length"] == b"1"
    assert b"receipt" not in frame.raw


@pytest.mark.parametrize(
    ("headers", "expires_ms", "is_stored"),
    [
        ({}, 0, True),
        ({"persistent": "true", "priority": "4", "expires": "0"}, 0, True),
        ({"persistent": "false"}, 0, False),
        ({"persistent": "False"}, 0, False),
        ({"persistent": "TRUE"}, 0, True),
        ({"persistent": ""}, 0, True),
        ({"expires": "99999999999999"}, 99_999_999_999_999, True),
    ],
)
def test_headers_that_mean_something_to_the_broker(
    headers: dict[str, str], expires_ms: int, is_stored: bool
) -> None:
    """persistent, which is true unless said otherwise, and expires."""
    core = CoreUnderTest()
    Client(core).send("SEND", "x", destination=QUEUE, **headers)
    (reference,) = core.consume(QUEUE).received
    assert reference.record.expires_ms == expires_ms
    assert reference.record.priority == 4
    assert core.stored_texts() == (["x"] if is_stored else [])


# --- subscribing and acknowledging


def test_auto_acknowledges_by_delivering() -> None:
    """With ack auto a delivered message is gone."""
    core = CoreUnderTest()
    fill(core, "a", "b")
    client = Client(core)
    frames = client.subscribe("auto")
    assert bodies(frames) == ["a", "b"]
    assert b"ack" not in frames[0].raw
    assert core.stored_texts() == []


@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2"])
@pytest.mark.parametrize(("ack", "left"), [("client", ["c"]), ("client-individual", ["a", "c"])])
def test_an_acknowledgement_means_what_its_mode_says(
    ack: str, left: list[str], version: str
) -> None:
    """All up to that message, or that message alone."""
    core = CoreUnderTest()
    fill(core, "a", "b", "c")
    client = Client(core, version)
    frames = client.subscribe(ack)
    acknowledge(client, frames[1], receipt="r")
    assert client.commands() == ["RECEIPT"]
    assert core.stored_texts() == left


def test_stomp_1_0_has_no_nack() -> None:
    """It is refused by name."""
    core = CoreUnderTest()
    fill(core, "a")
    client = Client(core, "1.0")
    (frame,) = client.subscribe()
    acknowledge(client, frame, "NACK")
    assert "STOMP 1.0 has no NACK" in client.error()


def test_an_error_shows_a_backslash_as_it_is() -> None:
    """Escaped once by STOMP, and by nothing else; what cannot be printed is shown escaped."""
    client = Client(CoreUnderTest())
    client.send("UNSUBSCRIBE", id="a\\\\b\\nc")
    frame = client.read()
    assert frame.raw[b"message"] == rb"this connection has no subscription 'a\\b\\nc'"
    assert frame.body == b"this connection has no subscription 'a\\b\\nc'\n"


def test_prefetch_has_a_limit_whatever_a_client_asks_for() -> None:
    """What is delivered and not acknowledged is held in memory."""
    core = CoreUnderTest()
    fill(core, *("x" for _ in range(10_050)))
    assert len(Client(core).subscribe(prefetch_count="1000000")) == 10_000


@pytest.mark.parametrize(
    ("headers", "complaint"),
    [
        ({"id": "1"}, "SUBSCRIBE has no destination header"),
        ({"destination": QUEUE}, "SUBSCRIBE has no id header"),
        ({"destination": QUEUE, "id": "1", "ack": "never"}, "ack 'never' is unknown"),
        ({"destination": QUEUE, "id": "1", "ack": "client", "prefetch-count": "x"}, "whole number"),
        ({"destination": "/queue/", "id": "1"}, "expected /queue/NAME"),
    ],
)
def test_a_wrong_subscribe_says_what_is_wrong(headers: dict[str, str], complaint: str) -> None:
    """And ends the session."""
    client = Client(CoreUnderTest())
    client.send("SUBSCRIBE", **headers)
    assert complaint in client.error()


def test_a_subscription_id_is_used_once() -> None:
    """Until it is unsubscribed."""
    client = Client(CoreUnderTest())
    client.subscribe()
    client.send("UNSUBSCRIBE", id="s")
    client.subscribe()
    client.send("SUBSCRIBE", destination=QUEUE, id="s")
    assert "has a subscription 's' already" in client.error()


def test_stomp_1_0_unsubscribes_by_destination() -> None:
    """Its subscriptions need no id."""
    core = CoreUnderTest()
    client = Client(core, "1.0")
    client.send("SUBSCRIBE", destination=QUEUE)
    client.send("UNSUBSCRIBE", destination=QUEUE, receipt="r")
    fill(core, "a")
    assert client.commands() == ["RECEIPT"]


@pytest.mark.parametrize(
    "how", ["connection_lost", "refused", "disconnect", "shut_down", "go_away"]
)
def test_however_a_session_ends_its_messages_go_back(how: str) -> None:
    """Nothing delivered and unacknowledged is lost with a connection."""
    core = CoreUnderTest()
    fill(core, "a", "b")
    client = Client(core)
    client.subscribe()
    match how:
        case "connection_lost":
            client.session.connection_lost()
        case "refused":
            client.send("NONSENSE")
        case "disconnect":
            client.send("DISCONNECT")
        case "shut_down":
            client.session.shut_down("too much is held")
        case "go_away":
            client.session.go_away()
    assert client.session.is_closed
    client.closed = False
    assert bodies(Client(core).subscribe()) == ["a", "b"]


@pytest.mark.parametrize("frame", ["SEND", "SUBSCRIBE", "COMMIT"])
def test_what_comes_too_late_at_a_node_that_stops_ends_without_an_error(frame: str) -> None:
    """The client did nothing wrong: to it the node went away."""
    core = CoreUnderTest()
    client = Client(core)
    client.send("BEGIN", transaction="t")
    core.broker.stop()
    in_transaction = {"transaction": "t"} if frame == "COMMIT" else {}
    client.send(frame, destination=QUEUE, id="s", **in_transaction)
    assert client.commands() == []
    assert client.closed


@pytest.mark.parametrize("frame", ["SEND", "SUBSCRIBE", "COMMIT", "ACK"])
def test_what_was_sent_before_the_stop_is_answered_though_more_comes_too_late(frame: str) -> None:
    """Frames that a busy node has read and not done do not take away receipts of what it stores."""
    core = CoreUnderTest(auto_commit=False)
    client = Client(core)
    client.send("BEGIN", transaction="t")
    client.send("SUBSCRIBE", destination=QUEUE, id="s", ack="client")
    client.send("SEND", "a", destination=QUEUE)
    core.journal.commit()
    core.settle()
    (delivered,) = client.frames()
    client.send("SEND", "b", destination=QUEUE, receipt="stored")
    core.broker.stop()
    answered = {"ACK": {"id": delivered.get(b"ack") or ""}, "COMMIT": {"transaction": "t"}}
    client.send(frame, "c", destination=QUEUE, receipt="late", **answered.get(frame, {"id": "u"}))
    client.send("SEND", "d", destination=QUEUE, receipt="later")
    core.journal.commit()
    core.settle()
    assert client.read().get(b"receipt-id") == "stored"
    client.session.go_away()
    assert client.commands() == []
    assert core.stored_texts() == ["a", "b"]


def test_a_full_socket_gets_no_deliveries_until_it_drains() -> None:
    """Deliveries stop and go on with set_writable."""
    core = CoreUnderTest()
    client = Client(core)
    client.subscribe("auto")
    client.session.set_writable(writable=False)
    fill(core, "a", "b")
    assert client.frames() == []
    assert core.stored_texts() == ["a", "b"]
    client.session.set_writable(writable=True)
    assert bodies(client.frames()) == ["a", "b"]


# --- transactions


def test_a_transaction_is_stored_whole_at_its_commit() -> None:
    """Its sends and acknowledgements show together; receipts inside it come at once."""
    core = CoreUnderTest()
    fill(core, "order")
    client = Client(core)
    (order,) = client.subscribe()
    client.send("BEGIN", transaction="t", receipt="begun")
    client.send("SEND", "one", destination="/queue/out", transaction="t", receipt="sent")
    acknowledge(client, order, transaction="t", receipt="acked")
    assert client.commands() == ["RECEIPT"] * 3
    assert core.stored_texts() == ["order"]
    client.send("COMMIT", transaction="t", receipt="done")
    assert client.read().get(b"receipt-id") == "done"
    assert core.stored_texts() == ["one"]


def test_a_send_to_a_bad_destination_fails_in_its_transaction_at_the_send() -> None:
    """Where the client can tell which it was; nothing of the transaction is done."""
    core = CoreUnderTest(settings("closed", auto_create_addresses=False))
    client = Client(core)
    client.send("BEGIN", transaction="t")
    client.send("SEND", "a", destination=QUEUE, transaction="t")
    client.send("SEND", "b", destination="/queue/closed", transaction="t", receipt="r")
    frame = client.read()
    assert (frame.command, frame.get(b"receipt-id")) == ("ERROR", "r")
    assert b"address 'closed' does not exist" in frame.body
    assert core.stored_texts() == []


def test_open_transactions_are_bounded() -> None:
    """What a client makes the broker hold has a limit, which the error names."""
    client = Client(CoreUnderTest(), limits=ClientLimits(max_transaction_bytes=5_000))
    client.send("BEGIN", transaction="t")
    client.send("SEND", "x" * 3_000, destination=QUEUE, transaction="t")
    client.send("SEND", "x" * 3_000, destination=QUEUE, transaction="t")
    assert "max-transaction-bytes 5000" in client.error()


# --- the end


def test_the_receipt_of_disconnect_comes_when_all_is_stored() -> None:
    """SENDs and ACKs before it are in the store by then."""
    core = CoreUnderTest(auto_commit=False)
    fill(core, "a")
    core.journal.commit()
    core.settle()
    client = Client(core)
    (frame,) = client.subscribe()
    acknowledge(client, frame)
    client.send("SEND", "b", destination="/queue/out")
    client.send("DISCONNECT", receipt="bye")
    assert client.frames() == []
    core.journal.commit()
    core.settle()
    assert client.read().get(b"receipt-id") == "bye"
    assert client.closed
    assert core.stored_texts() == ["b"]


def test_what_follows_disconnect_is_ignored() -> None:
    """The client said it was done."""
    core = CoreUnderTest()
    client = Client(core)
    client.session.receive(b"DISCONNECT\nreceipt:bye\n\n\0SEND\ndestination:/queue/a\n\nx\0")
    core.settle()
    assert client.commands() == ["RECEIPT"]
    assert core.stored_texts() == []


def test_a_store_that_fails_answers_no_receipt() -> None:
    """A connection that ends before its commit got no answer it could take for one."""
    core = CoreUnderTest(auto_commit=False)
    client = Client(core)
    client.send("SEND", "a", destination=QUEUE, receipt="r")
    client.session.connection_lost()
    core.journal.commit()
    core.settle()
    assert client.frames() == []


def test_heart_beats_go_out_and_a_silent_client_is_ended() -> None:
    """Both ways as agreed in CONNECTED; a client we do not read from is not silent."""
    core = CoreUnderTest()
    client = Client(core, None)
    client.send("CONNECT", accept_version="1.2", heart_beat="1000,2000")
    assert client.read().raw[b"heart-beat"] == b"2000,1000"
    client.session.tick(1.1)
    assert client.written == b"\n"
    client.written = b""
    client.now = 1.9
    client.session.receive(b"\n")
    client.session.tick(2.5)
    assert not client.closed
    client.session.tick(5.0, is_read=False)
    assert not client.closed
    client.written = b""
    client.session.tick(7.1)
    assert "no heart-beat" in client.error()


@pytest.mark.parametrize("ack", ["client", "client-individual"])
def test_a_transaction_may_acknowledge_more_than_the_prefetch(ack: str) -> None:
    """A client that commits every ten messages has a prefetch of one, and waits for nothing."""
    core = CoreUnderTest()
    texts = [f"m{number}" for number in range(10)]
    fill(core, *texts)
    client = Client(core)
    client.send("BEGIN", transaction="t")
    frames = client.subscribe(ack, prefetch_count="1")
    consumed: list[str] = []
    while frames:
        (frame,) = frames
        consumed += bodies(frames)
        acknowledge(client, frame, transaction="t")
        frames = client.frames()
    assert consumed == texts
    assert core.stored_texts() == texts
    assert client.session.held - client.session.sent >= 10 * MESSAGE_OVERHEAD
    client.send("COMMIT", transaction="t", receipt="r")
    assert client.commands() == ["RECEIPT"]
    assert core.stored_texts() == []
    assert client.session.held == client.session.subscriptions.size
    assert client.session.sent == client.session.subscriptions.size


@pytest.mark.parametrize("end", ["COMMIT", "ABORT"])
def test_what_a_transaction_made_the_broker_hold_is_given_back(end: str) -> None:
    """What it sent and what it acknowledged, each once: else its client's share would drift."""
    core = CoreUnderTest()
    fill(core, *("x" * 1_000 for _ in range(5)))
    client = Client(core)
    frames = client.subscribe()
    before = client.session.sent
    for _ in range(3):
        client.send("BEGIN", transaction="t")
        acknowledge(client, frames.pop(0), transaction="t")
        client.send("SEND", "y" * 100, destination="/queue/out", transaction="t")
        assert before + 100 < client.session.sent < before + 2_000
        client.send(end, transaction="t")
        assert client.session.sent == before


def test_what_a_transaction_acknowledges_counts_for_it() -> None:
    """Not the prefetch bounds a transaction but its size, and the client is told."""
    core = CoreUnderTest()
    fill(core, *["x" * 10_000] * 10)
    client = Client(core, limits=ClientLimits(max_transaction_bytes=50_000))
    client.send("BEGIN", transaction="t")
    frames = client.subscribe(prefetch_count="1")
    while frames[0].command == "MESSAGE":
        acknowledge(client, frames[0], transaction="t")
        frames = client.frames()
    assert client.closed
    assert "max-transaction-bytes 50000" in frames[0].body.decode()
    assert len(core.stored_texts()) == 10
