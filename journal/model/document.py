# mypyc compiles this module.
"""A record that is a JSON document: its version, its checksum, and its fields by type.

``orthia.journal.model.codec`` says what is in which.
"""

import json
import struct
import zlib
from typing import Any, Final

from orthia.config.address_settings import RoutingType
from orthia.journal.errors import CorruptRecord

FIRST_VERSION: Final = 1
_HEADER = struct.Struct(">BI")


def check_version(version: int, seq: int, newest: int) -> None:
    """Raise CorruptRecord for a record of a version that is none of those."""
    if not FIRST_VERSION <= version <= newest:
        known = str(FIRST_VERSION) if newest == FIRST_VERSION else f"{FIRST_VERSION} to {newest}"
        raise CorruptRecord(seq, f"its codec version is {version} and this node reads {known}")


def encode_document(document: dict[str, object], version: int = FIRST_VERSION) -> bytes:
    """Return the bytes of a document."""
    return seal(json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode(), version)


def seal(text: bytes, version: int = FIRST_VERSION) -> bytes:
    """Return the bytes of a document of which the text is there."""
    return _HEADER.pack(version, zlib.crc32(text)) + text


def _is_text(value: object) -> bool:
    """Return whether ``value`` is a text that can be stored: JSON can name half a character."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_document(data: bytes, seq: int, newest: int = FIRST_VERSION) -> "Document":
    """Return the document that the bytes are; raises CorruptRecord."""
    if len(data) < _HEADER.size:
        raise CorruptRecord(seq, f"{len(data)} bytes are fewer than a record has")
    version, checksum = _HEADER.unpack_from(data)
    check_version(version, seq, newest)
    text = data[_HEADER.size :]
    if zlib.crc32(text) != checksum:
        raise CorruptRecord(seq, "its checksum does not match")
    try:
        said = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorruptRecord(seq, "it is not JSON") from error
    if not isinstance(said, dict):
        raise CorruptRecord(seq, "it is not a JSON object")
    return Document(said, seq)


class Document:
    """A checked JSON record whose fields are read by type; methods raise CorruptRecord."""

    def __init__(self, said: dict[str, Any], seq: int) -> None:
        self._fields = said
        self.seq = seq

    @property
    def names(self) -> list[str]:
        """The fields there are."""
        return list(self._fields)

    def inner(self, name: str) -> "Document":
        """Return the object that a field is."""
        value = self._fields.get(name)
        if not isinstance(value, dict):
            raise CorruptRecord(self.seq, f"its field {name!r} is not a JSON object")
        return Document(value, self.seq)

    def plain(self, name: str) -> dict[str, Any]:
        """Return the object that a field is, with its fields unchecked."""
        self.inner(name)
        return dict(self._fields[name])

    def has(self, name: str) -> bool:
        """Tell whether a field is there."""
        return name in self._fields

    def text(self, name: str) -> str:
        """Return a field that is a text."""
        value = self._fields.get(name)
        if not _is_text(value):
            raise CorruptRecord(self.seq, f"its field {name!r} is not a text")
        return str(value)

    def texts(self, name: str) -> list[str]:
        """Return a field that is a list of texts."""
        values = self._fields.get(name)
        if not isinstance(values, list) or not all(map(_is_text, values)):
            raise CorruptRecord(self.seq, f"its field {name!r} is not a list of texts")
        return values

    def integer(self, name: str) -> int:
        """Return a field that is an integer."""
        value = self._fields.get(name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise CorruptRecord(self.seq, f"its field {name!r} is not an integer")
        return value

    def rows(self, name: str) -> list[Any]:
        """Return a field that is a list."""
        value = self._fields.get(name)
        if not isinstance(value, list):
            raise CorruptRecord(self.seq, f"its field {name!r} is not a list")
        return value

    def flag(self, name: str) -> bool:
        """Return a field that is true or false."""
        value = self._fields.get(name)
        if not isinstance(value, bool):
            raise CorruptRecord(self.seq, f"its field {name!r} is not true or false")
        return value

    def routing_type(self, text: str) -> RoutingType:
        """Return the routing type of that name."""
        try:
            return RoutingType(text)
        except ValueError as error:
            raise CorruptRecord(self.seq, f"{text!r} is no routing type") from error
