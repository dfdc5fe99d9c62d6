"""Templates, and how what clients wrote is shown: as text, whatever it is.

A name, a header or a body may hold markup, control characters, marks that turn the direction of
the text around them, or a megabyte. Markup is escaped by Jinja; the others are shown by their codes
or cut, so that what an operator reads is what is there.
"""

import json
import re
from binascii import crc32
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from http import HTTPStatus
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import Response

from orthia.broker.management.http.console.sparklines import sparkline

MOST_SHOWN: Final = 300
"""Characters of a name, and of a header in a list."""
MOST_OF_A_PROPERTY: Final = 4_096
MOST_OF_A_BODY: Final = 65_536
"""Bytes of a body that are shown as text; a quarter of it as hexadecimal digits."""
SECURITY: Final = {
    "cache-control": "no-store",
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
        " connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "cross-origin-opener-policy": "same-origin",
    # With none at all a browser would name no origin of a form, and a form without is refused.
    "referrer-policy": "same-origin",
}
_HIDDEN: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u115f\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\ufff0-\ufffb\ud800-\udfff\U000e0000-\U000e0fff]"
)
"""What is not seen, or changes how other characters are."""
_HIDDEN_IN_TEXT: Final = re.compile(f"(?![\n\t]){_HIDDEN.pattern}")
_UNITS: Final = ("KiB", "MiB", "GiB", "TiB")
_BYTES_OF_A_LINE: Final = 16


class BodyShown(NamedTuple):
    """A body as it is shown."""

    form: str
    """``text``, ``json`` or ``hex``."""
    text: str
    note: str
    """What is to be said of it; "" for nothing."""


def visible(value: object, most: int = MOST_SHOWN) -> str:
    """Return a text in one line, with the codes of what is not seen, cut if it is long."""
    text = str(value)
    shown = _HIDDEN.sub(_code, text[:most])
    return shown if len(text) <= most else f"{shown}… ({len(text):,} characters)"


def _code(found: re.Match[str]) -> str:
    number = ord(found.group())
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"


def size(number: int) -> str:
    """Return bytes in the unit that is easiest to read."""
    if number < 1024:
        return f"{number} B"
    scaled = float(number)
    for unit in _UNITS:
        scaled /= 1024
        if scaled < 1024 or unit == _UNITS[-1]:
            break
    return f"{scaled:,.1f} {unit}"


def count(number: int | None) -> str:
    """Return a number with commas, or a dash for none."""
    return "-" if number is None else f"{number:,}"


def time(milliseconds: int | None) -> str:
    """Return a time in UTC, to the second; a dash for none."""
    if not milliseconds:
        return "-"
    try:
        return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%d %H:%M:%S}"
    except (OverflowError, ValueError, OSError):
        return f"{milliseconds:,} ms"


def moment(at: datetime) -> str:
    """Return a time in UTC, to the millisecond, as those of a takeover are compared."""
    utc = at.astimezone(UTC)
    return f"{utc:%Y-%m-%d %H:%M:%S}.{utc.microsecond // 1000:03d}"


def identifier(text: str) -> str:
    """Return what a browser keeps the focus by when a row comes anew."""
    return f"i{crc32(text.encode(errors='replace')):08x}"


def link(path: str, **query: object) -> str:
    """Return the address of a page of the console; what is empty is left out."""
    given = {name: value for name, value in query.items() if value not in (None, "", False)}
    encoded = urlencode(given, encoding="utf-8", errors="replace")
    return f"/console/{path}" + (f"?{encoded}" if encoded else "")


def body_shown(body: bytes, form: str) -> BodyShown:
    """Return a body in a form; in another, with a note, if it is not of that form."""
    cut = ""
    if form == "json":
        try:
            pretty = json.dumps(json.loads(body), indent=2, ensure_ascii=False)
        except (ValueError, RecursionError):
            shown = body_shown(body, "text")
            return shown._replace(note=f"It is not JSON. {shown.note}".strip())
        if len(pretty) > MOST_OF_A_BODY:
            cut = f"The first {MOST_OF_A_BODY:,} of {len(pretty):,} characters."
        return BodyShown("json", _in_lines(pretty[:MOST_OF_A_BODY]), cut)
    most = MOST_OF_A_BODY if form == "text" else MOST_OF_A_BODY // 4
    if len(body) > most:
        cut = f"The first {most:,} of {len(body):,} bytes."
    if form == "text":
        try:
            body.decode()
        except UnicodeDecodeError:
            shown = body_shown(body, "hex")
            return shown._replace(note=f"It is no UTF-8 text. {shown.note}".strip())
        return BodyShown("text", _in_lines(body[:most].decode(errors="ignore")), cut)
    return BodyShown("hex", _hexadecimal(body[:most]), cut)


def _in_lines(text: str) -> str:
    return _HIDDEN_IN_TEXT.sub(_code, text.replace("\r\n", "\n"))


def _hexadecimal(data: bytes) -> str:
    lines = []
    for start in range(0, len(data), _BYTES_OF_A_LINE):
        part = data[start : start + _BYTES_OF_A_LINE]
        text = "".join(chr(one) if 0x20 <= one < 0x7F else "." for one in part)
        lines.append(f"{start:08x}  {part.hex(' '):<47}  {text}")
    return "\n".join(lines)


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("orthia.broker.management.http.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "visible": visible,
        "size": size,
        "count": count,
        "time": time,
        "moment": moment,
        "identifier": identifier,
    }
    environment.filters["sparkline"] = sparkline
    environment.globals["link"] = link
    return environment


_TEMPLATES: Final = _environment()


@dataclass(frozen=True)
class Page:
    """A page of the console."""

    template: str
    values: Mapping[str, Any]
    status: HTTPStatus = HTTPStatus.OK
    headers: Mapping[str, str] = field(default_factory=dict)

    def response(self) -> Response:
        """Return the whole page."""
        text = _TEMPLATES.get_template(self.template).render(self.values)
        data = text.encode(errors="replace")
        return Response(data, self.status, {**SECURITY, **self.headers}, media_type="text/html")

    @cached_property
    def update(self) -> bytes:
        """The event that brings the part of it that follows what happens."""
        text = _TEMPLATES.get_template(f"live_{self.template}").render(self.values)
        return event("update", text)


def event(name: str, text: str) -> bytes:
    """Return a server-sent event whose data is ``text``."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    whole = "".join((f"event: {name}\n", *(f"data: {one}\n" for one in lines), "\n"))
    return whole.encode(errors="replace")
