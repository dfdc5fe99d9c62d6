# mypyc compiles this module.
"""STOMP frames as bytes: versions, escaping, and what a server sends.

Escapes by version (STOMP specification, "Value Encoding"): 1.0 has none; 1.1 has ``\\n``, ``\\c``
and ``\\\\``; 1.2 adds ``\\r``. CONNECT and CONNECTED are never escaped. No version has one for NUL,
which ends frames; and many clients end a line at a bare carriage return. So neither is accepted
from a client, and neither is sent to one: the journal of an older Orthia may have both.
"""

import re
from collections.abc import Iterable
from enum import Enum
from typing import Final

from orthia.broker.quoting import quoted
from orthia.config.errors import OrthiaError


class ProtocolError(OrthiaError):
    """A client's bytes are not STOMP, or not allowed; the text goes into its ERROR frame."""


class Version(Enum):
    """The versions of STOMP, lowest first."""

    V1_0 = "1.0"
    V1_1 = "1.1"
    V1_2 = "1.2"


ERROR_CONTENT_TYPE = "text/plain;charset=utf-8"
"""Of an ERROR's body. Some clients fail to read a text without a charset, and exit."""
_V1_2: Final = Version.V1_2  # asked for every message: an enumeration looks its members up
# Bytes as numbers, which are found several times faster than as texts.
_NUL = 0
_RETURN = 13
_BACKSLASH = 92
_UNESCAPES = {b"\\n": b"\n", b"\\c": b":", b"\\r": b"\r"}
_UNDEFINED = {
    Version.V1_1: re.compile(rb"\\(?:[^nc]|$)", re.DOTALL),
    Version.V1_2: re.compile(rb"\\(?:[^ncr]|$)", re.DOTALL),
}
"""Undefined escape sequences of a version, in a value whose escaped backslashes are replaced."""
_ESCAPES = {b"\\": b"\\\\", b"\n": b"\\n", b":": b"\\c", b"\r": b"\\r"}
_ESCAPED = re.compile(rb"[\\\n:\r]")


def is_whole_number(text: str) -> bool:
    """Return whether ``text`` is a whole number of at most 18 ASCII digits, which 64 bits hold."""
    return text.isascii() and text.isdecimal() and len(text) < 19


def unescape(value: bytes, version: Version) -> bytes:
    """Return the bytes a header's key or value stands for; raises ProtocolError."""
    if version is Version.V1_0 or _BACKSLASH not in value:
        return value

    # All sequences of a kind at once: a header may have thirty thousand of them, for which a
    # pattern that handles each takes a hundred times as long.
    if _NUL in value:  # stored before it was refused
        return b"\0".join(unescape(one, version) for one in value.split(b"\0"))
    value = value.replace(b"\\\\", b"\0")
    undefined = _UNDEFINED[version].search(value)
    if undefined is not None:
        shown = undefined.group().replace(b"\0", b"\\").decode("utf-8", "replace")
        raise ProtocolError(
            f"header has the undefined escape sequence {quoted(shown)} of STOMP {version.value}"
        )
    for sequence, meant in _UNESCAPES.items():
        value = value.replace(sequence, meant)
    return value.replace(b"\0", b"\\")


def escape(value: bytes, version: Version, *, is_key: bool = False) -> bytes:
    """Return a header's key or value as it is sent.

    A byte that a version cannot express becomes a space, so that it breaks no frame and turns no
    header into another.
    """
    if value.isalnum():  # most receipts and ids
        return value
    plain = value.replace(b"\0", b" ")
    if version is not _V1_2:
        plain = plain.replace(b"\r", b" ")
        if version is Version.V1_0:
            plain = plain.replace(b"\n", b" ")
            return plain.replace(b":", b" ") if is_key else plain
    return _ESCAPED.sub(lambda match: _ESCAPES[match.group()], plain)


def canonical(value: bytes, version: Version) -> bytes:
    """Return a raw key or value of a frame of ``version`` as STOMP 1.2 escapes it."""
    if version is Version.V1_2 or not _ESCAPED.search(value):
        return value
    return escape(unescape(value, version), Version.V1_2)


def block_for(version: Version, block: bytes) -> bytes:
    """Return 1.2-escaped header lines as ``version`` writes them.

    Lines stored before NUL and bare carriage returns were refused are made harmless.
    """
    if block.find(_NUL) >= 0 or block.find(_RETURN) >= 0:
        block = block.replace(b"\0", b" ").replace(b"\r", b"\\r")
    if version is _V1_2 or _BACKSLASH not in block:
        return block
    lines = (line.partition(b":") for line in block.split(b"\n") if line)
    return b"".join(
        escape(unescape(key, Version.V1_2), version, is_key=True)
        + b":"
        + escape(unescape(value, Version.V1_2), version)
        + b"\n"
        for key, _, value in lines
    )


def server_frame(
    command: str, headers: Iterable[tuple[str, str]], body: bytes, version: Version
) -> bytes:
    """Return a frame; RECEIPT and MESSAGE, made for every message, have faster writers."""
    plain = command == "CONNECTED"
    lines = [command.encode()]
    for key, value in headers:
        raw_key, raw_value = key.encode(), value.encode()
        if not plain:
            raw_key = escape(raw_key, version, is_key=True)
            raw_value = escape(raw_value, version)
        lines.append(raw_key + b":" + raw_value)
    return b"\n".join(lines) + b"\n\n" + body + b"\0"


def receipt_frame(receipt: str, version: Version, deleted_messages: int | None = None) -> bytes:
    """Return the RECEIPT that answers ``receipt``.

    That of a deleted queue says how many messages were deleted with it.
    """
    more = b"" if deleted_messages is None else b"deleted-messages:%d\n" % deleted_messages
    return b"RECEIPT\nreceipt-id:%b\n%b\n\0" % (escape(receipt.encode(), version), more)


def error_frame(
    message: str, receipt_id: str | None, version: Version, *, names_versions: bool = False
) -> bytes:
    """Return an ERROR frame: the first line of ``message`` as a header, all of it as the body.

    With ``names_versions`` a ``version`` header lists the versions a client may ask for. The body
    has no NUL: a client that ignores content-length would end the frame there.
    """
    body = message.replace("\0", " ").encode() + b"\n"
    short = message.splitlines()[0][:200] if message else "error"
    headers = [("message", short)]
    if receipt_id is not None:
        headers.append(("receipt-id", receipt_id))
    if names_versions:
        headers.append(("version", ",".join(one.value for one in Version)))
    headers += [("content-type", ERROR_CONTENT_TYPE), ("content-length", str(len(body)))]
    return server_frame("ERROR", headers, body, version)
