"""Names of certificates' subjects, in the form in which they can be compared.

A name is written as Java writes it, ``CN=relay, OU=orders, O="Acme, Inc.", C=DE``, or as RFC 4514
does, ``CN=relay,OU=orders,O=Acme\\, Inc.,C=DE``: the most special part first. Blanks around
``,`` and ``=`` mean nothing, nor do capitals in the names of attributes; those in values do.
"""

import re
from collections.abc import Iterator
from typing import Final, TypeAlias

from cryptography import x509

from orthia.config.errors import ConfigurationError

Parts: TypeAlias = tuple[frozenset[tuple[str, str]], ...]
"""What a name consists of: a part has one attribute with its value, or seldom more."""

_NAMES: Final = {
    "2.5.4.3": "CN",
    "2.5.4.4": "SURNAME",
    "2.5.4.5": "SERIALNUMBER",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "2.5.4.12": "T",
    "2.5.4.42": "GIVENNAME",
    "2.5.4.43": "INITIALS",
    "2.5.4.44": "GENERATION",
    "2.5.4.46": "DNQUALIFIER",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
    "1.2.840.113549.1.9.1": "EMAILADDRESS",
}
"""Java's names of attributes; another one is ``OID.`` and its number."""
_OTHER_NAMES: Final = {"E": "EMAILADDRESS", "EMAIL": "EMAILADDRESS", "S": "ST", "TITLE": "T"}
_ATTRIBUTE: Final = re.compile(" *([A-Za-z][A-Za-z0-9.-]*|[0-9][0-9.]*) *= *")
_HEX: Final = re.compile("[0-9a-fA-F]{2}")
_QUOTED: Final = frozenset(',+"\\<>;=')


def parts_of(name: x509.Name) -> Parts:
    """Return the parts of a certificate's name."""
    return tuple(
        frozenset((_spoken(one.oid.dotted_string), _text(one.value)) for one in part)
        for part in reversed(name.rdns)
    )


def read_name(text: str) -> Parts:
    """Return the parts of a name as it was written; raises ConfigurationError."""
    found: list[frozenset[tuple[str, str]]] = []
    part: set[tuple[str, str]] = set()
    at = 0
    while True:
        matched = _ATTRIBUTE.match(text, at)
        if matched is None:
            raise ConfigurationError(
                f"{text!r} is not the name of a certificate's subject; expected one as"
                " CN=relay, OU=orders, C=DE, or /REGULAR EXPRESSION/"
            )
        value, at = _value(text, matched.end())
        attribute = matched[1].upper()
        if attribute[0].isdigit():
            attribute = f"OID.{attribute}"
        attribute = _NAMES.get(attribute.removeprefix("OID."), attribute)
        part.add((_OTHER_NAMES.get(attribute, attribute), value))
        ending = text[at : at + 1]
        if ending != "+":
            found.append(frozenset(part))
            part = set()
        if not ending:
            return tuple(found)
        at += 1


def written(parts: Parts) -> str:
    """Return a name as Java writes it: what regular expressions are matched with."""
    return ", ".join(
        " + ".join(f"{attribute}={_escaped(value)}" for attribute, value in sorted(part))
        for part in parts
    )


def _spoken(oid: str) -> str:
    return _NAMES.get(oid, f"OID.{oid}")


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else "#" + value.hex()


def _escaped(value: str) -> str:
    if value and not (_QUOTED & {*value}) and value == value.strip(" "):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _value(text: str, at: int) -> tuple[str, int]:
    """Return the value that begins at a place, and where it ends: at ``,``, ``;``, ``+`` or all."""
    found: list[str] = []
    kept = 0
    """Up to where blanks are a part of it."""
    is_quoted = False
    for piece, at, is_literal in _pieces(text, at):  # noqa: B020 - the place goes on
        if piece == '"' and not is_literal:
            is_quoted = not is_quoted
            kept = len(found)
            continue
        if piece in ",;+" and not is_literal and not is_quoted:
            return _joined(found, kept), at - 1
        found.append(piece)
        if is_literal or is_quoted:
            kept = len(found)
    if is_quoted:
        raise ConfigurationError(f'{text!r} has a " that does not end; expected another')
    return _joined(found, kept), len(text)


def _pieces(text: str, at: int) -> Iterator[tuple[str, int, bool]]:
    """Yield characters, the place after each, and whether a backslash made it one."""
    while at < len(text):
        if text[at] != "\\":
            at += 1
            yield text[at - 1], at, False
            continue
        octets = bytearray()
        while text[at : at + 1] == "\\" and _HEX.match(text, at + 1):
            octets.append(int(text[at + 1 : at + 3], 16))
            at += 3
        if octets:
            for one in octets.decode(errors="replace"):
                yield one, at, True
        elif at + 1 < len(text):
            at += 2
            yield text[at - 1], at, True
        else:
            raise ConfigurationError(f"{text!r} ends with a backslash; expected what it is for")


def _joined(found: list[str], kept: int) -> str:
    return "".join(found[:kept]) + "".join(found[kept:]).rstrip(" ")
