"""The STOMP parser beside two others on the same bytes: microseconds a frame.

    python -m benchmarks.stomp_parser [--frames 20000] [--rounds 9]

- ``parser``: ``orthia.broker.protocols.stomp.parser``, with its limits, checks and refusals;
- ``streams``: an ``asyncio.StreamReader`` with ``readuntil`` and ``readexactly``. It does the same
  frames, limits and checks, except that no line may end in CR LF. It is fed as fast as it reads, so
  its figure leaves out the wake-ups of a task that waits for a socket: a Protocol has none;
- ``find``: the bare loop of ``bytes.find``, which finds where each frame ends and cuts out its
  body, and looks at no header but content-length: the floor.

All get a stream of SEND frames in pieces of 64 KiB, as a socket gives them, and take turns in each
round, so that a noisy machine disturbs all of them. Figures are processor time, medians of the
rounds; ratios are medians of the ratios within a round. That each reads every body is checked
first.
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.throughput import ratio
from orthia.broker.protocols.stomp.client_frame import Frame
from orthia.broker.protocols.stomp.frames import ProtocolError, Version, unescape
from orthia.broker.protocols.stomp.parser import FrameParser
from orthia.config.settings import ClientLimits

PIECE_BYTES = 65_536
"""What one read of a socket brings at most."""
_NUL = 0
_RETURN = 13
_SPACE = 32
Take = Callable[[bytes], object]
Reader = Callable[[Sequence[bytes], Take], None]
"""Hands over the body of each frame in the pieces of a stream."""


@dataclass(frozen=True)
class Work:
    """A stream of frames of one kind."""

    name: str
    body: bytes
    headers: int = 0
    has_length: bool = True

    @property
    def frame(self) -> bytes:
        """Return the SEND with a receipt, its extra headers, and the line end after it."""
        lines = [b"SEND", b"destination:/queue/orders", b"receipt:message-123456"]
        lines += [b"header-%d:value number %d" % (one, one) for one in range(self.headers)]
        if self.has_length:
            lines.append(b"content-length:%d" % len(self.body))
        return b"\n".join(lines) + b"\n\n" + self.body + b"\0\n"

    def pieces(self, frames: int) -> list[bytes]:
        """Return ``frames`` such frames, cut into pieces as a socket cuts them."""
        stream = self.frame * frames
        return [stream[at : at + PIECE_BYTES] for at in range(0, len(stream), PIECE_BYTES)]


EVERY_WORK = (
    Work("100 B, content-length", b"x" * 100),
    Work("1 KiB, content-length", b"x" * 1_024),
    Work("1 KiB, up to the NUL", b"x" * 1_024, has_length=False),
    Work("1 KiB, 10 more headers", b"x" * 1_024, headers=10),
    Work("100 KiB, content-length", b"x" * 102_400),
)


def with_parser(pieces: Sequence[bytes], take: Take) -> None:
    """Read with Orthia's parser."""
    parser = FrameParser(ClientLimits())
    for piece in pieces:
        for frame in parser.feed(piece):
            take(frame.body)


def with_streams(pieces: Sequence[bytes], take: Take) -> None:
    """Read with asyncio's streams; each piece is fed when the one before is used up."""
    asyncio.run(_with_streams(pieces, take))


async def _with_streams(pieces: Sequence[bytes], take: Take) -> None:
    limits = ClientLimits()
    reader = asyncio.StreamReader(limit=limits.max_body_bytes)
    feeding = asyncio.ensure_future(_feed(reader, pieces))
    try:
        while True:
            command, headers = _head(await reader.readuntil(b"\n\n"), limits)
            declared = headers.get(b"content-length")
            if declared is None:
                ended = await reader.readuntil(b"\0")
            else:
                digits = declared.strip()
                if not (digits.isdigit() and len(digits) < 16):
                    raise ProtocolError("content-length is not a number of bytes")
                length = int(digits)
                if length > limits.max_body_bytes:
                    raise ProtocolError("frame body is longer than max-body-bytes")
                ended = await reader.readexactly(length + 1)
                if ended[-1]:
                    raise ProtocolError("the body is not followed by a NUL byte")
            take(Frame(command, headers, ended[:-1], Version.V1_2).body)
    except asyncio.IncompleteReadError:
        await feeding


def _head(head: bytes, limits: ClientLimits) -> tuple[str, dict[bytes, bytes]]:
    head = head.lstrip(b"\n")[:-2]
    if len(head) > limits.max_header_bytes:
        raise ProtocolError("frame header is longer than max-header-bytes")
    if _NUL in head or _RETURN in head:
        raise ProtocolError("a header has a byte that ends frames or lines")
    command, *lines = head.split(b"\n")
    if len(lines) > limits.max_headers:
        raise ProtocolError("frame has more than max-headers")
    head.decode()
    headers: dict[bytes, bytes] = {}
    for line in lines:
        key, colon, value = line.partition(b":")
        if not (colon and key):
            raise ProtocolError("header line has no colon")
        if key[0] <= _SPACE or key[-1] <= _SPACE:
            raise ProtocolError("header name begins or ends with white space")
        if key not in headers:
            headers[key] = value
    if b"\\" in head:
        for key, value in headers.items():
            unescape(key, Version.V1_2)
            unescape(value, Version.V1_2)
    return command.decode(), headers


async def _feed(reader: asyncio.StreamReader, pieces: Sequence[bytes]) -> None:
    for piece in pieces:
        reader.feed_data(piece)
        await asyncio.sleep(0)
    reader.feed_eof()


def with_find(pieces: Sequence[bytes], take: Take) -> None:
    """Read with nothing but ``find``."""
    rest = b""
    for piece in pieces:
        data = rest + piece
        start = 0
        while True:
            head_end = data.find(b"\n\n", start)
            if head_end < 0:
                break
            body = head_end + 2
            at = data.find(b"\ncontent-length:", start, head_end)
            if at < 0:
                end = data.find(b"\0", body)
                if end < 0:
                    break
            else:
                line_end = data.find(b"\n", at + 16, body)
                end = body + int(data[at + 16 : line_end])
                if end >= len(data):
                    break
            take(data[body:end])
            # Skip the line end after each frame of this stream, too.
            start = end + 2
        rest = data[start:]


READERS: dict[str, Reader] = {
    "parser": with_parser,
    "streams": with_streams,
    "find": with_find,
}


def measure(work: Work, frames: int, rounds: int) -> dict[str, list[float]]:
    """Return microseconds per frame of each reader, one figure per round."""
    pieces = work.pieces(frames)
    expected = [work.body] * frames
    for name, reader in READERS.items():
        bodies: list[bytes] = []
        reader(pieces, bodies.append)
        if bodies != expected:
            raise RuntimeError(f"{name} does not read the bodies of {work.name!r}")
    figures: dict[str, list[float]] = {name: [] for name in READERS}
    for _ in range(rounds):
        for name, reader in READERS.items():
            start = time.process_time()
            reader(pieces, len)
            figures[name].append((time.process_time() - start) / frames * 1e6)
    return figures


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--frames", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    print(
        f"{'microseconds a frame':26}{'parser':>9}{'streams':>9}{'find':>9}"
        f"{'streams/parser':>16}{'parser/find':>13}"
    )
    for work in EVERY_WORK:
        # Fewer frames if they are large: no stream has more than some 40 MB.
        frames = max(1, min(arguments.frames, 40_000_000 // len(work.frame)))
        figures = measure(work, frames, arguments.rounds)
        ours, streams, found = (statistics.median(figures[name]) for name in READERS)
        print(
            f"{work.name:26}{ours:9.2f}{streams:9.2f}{found:9.2f}"
            f"{ratio(figures['streams'], figures['parser']):16.2f}"
            f"{ratio(figures['parser'], figures['find']):13.2f}"
        )


if __name__ == "__main__":
    main()
