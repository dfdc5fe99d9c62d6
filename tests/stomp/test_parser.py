"""The parser: the same frames whatever the pieces, and a clear refusal of everything else."""

from dataclasses import replace
from itertools import chain, pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orthia.broker.protocols.stomp.client_frame import BodyPiece, Frame, LargeFrame
from orthia.broker.protocols.stomp.frames import ProtocolError, Version, escape
from orthia.broker.protocols.stomp.parser import FrameParser
from orthia.config.settings import ClientLimits
from tests.stomp.support import is_trimmed

LIMITS = ClientLimits(max_header_bytes=200, max_headers=4, max_body_bytes=300)
STREAM = (
    b"\n\r\n\n"
    b"CONNECT\naccept-version:1.2\nhost:h\n\n\0\n"
    b"SEND\r\ndestination:/queue/a\r\n\r\nplain body\0"
    b"SEND\ndestination:/queue/b\ncontent-length:7\n\nwith\0\0\n\0\r\n\n"
    b"SEND\ncontent-length:0\n\n\0"
    b"SEND\n\n\0\n"
    b"ACK\nid:1\nid:2\n\n\0"
    b"SEND\nk\\cey:va\\nlue\n\n\n\nbody\n\n\0\n\n"
)
Seen = tuple[str, dict[bytes, bytes], bytes]
EXPECTED: list[Seen] = [
    ("CONNECT", {b"accept-version": b"1.2", b"host": b"h"}, b""),
    ("SEND", {b"destination": b"/queue/a"}, b"plain body"),
    ("SEND", {b"destination": b"/queue/b", b"content-length": b"7"}, b"with\0\0\n"),
    ("SEND", {b"content-length": b"0"}, b""),
    ("SEND", {}, b""),
    ("ACK", {b"id": b"1"}, b""),
    ("SEND", {b"k\\cey": b"va\\nlue"}, b"\n\nbody\n\n"),
]


def parse(
    *pieces: bytes, limits: ClientLimits = LIMITS, version: Version = Version.V1_2
) -> list[Seen]:
    """Return what the frames of ``pieces`` say."""
    parser = FrameParser(limits)
    parser.version = version
    frames: list[Frame] = []
    for piece in pieces:
        frames += parser.feed(piece)
    return [(frame.command, frame.raw, frame.body) for frame in frames]


@pytest.mark.parametrize("at", range(len(STREAM) + 1))
def test_every_split_in_two_gives_the_same_frames(at: int) -> None:
    """Wherever a stream is cut, the frames are the same."""
    assert parse(STREAM[:at], STREAM[at:]) == EXPECTED


@given(st.lists(st.integers(0, len(STREAM)), max_size=20))
@example(list(range(len(STREAM))))
def test_any_pieces_give_the_same_frames(cuts: list[int]) -> None:
    """Any number of cuts, empty pieces included."""
    places = [0, *sorted(cuts), len(STREAM)]
    pieces = [STREAM[a:b] for a, b in pairwise(places)]
    assert parse(*pieces) == EXPECTED


@pytest.mark.parametrize("version", list(Version))
def test_lines_may_end_in_carriage_returns_in_each_version(version: Version) -> None:
    """Only 1.2 allows them; old clients send them too, and mean line ends."""
    stream = b"SEND\r\nk:v\r\n\r\nbody\r\n\0\r\nACK\r\n\r\n\0"
    expected = [("SEND", {b"k": b"v"}, b"body\r\n"), ("ACK", {}, b"")]
    assert parse(stream, version=version) == expected
    assert parse(*(stream[i : i + 1] for i in range(len(stream))), version=version) == expected


@pytest.mark.parametrize("body", [b"\n", b"\r\n", b"\n\nx", b"\r\n\r\nx", b"\r", b""])
def test_line_ends_at_the_start_of_a_body_belong_to_it(body: bytes) -> None:
    """The head ends at its first empty line, whichever way that is written."""
    for head in (b"SEND\n\n", b"SEND\r\n\r\n", b"SEND\nk:v\r\n\n", b"SEND\r\nk:v\n\r\n"):
        assert [seen[2] for seen in parse(head + body + b"\0")] == [body]


def test_a_body_may_look_like_a_frame() -> None:
    """With a content-length nothing in the body is looked at, wherever it is cut."""
    body = b"\0\n\nSEND\ncontent-length:9\n\n\0\0"
    frame = b"SEND\ncontent-length:%d\n\n%b\0" % (len(body), body)
    stream = frame * 3
    for at in range(len(stream) + 1):
        assert [seen[2] for seen in parse(stream[:at], stream[at:])] == [body] * 3


def test_a_frame_is_whole_with_its_nul_and_not_before() -> None:
    """The frame comes with its last byte; nothing is held after it."""
    parser = FrameParser(LIMITS)
    assert list(parser.feed(b"SEND\n\nbody")) == []
    assert not parser.is_between_frames
    assert [frame.body for frame in parser.feed(b"\0\n")] == [b"body"]
    assert parser.is_between_frames


@pytest.mark.parametrize(
    ("stream", "complaint"),
    [
        (b"SEND\nno colon\n\n\0", "header line 'no colon' has no colon"),
        (b"SEND\n:value\n\n\0", "header line ':value' has no name"),
        (b"SEND\n" + b"x" * 79 + "\u00e9".encode() + b"\n\n\0", "xx\ufffd' has no colon"),
        (b"SEND\na:1\nb:2\nc:3\nd:4\ne:5\n\n\0", "5 headers, more than max-headers 4"),
        (b"SEND\nk:" + b"v" * 300 + b"\n\n\0", "longer than max-header-bytes 200"),
        (b"S" * 300, "longer than max-header-bytes 200"),
        (b"SEND\n\n" + b"b" * 301 + b"\0", "longer than max-body-bytes 300"),
        (b"SEND\n\n" + b"b" * 301, "longer than max-body-bytes 300"),
        (b"SEND\ncontent-length:301\n\n", "longer than max-body-bytes 300"),
        (b"SEND\ncontent-length:many\n\n\0", "content-length 'many' is not a number"),
        (b"SEND\ncontent-length:-1\n\n\0", "content-length '-1' is not a number"),
        (b"SEND\ncontent-length:99999999999999999999\n\n\0", "is not a number of bytes"),
        (b"SEND\ncontent-length:2\n\nbody\0", "content-length 2 is not followed by a NUL"),
        (b"SEND\nk:\xff\xfe\n\n\0", "not UTF-8"),
        (b"SEND\nk:a\\tb\n\n\0", r"undefined escape sequence '\\t' of STOMP 1.2"),
        (b"SEND\nk:a\\\n\n\0", "undefined escape sequence"),
    ],
)
def test_what_is_not_stomp_is_refused(stream: bytes, complaint: str) -> None:
    """The error says what was wrong, in one piece and byte by byte."""
    with pytest.raises(ProtocolError, match=complaint):
        parse(stream)
    with pytest.raises(ProtocolError, match=complaint):
        parse(*(stream[i : i + 1] for i in range(len(stream))))


@pytest.mark.parametrize("version", list(Version))
@pytest.mark.parametrize(
    ("stream", "complaint"),
    [
        (
            b"SEND\ndestination:a\nnote:x\0MESSAGE\n\n\0",
            "header 'note' has a NUL byte, which no header may have: byte 7 of line 3 of the frame",
        ),
        (b"SEND\r\na:b\r\nnote:\0\r\n\r\n\0", "header 'note' has a NUL byte.* byte 6 of line 3"),
        (b"SEND\nno\0te:x\n\n\0", "the line that begins with 'no' has a NUL byte"),
        (b"CONNECT\nhost:h\n\0", r"byte 1 of line 3 of the frame \(an empty line ends the headers"),
        (b"SE\0ND\n\n\0", "begins with 'SE' has a NUL byte"),
        (
            b"SEND\nnote:x\rack:1\n\n\0",
            "header 'note' has a carriage return that ends no line.* byte 7 of line 2",
        ),
        (b"SEND\nnote:x\r\r\n\r\n\0", "header 'note' has a carriage return that ends no line"),
        (b"SEND\nnote:x\r\r\n\n\0", "header 'note' has a carriage return that ends no line"),
        (b"SEND\nno\rte:x\n\n\0", "begins with 'no' has a carriage return that ends no line"),
        (b"SEND\nb:\rx\0\n\n\0", "header 'b' has a carriage return"),
        (b"SEND\nb:\0\rx\n\n\0", "header 'b' has a NUL"),
    ],
)
def test_bytes_that_end_a_receivers_line_are_refused(
    version: Version, stream: bytes, complaint: str
) -> None:
    """NUL and a bare carriage return, in each version, with the header and the place."""
    for pieces in ([stream], [stream[i : i + 1] for i in range(len(stream))]):
        parser = FrameParser(LIMITS)
        parser.version = version
        with pytest.raises(ProtocolError, match=complaint):
            list(chain.from_iterable(map(parser.feed, pieces)))


@pytest.mark.parametrize(
    ("limit", "stream"),
    [
        ("max_header_bytes", b"SEND\nk:" + b"v" * 191 + b"\n\n\0"),
        ("max_headers", b"SEND\na:1\nb:2\nc:3\nd:4\n\n\0"),
        ("max_body_bytes", b"SEND\n\n" + b"b" * 300 + b"\0"),
        ("max_body_bytes", b"SEND\ncontent-length:300\n\n" + b"b" * 300 + b"\0"),
    ],
)
def test_limits_include_their_number(limit: str, stream: bytes) -> None:
    """What is just within a limit is taken; one less of the limit refuses it."""
    assert len(parse(stream)) == 1
    assert len(parse(*(stream[i : i + 1] for i in range(len(stream))))) == 1
    smaller = replace(LIMITS, **{limit: getattr(LIMITS, limit) - 1})
    with pytest.raises(ProtocolError, match=limit.replace("_", "-")):
        parse(stream, limits=smaller)


@pytest.mark.parametrize(
    ("version", "value", "meaning"),
    [
        (Version.V1_0, b"a\\nb\\c", "a\\nb\\c"),
        (Version.V1_1, b"a\\nb\\cc\\\\d", "a\nb:c\\d"),
        (Version.V1_2, b"a\\nb\\cc\\\\d\\re", "a\nb:c\\d\re"),
    ],
)
def test_escapes_by_version(version: Version, value: bytes, meaning: str) -> None:
    """1.0 has none, 1.1 three, 1.2 four."""
    parser = FrameParser(LIMITS)
    parser.version = version
    (frame,) = parser.feed(b"SEND\nk:" + value + b"\n\n\0")
    assert frame.get(b"k") == meaning
    assert frame.get(b"absent") is None


def test_the_carriage_return_escape_is_unknown_to_1_1() -> None:
    """STOMP 1.1 does not define it, and undefined ones must be refused."""
    with pytest.raises(ProtocolError, match=r"STOMP 1\.1"):
        parse(b"SEND\nk:a\\rb\n\n\0", version=Version.V1_1)


def test_connect_is_never_escaped() -> None:
    """A passcode with a backslash is what it is."""
    assert parse(b"CONNECT\npasscode:a\\tb\n\n\0")[0][1] == {b"passcode": b"a\\tb"}


@given(
    st.sampled_from(list(Version)),
    st.dictionaries(
        st.text(st.characters(codec="utf-8"), min_size=1, max_size=20),
        st.text(st.characters(codec="utf-8"), max_size=50),
        max_size=6,
    ),
    st.binary(max_size=200),
)
def test_what_is_written_is_read_back(
    version: Version, headers: dict[str, str], body: bytes
) -> None:
    """Any header a version can express, and any body, survive the wire."""
    headers = {k.replace("\0", ""): v.replace("\0", "") for k, v in headers.items()}
    if version is not Version.V1_2:
        headers = {k.replace("\r", ""): v.replace("\r", "") for k, v in headers.items()}
    if version is Version.V1_0:
        headers = {
            k.replace("\n", "").replace(":", ""): v.replace("\n", "") for k, v in headers.items()
        }
    headers = {
        k: v
        for k, v in headers.items()
        if k not in ("", "content-length") and not any(is_trimmed(one) for one in (k[0], k[-1]))
    }
    lines = b"".join(
        escape(key.encode(), version) + b":" + escape(value.encode(), version) + b"\n"
        for key, value in headers.items()
    )
    stream = b"SEND\n" + lines + b"content-length:%d\n\n" % len(body) + body + b"\0"
    parser = FrameParser(ClientLimits())
    parser.version = version
    (frame,) = parser.feed(stream)
    assert frame.body == body
    for key, value in headers.items():
        assert frame.get(escape(key.encode(), version)) == value


@given(st.lists(st.binary(max_size=60), max_size=30))
def test_garbage_is_refused_or_awaited(pieces: list[bytes]) -> None:
    """Whatever comes, nothing but a ProtocolError comes out, and no more is held than allowed."""
    parser = FrameParser(LIMITS)
    try:
        for piece in pieces:
            for frame in parser.feed(piece):
                frame.user_headers(frozenset())
                for name in frame.raw:
                    frame.get(name)
            held = parser.held
            assert held <= LIMITS.max_header_bytes + LIMITS.max_body_bytes + 1 + 60
    except ProtocolError:
        pass


STOMPISH = st.lists(
    st.sampled_from(
        [b"SEND", b"CONNECT", b"\n", b"\r\n", b"\0", b":", b"content-length:3", b"a:b", b"\\", b"x"]
    ),
    max_size=60,
).map(b"".join)


@given(STOMPISH, st.integers(1, 7))
def test_what_looks_like_stomp_gives_one_answer(stream: bytes, size: int) -> None:
    """Whole or in pieces, a stream gives the same frames before it is refused or goes on."""

    def frames(pieces: list[bytes]) -> tuple[list[Seen], bool]:
        parser = FrameParser(LIMITS)
        seen: list[Seen] = []
        try:
            for piece in pieces:
                # Not a comprehension: what was seen before the refusal counts.
                for frame in parser.feed(piece):
                    seen.append((frame.command, frame.raw, frame.body))  # noqa: PERF401
        except ProtocolError:
            return seen, True
        return seen, False

    pieces = [stream[i : i + size] for i in range(0, len(stream), size)]
    assert frames(pieces) == frames([stream])


# --- bodies that come in pieces

LARGE_FROM = 20
LONG = b"0123456789" * 3
STREAMED = (
    b"SEND\ndestination:/queue/a\n\nsmall\0"
    b"SEND\ndestination:/queue/b\ncontent-length:30\n\n" + LONG + b"\0\n"
    b"SEND\ndestination:/queue/c\n\n" + LONG + b"more\0"
    b"SEND\ncontent-length:20\n\n" + b"\0" * 20 + b"\0"
    b"SEND\n\n" + b"n" * 19 + b"\0"
    b"ACK\nid:1\n\n" + LONG + b"\0\r\n"
)
STREAMED_EXPECTED = [
    ("SEND", False, b"small"),
    ("SEND", True, LONG),
    ("SEND", True, LONG + b"more"),
    ("SEND", True, b"\0" * 20),
    ("SEND", False, b"n" * 19),
    ("ACK", False, LONG),
]


def stream(*pieces: bytes, limit: int = 1_000) -> list[tuple[str, bool, bytes]]:
    """Return command, whether it was streamed, and body of each frame that is whole."""
    parser = FrameParser(LIMITS)
    parser.stream_from(LARGE_FROM, limit)
    seen: list[tuple[str, bool, bytes]] = []
    head = ""
    body = bytearray()
    for piece in pieces:
        for event in parser.events(piece):
            if isinstance(event, BodyPiece):
                body += event.data
                if event.is_last:
                    seen.append((head, True, bytes(body)))
            elif isinstance(event, LargeFrame):
                assert not event.body
                head, body = event.command, bytearray()
            else:
                seen.append((event.command, False, event.body))
        assert parser.held < LIMITS.max_header_bytes + LIMITS.max_body_bytes
    assert parser.is_between_frames
    return seen


@pytest.mark.parametrize("at", range(len(STREAMED) + 1))
def test_every_split_of_streamed_frames_gives_the_same(at: int) -> None:
    """Which bodies are streamed, and what is in them, does not depend on how they came."""
    assert stream(STREAMED[:at], STREAMED[at:]) == STREAMED_EXPECTED


@given(st.lists(st.integers(0, len(STREAMED)), max_size=20))
@example(list(range(len(STREAMED))))
def test_any_pieces_of_streamed_frames_give_the_same(cuts: list[int]) -> None:
    """The same with any number of cuts."""
    edges = [0, *sorted(cuts), len(STREAMED)]
    assert stream(*(STREAMED[a:b] for a, b in pairwise(edges))) == STREAMED_EXPECTED


def test_no_piece_of_a_streamed_body_is_held() -> None:
    """However much of a body came, the parser keeps none of it."""
    parser = FrameParser(LIMITS)
    parser.stream_from(LARGE_FROM, 10**9)
    list(parser.events(b"SEND\ncontent-length:100000000\n\n"))
    for _ in range(100):
        (piece,) = parser.events(b"x" * 1_000)
        assert isinstance(piece, BodyPiece)
        assert (len(piece.data), parser.held) == (1_000, 0)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"SEND\ncontent-length:1001\n\n", "longer than max-large-message-size 1000"),
        (b"SEND\n\n" + b"b" * 1_001, "longer than max-large-message-size 1000"),
        (b"SEND\ncontent-length:20\n\n" + b"b" * 21, "not followed by a NUL"),
        (b"ACK\ncontent-length:301\n\n", "longer than max-body-bytes 300"),
    ],
)
def test_a_streamed_body_has_its_limits(data: bytes, problem: str) -> None:
    """One that is too long, or longer than it said, is refused; other frames as ever."""
    for pieces in ([data], [bytes([one]) for one in data]):
        with pytest.raises(ProtocolError, match=problem):
            stream(*pieces)
