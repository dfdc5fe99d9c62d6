# mypyc compiles this module.
"""The message that a row of the outbox makes: its headers are those of a SEND."""

import json
from collections.abc import Callable
from typing import Final

from typing_extensions import override

from orthia.broker.core.api import OutgoingMessage, RowReader
from orthia.broker.core.errors import DestinationRefused
from orthia.broker.core.identity import Principal
from orthia.broker.protocols.stomp.client_frame import Frame
from orthia.broker.protocols.stomp.composite import destinations_of
from orthia.broker.protocols.stomp.encoding import header_lines
from orthia.broker.protocols.stomp.frames import ProtocolError, Version, escape
from orthia.broker.protocols.stomp.management import DESTINATIONS
from orthia.broker.protocols.stomp.send import message_of
from orthia.broker.quoting import quoted
from orthia.config.outbox import (
    KNOWN_HEADERS,
    MAX_BODY_BYTES,
    MAX_DESTINATION_LENGTH,
    REFUSED_HEADERS,
    RESERVED_PREFIXES,
)
from orthia.config.settings import ClientLimits
from orthia.journal.engine.abc import OutboxRow
from orthia.journal.model.message import DEFAULT_PRIORITY

_KNOWN: Final = frozenset(KNOWN_HEADERS)
_REFUSED: Final = frozenset(REFUSED_HEADERS)
_TEMPORARY: Final = ("/temp-queue/", "/temp-topic/")
_MAX_SHOWN_HEADERS: Final = 8_192
_ORIGIN: Final = "_AMQ_ORIG_ADDRESS"
REASON: Final = "dlqDeliveryFailureCause"
"""As Classic calls the reason of a dead letter."""


class OutboxMessages(RowReader):
    """Reads rows."""

    def __init__(self, limits: ClientLimits, time_ms: Callable[[], int]) -> None:
        """``time_ms`` is the clock of due messages."""
        self._limits = limits
        self._time_ms = time_ms

    @override
    def sends(self, row: OutboxRow, principal: Principal) -> list[tuple[str, OutgoingMessage]]:
        if len(row.body) > MAX_BODY_BYTES:
            raise ProtocolError(
                f"the body has {len(row.body)} bytes; expected {MAX_BODY_BYTES} at most: send"
                " larger ones by STOMP"
            )
        destination = row.destination
        if len(destination) > MAX_DESTINATION_LENGTH:
            raise DestinationRefused(
                f"destination {quoted(destination[:300])} goes on; expected"
                f" {MAX_DESTINATION_LENGTH} characters at most"
            )
        if destination.startswith(_TEMPORARY) or destination.encode() in DESTINATIONS:
            raise DestinationRefused(
                f"destination {quoted(destination[:300])} is for connections; expected /queue/NAME,"
                " /topic/NAME or NAME"
            )
        to = destinations_of(destination) or [destination]
        if row.headers is None and len(to) == 1 and principal.validated_user is None:
            message = OutgoingMessage(
                b"",
                row.body,
                True,  # noqa: FBT003 - a field
                0,
                DEFAULT_PRIORITY,
                outbox_row=row.id,
            )
            return [(destination, message)]
        raw = self._raw(row.headers)
        found: list[tuple[str, OutgoingMessage]] = []
        for one in to:
            frame = Frame("SEND", dict(raw), row.body, Version.V1_2)
            address, message = message_of(frame, one, principal, self._time_ms)
            if not found:
                message = message._replace(outbox_row=row.id)
            found.append((address, message))
        return found

    @override
    def dead_letter(self, row: OutboxRow, reason: str) -> OutgoingMessage:
        try:
            raw = self._raw(row.headers)
        except ProtocolError:
            raw = {}
            more = {"orthia-outbox-headers": (row.headers or "")[:_MAX_SHOWN_HEADERS]}
        else:
            more = {}
        more |= {
            _ORIGIN: row.destination,
            REASON: reason,
            "orthia-outbox-id": str(row.id),
        }
        lines = b"".join(b"%b:%b\n" % (name, value) for name, value in raw.items())
        return OutgoingMessage(
            lines + header_lines(more),
            row.body,
            True,  # noqa: FBT003 - a field
            0,
            DEFAULT_PRIORITY,
        )

    def _raw(self, text: str | None) -> dict[bytes, bytes]:
        """Return headers as a frame has them; raises ProtocolError."""
        if text is None or not text.strip():
            return {}
        if len(text) > self._limits.max_header_bytes:
            raise ProtocolError(
                f"the headers have {len(text)} characters; expected max-header-bytes"
                f" {self._limits.max_header_bytes} at most"
            )
        try:
            said = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ProtocolError(f"the headers are no JSON: {error}") from None
        if not isinstance(said, dict):
            raise ProtocolError("the headers are no JSON object")
        if len(said) > self._limits.max_headers:
            raise ProtocolError(
                f"there are {len(said)} headers; expected max-headers {self._limits.max_headers} at"
                " most"
            )
        return {_key(name): _value(name, value) for name, value in said.items()}


def _key(name: str) -> bytes:
    if not name:
        raise ProtocolError("a header has no name")
    if name in _REFUSED:
        raise ProtocolError(f"header {quoted(name)} cannot be set in a row of the outbox")
    if name.startswith(RESERVED_PREFIXES) and name not in _KNOWN:
        raise ProtocolError(f"header {quoted(name[:80])} has a reserved name that is not known")
    return _escaped(name, name, is_key=True)


def _value(name: str, value: object) -> bytes:
    if isinstance(value, bool):
        return b"true" if value else b"false"
    if isinstance(value, int | float):
        return str(value).encode()
    if not isinstance(value, str):
        raise ProtocolError(f"header {quoted(name[:80])} is no text, number or truth value")
    return _escaped(name, value)


def _escaped(name: str, text: str, *, is_key: bool = False) -> bytes:
    if "\0" in text:
        raise ProtocolError(f"header {quoted(name[:80])} has a NUL")
    try:
        raw = text.encode()
    except UnicodeEncodeError:
        raise ProtocolError(f"header {quoted(name[:80])} is no Unicode text") from None
    return escape(raw, Version.V1_2, is_key=is_key)
