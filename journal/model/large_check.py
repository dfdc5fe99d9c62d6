"""Whether what is stored of a large body is the body its message was sent with: pure.

A message's record has its body's checksum, whatever version of Orthia stored it and wherever the
body is. It tells that something is wrong with a body, and not with which of its pieces: whichever
it is, the message is lost.
"""

from collections.abc import Sequence
from typing import NamedTuple

from orthia.journal.engine.abc import PIECE_BYTES
from orthia.journal.model.integrity import Finding


class StoredPiece(NamedTuple):
    """What is stored at one position of a body."""

    position: int
    length: int
    running: int | None
    """CRC-32 of all pieces up to it, as they are; None if they were not read."""


class BodyFinding(NamedTuple):
    """A defect of a body."""

    position: int | None
    """Of the piece; None for the body."""
    finding: Finding


def judge_body(size: int, checksum: int, pieces: Sequence[StoredPiece]) -> list[BodyFinding]:
    """Compare the pieces that are there with the size and the checksum in a message's record."""
    wanted = -(-size // PIECE_BYTES)
    there = {piece.position: piece for piece in pieces}
    if wanted and not there:
        return [_finding(None, "large-body-missing", f"{size} bytes of body are missing")]
    found = [
        _finding(first, "large-piece-missing", _missing(first, last, wanted))
        for first, last in _gaps(sorted(one for one in there if one < wanted), wanted)
    ]
    for piece in pieces:
        length = min(PIECE_BYTES, size - piece.position * PIECE_BYTES)
        at = f"piece {piece.position}"
        if length <= 0:
            said = f"{at} lies beyond the end: the body has {size} bytes"
            found.append(_finding(piece.position, "large-piece-surplus", said))
        elif piece.length != length:
            said = f"{at} has {piece.length} bytes and should have {length}"
            found.append(_finding(piece.position, "large-piece-size", said))
    if not found and wanted:
        last = there[wanted - 1]
        if last.running is not None and last.running != checksum:
            said = "all of its pieces are there, and are not what was sent: the checksum that its"
            found.append(_finding(None, "large-body-corrupt", f"{said} message has is another"))
    return found


def _gaps(positions: Sequence[int], wanted: int) -> list[tuple[int, int]]:
    gaps = []
    expected = 0
    for position in (*positions, wanted):
        if position > expected:
            gaps.append((expected, position - 1))
        expected = position + 1
    return gaps


def _missing(first: int, last: int, wanted: int) -> str:
    if first == last:
        return f"piece {first} of {wanted} is missing"
    return f"pieces {first} to {last} of {wanted} are missing"


def _finding(position: int | None, fault: str, detail: str) -> BodyFinding:
    return BodyFinding(position, Finding(fault, detail))
