"""What a client is refused: the ERROR says what was wrong, and nothing of the frame is done."""

import pytest

from orthia.config.settings import ClientLimits
from tests.core.support import CoreUnderTest
from tests.stomp.support import QUEUE, Client

Frame = tuple[str, dict[str, str]]
BOTH = "/queue/a,/topic/b"
DURABLE = {"durable-subscription-name": "paper"}
NUMBERS = ("prefetch-count", "consumer-window-size", "activemq.prefetchSize")
NO_NUMBERS = ("-2", "1.5", "x", "9" * 5_000, "\u0661")


def send(**headers: str) -> Frame:
    """Return a SEND to the queue, unless ``headers`` say another destination."""
    return "SEND", {"destination": QUEUE, **headers}


def subscribe(destination: str = QUEUE, /, **headers: str) -> Frame:
    """Return a SUBSCRIBE."""
    return "SUBSCRIBE", {"destination": destination, "id": "s", "ack": "client", **headers}


def begin(name: str) -> Frame:
    """Return a BEGIN."""
    return "BEGIN", {"transaction": name}


REFUSED: list[tuple[list[Frame], str]] = [
    ([("SUBSCRIB", {"id": "1"})], "unknown command 'SUBSCRIB'; expected one of SEND, SUBSCRIBE"),
    ([("SEND", {})], "SEND has no destination header"),
    # Also with what would be an unknown escape sequence elsewhere.
    *(([(one, {"passcode": "a\\tb"})], "connected already") for one in ("CONNECT", "STOMP")),
    ([subscribe(id=one) for one in "abc"], "max-subscriptions 2"),
    ([subscribe(), subscribe()], "has a subscription 's' already"),
    # Transactions.
    ([("BEGIN", {})], "BEGIN has no transaction header"),
    ([begin("t"), begin("t")], "transaction 't' has begun already"),
    *(
        ([(one, {"transaction": "t"})], "transaction 't' has not begun")
        for one in ("COMMIT", "ABORT")
    ),
    ([send(transaction="t")], "transaction 't' has not begun"),
    ([begin(one) for one in "abc"], "max-transactions 2 open already"),
    # Values of headers.
    *(
        ([send(persistent=one)], f"header persistent is '{one}'; expected true or false")
        for one in ("maybe", "0")
    ),
    *(
        ([send(**{name: value})], f"header {name} is '{value}'; expected a whole number, -1 to")
        for name, value in (("JMSXGroupSeq", "first"), ("_AMQ_GROUP_SEQUENCE", "--1"))
    ),
    *(([send(expires=one)], f"header expires is {one!r}"[:60]) for one in NO_NUMBERS),
    *(
        ([subscribe(**{name: one})], f"header {name} is {one!r}"[:60])
        for name in NUMBERS
        for one in NO_NUMBERS
    ),
    *(
        ([subscribe(ack=ack, **{name: "many"})], f"header {name} is 'many'; expected ")
        for ack in ("auto", "client-individual")
        for name in ("consumer-window-size", "prefetch-count", "no-local")
    ),
    *(
        (
            [subscribe(**{name: "1"})],
            f"the header '{name}', which is not known here; of this family",
        )
        for name in ("activemq.exclusve", "activemq.optimizedAcknowledge")
    ),
    # Destinations and what is asked of them.
    *(
        ([frame], "'/queue/orders' is ANYCAST, and the header beside it says")
        for frame in (
            send(**{"destination-type": "MULTICAST"}),
            subscribe(**{"subscription-type": "MULTICAST"}),
        )
    ),
    (
        [send(destination="orders", **{"destination-type": "anycast"})],
        "routing type 'anycast' is unknown; expected ANYCAST or MULTICAST",
    ),
    ([subscribe("/queue/orders.#")], "only topics are heard by wildcards"),
    ([subscribe(**{"no-local": "true"})], "no-local is of topics, and 'orders' is not one"),
    ([subscribe("/topic/news", **DURABLE)], "and this client connected without one"),
    (
        [subscribe("/topic/news", **DURABLE, **{"durable-subscriber-name": "b"})],
        "name two durable subscriptions",
    ),
    ([subscribe(BOTH, **DURABLE)], "has one destination; subscribe to each"),
    ([subscribe(BOTH, browser="true")], "has one destination; subscribe to each"),
    ([subscribe("/queue/a,/topic/b.#")], "one of several destinations has wildcards"),
    *(
        ([subscribe(browser="true", **extra)], "browser")
        for extra in (DURABLE, {"no-local": "true"}, {"activemq.noLocal": "true"})
    ),
    ([subscribe(f"/temp-queue/{'x' * 201}")], "has a name of 1 to 200 characters"),
]


@pytest.mark.parametrize(
    ("frames", "complaint"), [pytest.param(*one, id=one[1][:60]) for one in REFUSED]
)
def test_a_frame_that_cannot_be_done_is_refused(frames: list[Frame], complaint: str) -> None:
    """By name, with what was expected; the ERROR names the receipt that was asked for."""
    core = CoreUnderTest()
    client = Client(core, limits=ClientLimits(max_transactions=2, max_subscriptions=2))
    for number, (command, headers) in enumerate(frames, 1):
        assert client.frames() == []
        receipt = {"receipt": "mine"} if number == len(frames) else {}
        client.say(command, headers | receipt, "x")
    frame = client.read()
    assert (frame.command, frame.get(b"receipt-id")) == ("ERROR", "mine")
    assert complaint in frame.body.decode()
    assert client.closed
    assert core.stored_texts() == []


def test_the_first_frame_must_connect() -> None:
    """Anything else ends the connection."""
    client = Client(CoreUnderTest(), None)
    client.send("SEND", destination=QUEUE)
    assert "expected CONNECT or STOMP" in client.error()


def test_what_temporary_topics_hear_is_not_kept() -> None:
    """What is durable would be there when its address is gone."""
    core = CoreUnderTest()
    client = Client(core, client_id="own")
    client.send("SUBSCRIBE", destination="/temp-topic/news", id="s", **DURABLE)
    assert "ends with its connection" in client.error()
    assert list(core.broker.queues()) == []
