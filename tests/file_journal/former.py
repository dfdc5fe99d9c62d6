"""The former version of the format, written out anew: what clients know of it, and older nodes."""

import base64
import json
import struct
import zlib
from pathlib import Path
from typing import Any

from orthia.config.store_settings import FileStoreSettings
from orthia.journal.engine.batch import Batch
from orthia.journal.file.encoding import delete_record
from orthia.journal.file.format import Record
from orthia.journal.model.message import encode_message
from orthia.journal.model.unit import AppendedMessage
from tests.file_journal.support import DirectJournal
from tests.journal.support import QUEUE, record

OLDER = Path(__file__).with_name("older")
VERSION = 1
FILE_HEADER = struct.Struct(">8sHBIQQ")
_HEAD = struct.Struct(">4sII")
_TAIL = struct.Struct(">IBBBxQqqqqqI")
_CRC = struct.Struct(">I")


def encode_record(one: Record, file_id: int, sync: int, flags: int = 1) -> bytes:
    """Return a record and its payload as they stand in a file of the former version."""
    tail = _TAIL.pack(
        len(one.payload),
        one.record_type,
        one.user_record_type,
        flags,
        sync,
        one.seq,
        one.id,
        one.tx_id,
        -1 if one.queue_id is None else one.queue_id,
        one.epoch,
        zlib.crc32(one.payload),
    )
    return _HEAD.pack(b"\xa5Or\x5a", file_id, zlib.crc32(tail, file_id)) + tail + one.payload


def refusal(data: bytes) -> str | None:
    """Return why a node of the former version does not read a file that begins so."""
    (version,) = struct.unpack_from(">H", data, 8)
    if data[:8] != b"ORTHIAJL":
        return "it does not begin as a journal file does"
    if zlib.crc32(data[: FILE_HEADER.size]) != _CRC.unpack_from(data, FILE_HEADER.size)[0]:
        return "the checksum of its header does not match"
    if version != VERSION:
        return f"it is of format version {version}, and this node reads {VERSION}"
    return None


def forged(file_ids: range, seqs: list[int], sync: int) -> bytes:
    """Return what a client sends that knows the format: deletes of what is not its own."""
    one = delete_record(seqs, 1)
    return b"".join(encode_record(one, file_id, sync) for file_id in file_ids)


def send(journal: DirectJournal, body: bytes, queue: int = QUEUE) -> int:
    """Store a message of these bytes and return its seq."""
    journal.seq += 1
    batch = Batch()
    message = encode_message(record("")._replace(body=body))
    batch.add(AppendedMessage(journal.seq, queue, message, None))
    journal.store.store(batch)
    return journal.seq


def restore(fixture: str, s: FileStoreSettings) -> dict[str, Any]:
    """Put the files of a fixture where ``s`` says, and return what they must say."""
    document: dict[str, Any] = json.loads((OLDER / fixture).read_text())
    for name, packed in document["files"].items():
        path = s.journal_directory.parent / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(zlib.decompress(base64.b64decode(packed)))
    said: dict[str, Any] = document["said"]
    return said
