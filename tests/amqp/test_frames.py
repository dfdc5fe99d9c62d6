"""Frames and protocol headers, in whatever pieces they come."""

from collections.abc import Iterator

import pytest

from orthia.broker.protocols.amqp.frames import (
    EMPTY_FRAME,
    SASL_FRAME,
    SASL_ID,
    Frame,
    FrameReader,
    ProtocolHeader,
    accepted_frame,
    continued_frame,
    delivery_frame,
    encode_frame,
    settled_frame,
    transfer_frame,
)
from orthia.broker.protocols.amqp.performatives import (
    ACCEPTED,
    RECEIVER,
    RELEASED,
    SENDER,
    Disposition,
    Modified,
    Outcome,
    Rejected,
    Transfer,
    decode_performative,
    encode_performative,
)
from orthia.broker.protocols.amqp.values import AmqpFramingError

MAX = 1_024
HEADER = b"AMQP\0\1\0\0"


def read(reader: FrameReader, data: bytes) -> Iterator[ProtocolHeader | Frame]:
    """Yield what is in ``data`` and what was held before."""
    reader.receive(data)
    while (frame := reader.next_frame()) is not None:
        yield frame


def connected() -> FrameReader:
    """Return a reader that has read the protocol header."""
    reader = FrameReader(MAX)
    assert list(read(reader, HEADER)) == [ProtocolHeader(0)]
    return reader


@pytest.mark.parametrize("size", [1, 2, 7, 8, 9, 100])
def test_frames_are_the_same_in_whatever_pieces_they_come(size: int) -> None:
    """Frames come whole, whether a piece has half of one or several."""
    data = HEADER + encode_frame(b"body", 3) + EMPTY_FRAME + encode_frame(b"x" * 50, 0xFFFF, 1)
    reader = FrameReader(MAX)
    found = [
        frame for at in range(0, len(data), size) for frame in read(reader, data[at : at + size])
    ]
    assert found == [
        ProtocolHeader(0, 1, 0, 0),
        Frame(0, 3, b"body"),
        Frame(0, 0, b""),
        Frame(1, 0xFFFF, b"x" * 50),
    ]
    assert reader.held == 0


def test_a_header_is_expected_again_after_a_login() -> None:
    """SASL has a header, frames of its own, and then AMQP begins."""
    reader = FrameReader(MAX)
    data = ProtocolHeader(SASL_ID).encode() + encode_frame(b"init", kind=SASL_FRAME) + HEADER
    reader.receive(data + EMPTY_FRAME)
    assert reader.next_frame() == ProtocolHeader(3, 1, 0, 0)
    assert reader.next_frame() == Frame(SASL_FRAME, 0, b"init")
    reader.expect_header()
    assert reader.next_frame() == ProtocolHeader(0, 1, 0, 0)
    assert reader.next_frame() == Frame(0, 0, b"")
    assert reader.next_frame() is None


def test_another_version_is_read_so_that_it_can_be_answered() -> None:
    """A peer that speaks AMQP 0.9.1 is told which one is spoken here."""
    assert list(read(FrameReader(MAX), b"AMQP\0\0\x09\1")) == [ProtocolHeader(0, 0, 9, 1)]


def test_what_is_no_header_is_refused() -> None:
    """A frame in the place of a header is refused, in the place of a frame a header."""
    with pytest.raises(AmqpFramingError, match="the protocol header, which begins with AMQP"):
        list(read(FrameReader(MAX), EMPTY_FRAME))
    with pytest.raises(AmqpFramingError, match="at most 1024 bytes, found 1095586128"):
        list(read(connected(), HEADER))


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (b"\0\0\4\1\2\0\0\0", "a frame of at most 1024 bytes, found 1025"),
        (b"\xff\xff\xff\xff\2\0\0\0", "a frame of at most 1024 bytes, found 4294967295"),
        (b"\0\0\0\0\2\0\0\0", "the offset of a body within the 0 bytes"),
        (b"\0\0\0\7\2\0\0\0", "the offset of a body within the 7 bytes"),
        (b"\0\0\0\x0a\1\0\0\0", "the offset of a body within the 10 bytes of its frame, found 4"),
        (b"\0\0\0\x0a\3\0\0\0", "the offset of a body within the 10 bytes of its frame, found 12"),
    ],
)
@pytest.mark.parametrize("size", [1, 8])
def test_a_frame_that_cannot_be_is_refused_at_its_head(
    head: bytes, expected: str, size: int
) -> None:
    """Nothing is waited for of a frame that is too long or contradicts itself."""
    reader = connected()
    for at in range(0, 8 - size, size):
        assert not list(read(reader, head[at : at + size]))
    with pytest.raises(AmqpFramingError, match=expected):
        list(read(reader, head[8 - size :]))


def test_an_extended_header_is_skipped() -> None:
    """The body begins where the frame says."""
    assert list(read(connected(), b"\0\0\0\x0e\3\0\0\1moreab")) == [Frame(0, 1, b"ab")]


def test_the_greatest_length_counts_from_when_it_is_set() -> None:
    """A frame that is read after the open may be longer than one before it."""
    reader = connected()
    long = encode_frame(b"x" * MAX)
    reader.receive(EMPTY_FRAME + long)
    assert reader.next_frame() == Frame(0, 0, b"")
    reader.max_frame_size = 2 * MAX
    assert reader.next_frame() == Frame(0, 0, b"x" * MAX)


def test_what_was_not_asked_for_yet_is_kept() -> None:
    """Who stops to ask for frames gets them later, in their order."""
    reader = connected()
    reader.receive(encode_frame(b"1") + encode_frame(b"2"))
    assert reader.next_frame() == Frame(0, 0, b"1")
    reader.receive(encode_frame(b"3")[:7])
    assert reader.held == 9 + 7
    assert reader.next_frame() == Frame(0, 0, b"2")
    assert reader.next_frame() is None
    assert reader.held == 7
    reader.receive(encode_frame(b"3")[7:])
    assert reader.next_frame() == Frame(0, 0, b"3")


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("more", [False, True])
@pytest.mark.parametrize("tag", [b"", b"tag", b"x" * 32])
def test_a_delivery_is_written_as_a_transfer(tag: bytes, *, settled: bool, more: bool) -> None:
    """The frame that is written at once is what the table would write."""
    data = transfer_frame(7, 2**32 - 1, 9, tag, b"message", settled=settled, more=more)
    (frame,) = read(connected(), data)
    assert isinstance(frame, Frame)
    assert (frame.type, frame.channel) == (0, 7)
    transfer, at = decode_performative(frame.body)
    assert transfer == Transfer(2**32 - 1, 9, tag, 0, settled, more)
    assert frame.body[at:] == b"message"


@pytest.mark.parametrize("settled", [False, True])
def test_a_whole_delivery_is_written_as_a_transfer(*, settled: bool) -> None:
    """Its tag is its id."""
    tag = (300).to_bytes(4, "big")
    said = transfer_frame(7, 2**32 - 1, 300, tag, b"headbody", settled=settled)
    assert delivery_frame(7, 2**32 - 1, 300, b"head", b"body", settled=settled) == said


@pytest.mark.parametrize("more", [False, True])
def test_a_delivery_is_continued(*, more: bool) -> None:
    """Its further frames name the link and nothing else."""
    (frame,) = read(connected(), continued_frame(7, 3, b"part", more=more))
    assert isinstance(frame, Frame)
    transfer, at = decode_performative(frame.body)
    assert transfer == Transfer(3, more=more)
    assert (frame.channel, frame.body[at:]) == (7, b"part")


@pytest.mark.parametrize("role", [SENDER, RECEIVER])
def test_deliveries_are_accepted_by_range(*, role: bool) -> None:
    """One frame settles all deliveries from the first to the last."""
    (frame,) = read(connected(), accepted_frame(7, 1, 2**32 - 1, is_receiver=role))
    assert isinstance(frame, Frame)
    said, _ = decode_performative(frame.body)
    assert said == Disposition(role, 1, 2**32 - 1, True, ACCEPTED)
    assert frame.channel == 7


@pytest.mark.parametrize("outcome", [RELEASED, Rejected(), Modified(True, True)])
def test_a_sender_settles_deliveries_by_range(outcome: Outcome) -> None:
    """With whatever outcome the client said."""
    data = settled_frame(7, 1, 2**32 - 1, encode_performative(outcome))
    (frame,) = read(connected(), data)
    assert isinstance(frame, Frame)
    said, end = decode_performative(frame.body)
    assert said == Disposition(SENDER, 1, 2**32 - 1, True, outcome)
    assert end == len(frame.body)
    assert frame.channel == 7
