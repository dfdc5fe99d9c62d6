"""What counts as a delivery in vain, and that nothing is lost by being delivered too often."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from orthia.journal.memory import MemoryJournal
from tests.core.support import SETTINGS, CoreUnderTest, settings
from tests.stomp.support import Client, acknowledge, bodies, fill

ATTEMPTS = 3


def core_of(*texts: str) -> CoreUnderTest:
    """Return a core that gives a message ATTEMPTS attempts, with these in its queue."""
    core = CoreUnderTest(settings("orders", max_delivery_attempts=ATTEMPTS))
    fill(core, *texts)
    return core


def dead_letters(core: CoreUnderTest) -> list[str]:
    """Return what is in the default dead-letter queue."""
    core.settle()
    consumer = core.consume("/queue/DLQ")
    consumer.end.close()
    return consumer.texts


def waiting(core: CoreUnderTest) -> list[str]:
    """Return what is in the queue."""
    consumer = core.consume("/queue/orders")
    consumer.end.close()
    return consumer.texts


@pytest.mark.parametrize("ack", ["client", "client-individual"])
def test_connections_that_are_lost_lose_no_message(ack: str) -> None:
    """Ten that subscribe and are reset: one message is a dead letter, the others wait uncounted."""
    core = CoreUnderTest(SETTINGS)
    texts = [f"m{number}" for number in range(100)]
    fill(core, *texts)
    for _ in range(10):
        client = Client(core)
        assert bodies(client.subscribe(ack)) == texts
        client.session.connection_lost()
    assert dead_letters(core) == ["m0"]
    assert waiting(core) == texts[1:]
    references = core.consume("/queue/orders").received
    assert {one.attempts for one in references} == {0}


def test_a_replays_marker_is_never_a_dead_letter() -> None:
    """Without it the next replay of its name would send everything once more."""
    core = CoreUnderTest(settings("#", max_delivery_attempts=ATTEMPTS))
    core.send("/queue/orthia.replay.nightly", "marker")
    for _ in range(12):
        client = Client(core)
        client.send("SUBSCRIBE", destination="/queue/orthia.replay.nightly", id="s", ack="client")
        core.settle()
        assert bodies(client.frames()) == ["marker"]
        client.session.connection_lost()
    assert dead_letters(core) == []


@pytest.mark.parametrize("ack", ["client", "client-individual"])
def test_what_ends_its_consumer_each_time_becomes_a_dead_letter(ack: str) -> None:
    """Wherever it stands in the prefetch; what is beside it is consumed."""
    core = core_of("a", "b", "poison", "c", "d")
    consumed: list[str] = []
    for _ in range(ATTEMPTS + 1):
        client = Client(core)
        for frame in client.subscribe(ack):
            text = frame.body.decode()
            if text == "poison":
                client.session.connection_lost()
                break
            acknowledge(client, frame)
            consumed.append(text)
    assert dead_letters(core) == ["poison"]
    assert consumed == ["a", "b", "c", "d"]


def _lost(client: Client, taken: int | None = None) -> None:
    """Lose a connection whose socket has taken so many bytes of what it was delivered."""
    if taken is not None:
        client.left = client.total + taken
    client.subscribe()
    client.session.connection_lost()


def _left(client: Client, command: str) -> None:
    client.subscribe()
    client.send(command, id="s")


def _lost_in_transaction(client: Client, command: str) -> None:
    client.send("BEGIN", transaction="t")
    for frame in client.subscribe():
        acknowledge(client, frame, command, transaction="t")
    client.session.connection_lost()


@pytest.mark.parametrize(
    ("ends", "dead"),
    [
        pytest.param(lambda one: _lost(one, 0), [], id="not a byte of it has left"),
        pytest.param(lambda one: _lost(one, 100), ["a"], id="a part of it has left"),
        # In good order, as in Artemis: however often it comes and goes.
        pytest.param(lambda one: _left(one, "UNSUBSCRIBE"), [], id="unsubscribes"),
        pytest.param(lambda one: _left(one, "DISCONNECT"), [], id="disconnects"),
        # Acknowledged before its work: the newest of the transaction.
        pytest.param(lambda one: _lost_in_transaction(one, "ACK"), ["b"], id="amid a transaction"),
        pytest.param(lambda one: _lost_in_transaction(one, "NACK"), ["b"], id="amid rejections"),
    ],
)
def test_how_a_client_ends_says_what_was_delivered_in_vain(
    ends: Callable[[Client], None], dead: list[str]
) -> None:
    """What its client may have seen, and did not come to do anything with."""
    core = core_of("a", "b")
    for _ in range(ATTEMPTS):
        ends(Client(core))
    assert dead_letters(core) == dead
    assert waiting(core) == [text for text in "ab" if text not in dead]


def test_a_nack_counts_for_all_that_it_means() -> None:
    """Cumulative in client mode, as an ACK is; what comes after it is not counted."""
    core = core_of("a", "b", "c")
    client = Client(core)
    frames = client.subscribe("client")
    for _ in range(ATTEMPTS):
        (named,) = [frame for frame in frames if frame.body == b"b"][-1:]
        acknowledge(client, named, "NACK")
        frames = client.frames()
    assert dead_letters(core) == ["a", "b"]


@pytest.mark.parametrize("command", ["ACK", "NACK"])
def test_a_commit_that_is_refused_counts_for_what_it_acknowledged(command: str) -> None:
    """It would be refused again and again, with the same messages."""
    before = core_of("a", "b")
    before.broker.stop()
    journal = MemoryJournal(before.journal.store, max_record_bytes=1_000)
    core = CoreUnderTest(settings("orders", max_delivery_attempts=ATTEMPTS), journal=journal)
    for _ in range(ATTEMPTS):
        client = Client(core)
        first, *_ = client.subscribe()
        client.send("BEGIN", transaction="t")
        acknowledge(client, first, command, transaction="t")
        client.send("SEND", "x" * 2_000, destination="/queue/results", transaction="t")
        client.send("COMMIT", transaction="t")
        assert "1000" in client.error()
    assert dead_letters(core) == ["a"]
    assert waiting(core) == ["b"]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["client", "client-individual"]),
        st.sampled_from(["/queue/orders", "/queue/DLQ"]),
        st.lists(
            st.tuples(st.sampled_from(["ACK", "NACK"]), st.integers(0, 5), st.booleans()),
            max_size=4,
        ),
        st.sampled_from(["COMMIT", "ABORT", ""]),
        st.sampled_from(["lost", "UNSUBSCRIBE", "DISCONNECT", "NONSENSE"]),
    ),
    max_size=12,
)


@given(STEPS)
@hypothesis_settings(max_examples=200, deadline=None)
def test_whatever_consumers_do_only_what_was_acknowledged_is_gone(
    steps: list[tuple[str, str, list[tuple[str, int, bool]], str, str]],
) -> None:
    """Every other message is stored, once: in its queue or among the dead letters."""
    core = CoreUnderTest(settings("#", max_delivery_attempts=2))
    left = {f"m{number}" for number in range(6)}
    fill(core, *sorted(left))
    for ack, queue, answers, end_of_transaction, end in steps:
        client = Client(core)
        client.send("BEGIN", transaction="t")
        client.send("SUBSCRIBE", destination=queue, id="s", ack=ack)
        held = client.frames()
        in_transaction: set[str] = set()
        for command, at, is_transacted in answers:
            if not held:
                break
            at %= len(held)
            named = held[at]
            taken = held[: at + 1] if ack == "client" else [named]
            held = [one for one in held if one not in taken]
            gone = set(bodies(taken)) if command == "ACK" else set()
            acknowledge(client, named, command, **({"transaction": "t"} if is_transacted else {}))
            held += client.frames()
            if is_transacted:
                in_transaction |= gone
            else:
                left -= gone
        if end_of_transaction:
            client.send(end_of_transaction, transaction="t")
            left -= in_transaction if end_of_transaction == "COMMIT" else set()
            client.frames()
        if end == "lost":
            client.session.connection_lost()
        else:
            client.send(end, id="s")
            client.session.connection_lost()
        core.pass_time(60)
        assert sorted(core.stored_texts()) == sorted(left)
    depths = core.broker.depths()
    assert sum(depths.values()) == len(left)
