"""What a client and the broker do at the same time: nothing is lost, doubled, or left waiting."""

import itertools

from orthia.broker.protocols.amqp.frames import encode_frame
from orthia.broker.protocols.amqp.performatives import (
    RECEIVER,
    Attach,
    Flow,
    Source,
    Target,
    encode_performative,
)
from orthia.broker.protocols.amqp.values import Symbol
from tests.amqp.support import WINDOW, Client
from tests.core.support import CoreUnderTest

SOLE = Symbol("sole-connection-for-container")


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
