"""SUBSCRIBE with browser:true: a queue's messages are shown, and stay."""

import pytest

from orthia.broker.core.queue import showing
from orthia.broker.protocols.stomp.client_frame import Frame
from tests.core.support import ANYONE, SETTINGS, CoreUnderTest, FakeConsumer, settings
from tests.stomp.support import PASSCODE, QUEUE, Client, acknowledge, bodies, secured

PAGED = settings(max_size_messages=3)
BOTH = pytest.mark.parametrize("options", [SETTINGS, PAGED], ids=["in-memory", "paged"])


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every queue be of many windows."""
    monkeypatch.setattr(showing, "_WINDOW_MESSAGES", 4)


def browse(browser: Client, destination: str = QUEUE, **headers: str) -> list[Frame]:
    """Browse and return what comes at once."""
    given = {"ack": "auto", "id": "s", "browser": "true", **headers}
    browser.send("SUBSCRIBE", destination=destination, **given)
    return browser.frames()


def assert_all(shown: list[Frame], *texts: str) -> None:
    """Look at the bodies and at the end, which comes once."""
    assert bodies(shown) == [*texts, ""]
    assert [frame.get(b"browser") for frame in shown] == [None] * len(texts) + ["end"]
    assert all(frame.command == "MESSAGE" for frame in shown)
    assert shown[-1].get(b"subscription") == "s"


@BOTH
@pytest.mark.parametrize("header", ["browser", "activemq.browser"])
@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2"])
def test_all_messages_are_shown_in_order_and_stay(options, header: str, version: str) -> None:  # type: ignore[no-untyped-def]
    """Stored or in memory only; twice over; and then a consumer gets them as never delivered."""
    core = CoreUnderTest(options)
    for number in range(11):
        core.send(QUEUE, str(number), persistent=number % 3 > 0)
    texts = [str(number) for number in range(11)]
    browser = Client(core, version)
    for _ in range(2):
        browser.send("SUBSCRIBE", destination=QUEUE, id="s", **{header: "true"})
        assert_all(browser.frames(), *texts)
        browser.send("UNSUBSCRIBE", id="s")
        assert not browser.frames()
    assert core.broker.depths()["orders"] == 11
    consumer = core.consume(QUEUE)
    assert consumer.texts == texts
    assert not any(one.redelivered for one in consumer.received)


@BOTH
def test_acknowledgements_of_a_browser_delete_nothing(options) -> None:  # type: ignore[no-untyped-def]
    """They let it see more; the end may be acknowledged, too, and NACK is no attempt."""
    core = CoreUnderTest(options)
    core.send(QUEUE, *(str(number) for number in range(9)))
    browser = Client(core)
    credit = {"ack": "client-individual", "prefetch-count": "2"}
    frames = browse(browser, **credit)
    for index in range(9):
        assert bodies(frames)[index] == str(index)
        if index % 2:
            browser.send("NACK", id=str(frames[index].get(b"ack")))
        else:
            acknowledge(browser, frames[index])
        frames += browser.frames()
    assert_all(frames, *(str(number) for number in range(9)))
    acknowledge(browser, frames[-1])
    browser.session.connection_lost()
    assert core.broker.depths()["orders"] == 9
    assert len(core.stored_texts()) == 9
    core.broker.queues()["orders"].shed(1_000_000)
    assert (
        core.broker.parts.factory.services.budget.used
        == core.broker.queues()["orders"].log.bytes_in_memory
    )


def test_a_transaction_of_a_browser_deletes_nothing() -> None:
    """Committed or aborted."""
    core = CoreUnderTest()
    core.send(QUEUE, "1", "2")
    browser = Client(core)
    first, second, _ = browse(browser, ack="client-individual")
    browser.send("BEGIN", transaction="t")
    for frame in (first, second):
        browser.send("ACK", id=str(frame.get(b"ack")), transaction="t")
    browser.send("COMMIT", transaction="t", receipt="r")
    assert browser.read().command == "RECEIPT"
    assert core.stored_texts() == ["1", "2"]


@BOTH
def test_what_a_consumer_has_is_shown_too(options) -> None:  # type: ignore[no-untyped-def]
    """It is in the queue until it is acknowledged; what comes later is not shown."""
    core = CoreUnderTest(options)
    core.send(QUEUE, "1", "2", "3", "4", "5")
    core.consume(QUEUE, prefetch=2).acknowledge("1")
    core.settle()
    browser = Client(core)
    assert_all(browse(browser), "2", "3", "4", "5")
    core.send(QUEUE, "6")
    assert not browser.frames()


def test_a_browser_shows_what_its_selector_matches() -> None:
    """And the end, if that is nothing."""
    core = CoreUnderTest(PAGED)
    for number in range(12):
        core.send(QUEUE, str(number), headers=f"rest:{number % 5}\n".encode())
    assert_all(browse(Client(core), selector="rest = 1"), "1", "6", "11")
    assert_all(browse(Client(core), selector="rest = 7"))


def test_expired_messages_are_not_shown() -> None:
    """They are no more the queue's, even if nobody looked at them yet."""
    core = CoreUnderTest(time_ms=lambda: 1_000)
    core.send(QUEUE, "old", expires_ms=900)
    core.send(QUEUE, "new")
    assert_all(browse(Client(core)), "new")


def test_an_earlier_nodes_messages_are_shown() -> None:
    """Without a consumer to have them read."""
    core = CoreUnderTest(PAGED)
    core.send(QUEUE, *(str(number) for number in range(10)))
    assert_all(browse(Client(core.takeover(PAGED))), *(str(number) for number in range(10)))


@pytest.mark.parametrize("destination", ["/queue/missing", "/topic/news"])
def test_only_a_queue_that_is_there_is_browsed(destination: str) -> None:
    """Nothing is created to be looked at."""
    core = CoreUnderTest()
    (error,) = browse(Client(core), destination)
    assert error.command == "ERROR"
    assert "to browse" in error.body.decode()
    assert not core.broker.queues()


def test_browsing_needs_its_own_permission() -> None:
    """And not that to consume."""
    granted = {"lookers": "browse send createAddress createDurableQueue", "eaters": "consume"}
    core = CoreUnderTest(secured({"ann": "lookers", "bob": "eaters"}, {"#": granted}))
    ann = Client(core, login="ann", passcode=PASSCODE)
    ann.send("SEND", "1", destination=QUEUE)
    assert_all(browse(ann), "1")
    bob = Client(core, login="bob", passcode=PASSCODE)
    (error,) = browse(bob)
    assert error.command == "ERROR"
    assert "browse" in error.body.decode()


class _Browser(FakeConsumer):
    def browsed(self) -> None:
        """Note nothing."""


def test_what_a_browser_does_not_take_counts_for_its_client() -> None:
    """What was read for it is in memory, though its client has one message only."""
    core = CoreUnderTest(PAGED)
    core.send(QUEUE, *("x" * 1_000 for _ in range(4)))
    browser = _Browser()
    browsing_one = core.broker.browse(ANYONE, QUEUE, browser, prefetch=1)
    browsing_one.resume()
    core.settle()
    assert len(browser.received) == 1
    assert browser.held > 4_000
    browsing_one.close()
    assert browser.held == 0
