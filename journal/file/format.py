"""The bytes of a journal file, and reading them back after a crash. No IO.

A file, big-endian::

    0     magic 8s | version u16 | kind u8 | file id u32 | generation u64 | token u64 | CRC-32
          salt 16s | CRC-32 of all before it
    512   the seal, zero while the file is written: magic 8s | end u64 | order u64 | CRC-32
    1024  records, one after the other

A record is 72 bytes and its payload::

    mark 8s | CRC-32 of the 60 bytes that follow, begun with the file's seed
    payload size u32 | record type u8 | user record type u8 | flags u8 | 0 | sync u64
    seq i64 | id i64 | tx id i64 | queue id i64 (-1: none) | epoch i64 | CRC-32 of the payload

``sync`` counts the syncs of this file: all that one fdatasync made durable has the same number,
and the last record of it has the flag ``LAST_OF_SYNC``. The writer begins nothing before the sync
before it has returned. So a record of a later sync proves that everything before it was durable,
and a reader can tell the two reasons why a record may be unreadable apart:

* **torn**: nothing behind it is of a later sync. It was being written when the node died, nobody
  was told that it is stored, and the file ends before it.
* **damaged**: something behind it is, or the seal lies behind it. It was durable and has changed
  since. That is never passed over in silence.

Bodies of messages are bytes that clients choose, and a file that is used again still holds those of
before, behind its end, where a reader looks for records of a later sync. So that no client can make
a body that is taken for records, each file has a *salt*, drawn anew whenever the file is begun or
used again and told to nobody: its first half is the mark that records begin with, and the CRC-32 of
its second half the seed. To be taken for a record of a file, bytes have to meet both by chance.

Files of version 1 have no salt. Their records begin with a marker and the file id, which is the
seed, too. They are read and never written.
"""

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Final, NamedTuple, TypeAlias

from orthia.journal.model.records import RecordType, UserRecordType

VERSION: Final = 2
"""Of the files that are written."""
SALT_BYTES: Final = 16
HEADER_BYTES: Final = 1024
SEAL_AT: Final = 512
MAX_FILE_ID: Final = 0xFFFF_FFFF
LAST_OF_SYNC: Final = 1

_NO_QUEUE: Final = -1
_FILE_MAGIC: Final = b"ORTHIAJL"
_SEAL_MAGIC: Final = b"ORTHSEAL"
_UNSALTED_VERSION: Final = 1
_UNSALTED_MARK: Final = struct.Struct(">4sI")
_UNSALTED_MARKER: Final = b"\xa5Or\x5a"
_HEADER: Final = struct.Struct(">8sHBIQQ")
_SALT: Final = struct.Struct(f">{SALT_BYTES}s")
_SEAL: Final = struct.Struct(">8sQQ")
_CRC: Final = struct.Struct(">I")
_HEAD: Final = struct.Struct(">8sI")
_TAIL: Final = struct.Struct(">IBBBxQqqqqqI")
RECORD_BYTES: Final = _HEAD.size + _TAIL.size
_SEQ: Final = struct.Struct(">q")
_ANY_NUMBER: Final = -1

Data: TypeAlias = bytes | memoryview


class Kind(Enum):
    """The two instances of the journal, and how Artemis names their files."""

    MESSAGES = 1
    BINDINGS = 2

    @property
    def prefix(self) -> str:
        """How the names of its files begin."""
        return "activemq-data" if self is Kind.MESSAGES else "activemq-bindings"

    @property
    def extension(self) -> str:
        """How the names of its files end."""
        return "amq" if self is Kind.MESSAGES else "bindings"

    def file_name(self, file_id: int) -> str:
        """Return the name of a file of this instance."""
        return f"{self.prefix}-{file_id}.{self.extension}"


class BadHeader(ValueError):  # noqa: N818 - named for what is the case
    """A file's header or seal is not what was written."""


class UnknownVersion(ValueError):  # noqa: N818 - named for what is the case
    """A file's header is intact, and of a version of the format that this one does not know."""


class Mark(NamedTuple):
    """By what the records of one file are told from all other bytes."""

    start: bytes
    """How each of them begins."""
    seed: int
    """What their checksums begin with."""


@dataclass(frozen=True)
class FileHeader:
    """Who wrote a file."""

    kind: Kind
    file_id: int
    generation: int
    """Counts how often the journal was opened; the writer's own."""
    token: int
    """The writer's fencing token."""
    salt: bytes = field(repr=False)
    """Random bytes that no client knows; none in a file of version 1."""

    @cached_property
    def mark(self) -> Mark:
        """By what the records of this file are told."""
        if not self.salt:
            start = _UNSALTED_MARK.pack(_UNSALTED_MARKER, self.file_id)
            return Mark(start, self.file_id)
        half = SALT_BYTES // 2
        return Mark(self.salt[:half], zlib.crc32(self.salt[half:]))


class Seal(NamedTuple):
    """What is said of a file when it is not written any more."""

    end: int
    """Where its last record ends."""
    order: int
    """Where it stands among the others: they are read in the order in which they were used. Files
    that were compacted have the order of the first they replace, and that of their ids."""


def encode_header(header: FileHeader) -> bytes:
    """Return the first HEADER_BYTES of a file that is not sealed."""
    head = _HEADER.pack(
        _FILE_MAGIC,
        VERSION,
        header.kind.value,
        header.file_id,
        header.generation,
        header.token,
    )
    # A checksum before the salt, too, where version 1 has its only one: a node that knows no other
    # version refuses the file by its version then, and not as damaged.
    salted = head + _CRC.pack(zlib.crc32(head)) + _SALT.pack(header.salt)
    return (salted + _CRC.pack(zlib.crc32(salted))).ljust(HEADER_BYTES, b"\0")


def decode_header(data: Data) -> FileHeader:
    """Read a file's header; raises BadHeader and UnknownVersion."""
    if len(data) < HEADER_BYTES:
        raise BadHeader(f"it has {len(data)} bytes, fewer than a header")
    magic, version, kind, file_id, generation, token = _HEADER.unpack_from(data)
    if magic != _FILE_MAGIC:
        raise BadHeader("it does not begin as a journal file does")
    salt_at = _check(data, _HEADER.size)
    if version not in (_UNSALTED_VERSION, VERSION):
        raise UnknownVersion(
            f"it is of format version {version}, and this node reads {_UNSALTED_VERSION} to"
            f" {VERSION}"
        )
    salt = b""
    if version != _UNSALTED_VERSION:
        (salt,) = _SALT.unpack_from(data, salt_at)
        _check(data, salt_at + _SALT.size)
    try:
        return FileHeader(Kind(kind), file_id, generation, token, salt)
    except ValueError:
        raise BadHeader(f"its kind {kind} is not known") from None


def _check(data: Data, size: int) -> int:
    """Return where the checksum of the first ``size`` bytes ends; raises BadHeader."""
    if zlib.crc32(data[:size]) != _CRC.unpack_from(data, size)[0]:
        raise BadHeader("the checksum of its header does not match")
    return size + _CRC.size


def encode_seal(end_and_order: Seal) -> bytes:
    """Return what is written at SEAL_AT once nothing more will be written."""
    seal = _SEAL.pack(_SEAL_MAGIC, *end_and_order)
    return seal + _CRC.pack(zlib.crc32(seal))


def decode_seal(data: Data) -> Seal | None:
    """Return the seal of a file; None if it is not sealed. Raises BadHeader."""
    slot = bytes(data[SEAL_AT : SEAL_AT + _SEAL.size + _CRC.size])
    if not any(slot):
        return None
    magic, end, order = _SEAL.unpack_from(slot)
    checksum = _CRC.unpack_from(slot, _SEAL.size)[0]
    if magic != _SEAL_MAGIC or zlib.crc32(slot[: _SEAL.size]) != checksum:
        raise BadHeader("the checksum of its seal does not match")
    return Seal(end, order)


class Record(NamedTuple):
    """A record as it is to be written."""

    record_type: int
    user_record_type: int
    seq: int
    id: int
    tx_id: int
    queue_id: int | None
    epoch: int
    payload: bytes


def encode_record(record: Record, mark: Mark, sync: int, flags: int) -> bytes:
    """Return the 72 bytes that go before the payload of ``record``."""
    return encode_head(record, len(record.payload), zlib.crc32(record.payload), mark, sync, flags)


def encode_messages(
    messages: Sequence[tuple[int, int, bytes, object, object, object, object]],
    sizes: Sequence[int],
    mark: Mark,
    sync: int,
    epoch: int,
    *,
    is_end: bool,
) -> list[bytes]:
    """Return the records that add messages of one queue each: the hot path.

    A message is seq, queue id and payload, of one of the ``sizes``. ``is_end`` flags the last as
    the last of its sync.
    """
    parts: list[bytes] = []
    pack_head, pack_tail, crc = _HEAD.pack, _TAIL.pack, zlib.crc32
    start, seed = mark
    kind, user_kind = int(RecordType.ADD_RECORD), int(UserRecordType.ADD_MESSAGE)
    last = messages[-1][0] if is_end else None
    for (seq, queue_id, payload, _, _, _, _), size in zip(messages, sizes, strict=True):
        tail = pack_tail(
            size,
            kind,
            user_kind,
            LAST_OF_SYNC if seq == last else 0,
            sync,
            seq,
            seq,
            0,
            queue_id,
            epoch,
            crc(payload),
        )
        parts += (pack_head(start, crc(tail, seed)), tail, payload)
    return parts


def encode_head(
    record: Record, payload_size: int, payload_checksum: int, mark: Mark, sync: int, flags: int
) -> bytes:
    """As ``encode_record``, for a payload of this size and checksum, whatever it is."""
    record_type, user_record_type, seq, row_id, tx_id, queue_id, epoch, _ = record
    tail = _TAIL.pack(
        payload_size,
        record_type,
        user_record_type,
        flags,
        sync,
        seq,
        row_id,
        tx_id,
        _NO_QUEUE if queue_id is None else queue_id,
        epoch,
        payload_checksum,
    )
    return _HEAD.pack(mark.start, zlib.crc32(tail, mark.seed)) + tail


def encode_seqs(seqs: Sequence[int]) -> bytes:
    """Return the payload of a delete record."""
    return struct.pack(f">{len(seqs)}q", *seqs)


def decode_seqs(payload: Data) -> list[int]:
    """Return what a delete record deletes."""
    return [seq for (seq,) in _SEQ.iter_unpack(payload)]


def encode_count(count: int | None) -> bytes:
    """Return the payload of the end of a transaction of so many records; None does not say."""
    return _SEQ.pack(_ANY_NUMBER if count is None else count)


def decode_count(payload: Data) -> int | None:
    """Return how many records a transaction has, if its end says so."""
    (count,) = _SEQ.unpack_from(payload)
    return None if count < 0 else count


class Scanned(NamedTuple):
    """A record as it stands in a file."""

    record_type: int
    user_record_type: int
    seq: int
    id: int
    tx_id: int
    queue_id: int | None
    epoch: int
    flags: int
    sync: int
    offset: int
    payload_size: int
    payload_checksum: int

    @property
    def end(self) -> int:
        """Where the next record begins."""
        return self.offset + RECORD_BYTES + self.payload_size

    def payload(self, data: Data, base: int = 0) -> bytes:
        """Return its payload; ``data`` begins at ``base`` of the file."""
        begin = self.offset + RECORD_BYTES - base
        return bytes(data[begin : begin + self.payload_size])

    def is_intact(self, payload: Data) -> bool:
        """Return whether this is the payload that was written."""
        return len(payload) == self.payload_size and zlib.crc32(payload) == self.payload_checksum

    def as_record(self, payload: bytes) -> Record:
        """Return it as it is to be written elsewhere."""
        return Record(
            self.record_type,
            self.user_record_type,
            self.seq,
            self.id,
            self.tx_id,
            self.queue_id,
            self.epoch,
            payload,
        )


def parse(data: Data, offset: int, mark: Mark, base: int = 0) -> Scanned | None:
    """Read the head of the record at ``offset`` of a file; None if there is none.

    ``data`` begins at ``base`` of the file. Whether the payload is intact is not looked at.
    """
    at = offset - base
    if at + RECORD_BYTES > len(data):
        return None
    start, checksum = _HEAD.unpack_from(data, at)
    if start != mark.start:
        return None
    tail_at = at + _HEAD.size
    if zlib.crc32(data[tail_at : at + RECORD_BYTES], mark.seed) != checksum:
        return None
    (
        size,
        record_type,
        user_type,
        flags,
        sync,
        seq,
        row_id,
        tx_id,
        queue_id,
        epoch,
        payload_crc,
    ) = _TAIL.unpack_from(data, tail_at)
    return Scanned(
        record_type,
        user_type,
        seq,
        row_id,
        tx_id,
        None if queue_id == _NO_QUEUE else queue_id,
        epoch,
        flags,
        sync,
        offset,
        size,
        payload_crc,
    )
