"""Whatever bytes a client sends: an answer or an ERROR and the end, and little held meanwhile."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orthia.broker.protocols.stomp.client_frame import Frame
from orthia.broker.protocols.stomp.connection import StompConnection
from orthia.broker.protocols.stomp.frames import ProtocolError, Version
from orthia.broker.protocols.stomp.options import StompOptions
from orthia.broker.protocols.stomp.parser import FrameParser
from orthia.config.secrets import Secret
from orthia.config.security_settings import User
from orthia.config.settings import ClientLimits
from tests.core.support import SETTINGS, CoreUnderTest
from tests.hostile.fuzzing import damaged, fuzzed
from tests.stomp.support import SocketDouble

pytestmark = pytest.mark.extended

LIMITS = ClientLimits(
    max_header_bytes=400,
    max_headers=8,
    max_body_bytes=600,
    max_transaction_bytes=4_000,
    max_transactions=3,
    max_subscriptions=4,
)
SECURED = replace(
    SETTINGS,
    security_enabled=True,
    users=(User("ada", Secret("l0vel@ce"), frozenset({"staff"})),),
)
KEYS = st.sampled_from(
    "destination id ack receipt transaction content-length message-id subscription login passcode"
    " accept-version heart-beat host persistent expires priority prefetch-count selector x"
    " activemq.prefetchSize consumer-window-size destination-type subscription-type request-id"
    " activemq.x _AMQ_DUPL_ID no-local".split()
)
VALUES = st.one_of(
    st.sampled_from(
        "/queue/a|/queue/b|/topic/t|a|/queue/|/queue/\u00e9|s|1|2|0-0|1-1|2-1|1-999999999999999999"
        "|t|u|auto|client|client-individual|none|1.0|1.1|1.2|1.0,1.1,1.2|9.9|0,0|500,500|-1|0|5|"
        "99999999999999999999|false|true|4|ANYCAST|MULTICAST|ada|l0vel@ce|\\c|\\n|\\r|\\t|\\|\u0661|".split(
            "|"
        )
    ),
    st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=30),
)
COMMANDS = st.sampled_from(
    "CONNECT STOMP SEND SUBSCRIBE UNSUBSCRIBE ACK NACK BEGIN COMMIT ABORT DISCONNECT MESSAGE"
    " RECEIPT ERROR CONNECTED connect NONSENSE".split()
)
BODIES = st.one_of(st.just(b""), st.just(b"body"), st.binary(max_size=80))


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """Draw a frame of the grammar; its headers need not fit its command."""
    end = draw(st.sampled_from([b"\n", b"\n", b"\r\n"]))
    pairs = draw(st.lists(st.tuples(KEYS, VALUES), max_size=6))
    if draw(st.booleans()):
        pairs = [("destination", "/queue/a"), ("id", "1"), ("transaction", "t"), *pairs]
    lines = [draw(COMMANDS).encode(), *(f"{key}:{value}".encode() for key, value in pairs)]
    return end.join(lines) + end + end + draw(BODIES) + b"\0"


VALID = (
    b"SUBSCRIBE\nid:1\ndestination:/queue/a\nack:client\nreceipt:r\n\n\0"
    b"SEND\ndestination:/queue/a\ncontent-length:4\nreceipt:r\n\nb\0dy\0\n"
    b"BEGIN\ntransaction:t\n\n\0SEND\ndestination:/queue/a\ntransaction:t\n\nbody\0"
    b"ACK\nid:1-1\ntransaction:t\n\n\0COMMIT\ntransaction:t\nreceipt:c\n\n\0"
    b"SUBSCRIBE\nid:2\ndestination:/topic/t\n\n\0SEND\ndestination:/topic/t\n\nnews\0"
    b"UNSUBSCRIBE\nid:1\n\n\0DISCONNECT\nreceipt:d\n\n\0"
)
TOKENS = (b"\0", b"\n", b"\r\n", b"\n\n", b":", b"\\", b"content-length:9\n", b"CONNECT", b"SEND\n")
STREAMS = st.one_of(
    st.lists(frames(), max_size=12).map(b"".join),
    damaged(VALID, TOKENS),
    st.lists(st.one_of(frames(), damaged(VALID, TOKENS)), max_size=4).map(b"".join),
    st.binary(max_size=300),
)


def pieces(stream: bytes, size: int) -> list[bytes]:
    """Return ``stream`` in pieces of ``size`` bytes."""
    return [stream[at : at + size] for at in range(0, len(stream), size)]


@fuzzed(400)
@given(STREAMS, st.sampled_from([1, 3, 17, 10_000]), st.sampled_from(Version))
def test_a_parser_gives_the_same_frames_in_any_pieces(
    stream: bytes, size: int, version: Version
) -> None:
    """Frames, then a refusal or more to come: never another error, never more held than allowed."""

    def parse(parts: list[bytes]) -> tuple[list[tuple[str, dict[bytes, bytes], bytes]], bool]:
        parser = FrameParser(LIMITS)
        parser.version = version
        seen: list[Frame] = []
        try:
            for part in parts:
                seen.extend(parser.feed(part))
                assert parser.held <= LIMITS.max_header_bytes + LIMITS.max_body_bytes + 1 + size
        except ProtocolError:
            return [(one.command, one.raw, one.body) for one in seen], True
        return [(one.command, one.raw, one.body) for one in seen], False

    in_pieces, refused = parse(pieces(stream, size))
    whole, refused_whole = parse([stream])
    assert refused == refused_whole
    assert refused or in_pieces == whole


class Hostile:
    """A session whose client is the fuzzer."""

    def __init__(self, core: CoreUnderTest) -> None:
        self.core = core
        self.now = 0.0
        self.written = b""
        self.closes = 0
        self.session = StompConnection(
            core.broker,
            StompOptions(LIMITS),
            SocketDouble(core.broker, self._write, self._close),
            lambda: self.now,
        )

    def _write(self, data: bytes) -> int:
        assert not self.closes, "written after it was closed"
        self.written += data
        return len(self.written)

    def _close(self) -> None:
        self.closes += 1

    def feed(self, stream: bytes, size: int) -> None:
        """Send ``stream``, let the journal answer and time pass."""
        for part in pieces(stream, size):
            self.session.receive(part)
            self.core.settle()
            self.now += 0.01
            self.session.tick(self.now)

    def answers(self) -> list[Frame]:
        """Return what the broker wrote, which must always be whole frames."""
        parser = FrameParser(ClientLimits())
        parser.version = Version.V1_0
        found = list(parser.feed(self.written))
        assert parser.is_between_frames
        return found


@fuzzed(400)
@given(
    STREAMS,
    st.sampled_from([1, 50, 10_000]),
    st.sampled_from([None, b"1.0", b"1.1", b"1.2"]),
)
def test_a_session_answers_in_whole_frames_or_ends(
    stream: bytes, size: int, version: bytes | None
) -> None:
    """One ERROR at most, the last thing written; and everything it held is free afterwards."""
    core = CoreUnderTest()
    client = Hostile(core)
    if version is not None:
        client.feed(b"CONNECT\naccept-version:" + version + b"\n\n\0", 10_000)
    client.feed(stream, size)
    commands = [frame.command for frame in client.answers()]
    assert set(commands) <= {"CONNECTED", "RECEIPT", "MESSAGE", "ERROR"}
    assert "ERROR" not in commands[:-1]
    assert client.closes == client.session.is_closed
    client.session.connection_lost()
    core.settle()
    assert all(queue.consumers == 0 for queue in core.broker.queues().values())
    served = core.consume("/queue/other")
    core.send("/queue/other", "still here")
    assert served.texts == ["still here"]


@fuzzed(200)
@given(STREAMS, st.sampled_from([1, 10_000]))
def test_who_did_not_log_in_changes_nothing(stream: bytes, size: int) -> None:
    """Whatever it sends, the store is as it was."""
    core = CoreUnderTest(SECURED)
    client = Hostile(core)
    client.feed(stream, size)
    commands = {frame.command for frame in client.answers()}
    if "CONNECTED" not in commands:
        assert commands <= {"ERROR"}
        assert not core.broker.queues()
        assert not core.journal.store.messages
        assert not core.journal.store.bindings


@pytest.mark.parametrize(
    "command",
    "SEND SUBSCRIBE UNSUBSCRIBE ACK NACK BEGIN COMMIT ABORT DISCONNECT MESSAGE NONSENSE".split(),
)
def test_the_first_frame_must_be_connect(command: str) -> None:
    """Every other command before it is an ERROR and the end, whatever its headers."""
    core = CoreUnderTest(SECURED)
    client = Hostile(core)
    client.feed(
        f"{command}\ndestination:/queue/a\nid:1\ntransaction:t\nreceipt:r\n\n\0".encode(), 10_000
    )
    (answer,) = client.answers()
    assert answer.command == "ERROR"
    assert b"expected CONNECT or STOMP" in answer.body
    assert client.session.is_closed
    assert not core.broker.queues()
