"""SUBSCRIBE with a selector."""

import itertools

import pytest

from tests.core.support import CoreUnderTest
from tests.stomp.support import QUEUE, Client, bodies


@pytest.mark.parametrize("header", ["selector", "activemq.selector"])
@pytest.mark.parametrize("destination", [QUEUE, "/topic/news"])
def test_a_subscription_gets_what_its_selector_matches(header: str, destination: str) -> None:
    """Of headers as other clients sent them, with numbers read as such."""
    core = CoreUnderTest()
    subscriber, sender = Client(core), Client(core)
    wanted = {header: "weight > 10 AND colour LIKE 'r%'"}
    subscriber.send("SUBSCRIBE", destination=destination, id="s", **wanted)
    for colour, weight in (("red", "9"), ("red", "11"), ("blue", "12"), ("rose", "1e2")):
        body = f"{colour}{weight}"
        sender.send("SEND", body, destination=destination, colour=colour, weight=weight)
    assert bodies(subscriber.frames()) == ["red11", "rose1e2"]


def test_a_selector_that_cannot_be_read_is_refused_with_its_column() -> None:
    """By an ERROR, before anything is created."""
    core = CoreUnderTest()
    subscriber = Client(core)
    subscriber.send("SUBSCRIBE", destination=QUEUE, id="s", selector="colour = 'red' AMD a = 1")
    error = subscriber.read()
    assert error.command == "ERROR"
    assert (
        f"the selector of user 'anonymous' for '{QUEUE}' is refused: at column 16: 'AMD' is not"
        " expected"
    ) in error.body.decode()
    assert not core.broker.queues()


def test_a_client_that_leaves_while_its_selector_is_read_has_no_subscription() -> None:
    """Nothing would ever end it: an exclusive queue would wait for nobody."""
    core = CoreUnderTest(clock=itertools.count().__next__)
    subscriber = Client(core)
    core.settle()
    long = " AND ".join(f"unread{number} = {number}" for number in range(100))
    frame = f"SUBSCRIBE\ndestination:{QUEUE}\nid:s\nselector:{long}\n\n\0"
    subscriber.session.receive(frame.encode())
    assert subscriber.session.is_waiting, "the selector is not read yet"
    subscriber.session.connection_lost()
    core.settle()
    assert not core.broker.queues()
