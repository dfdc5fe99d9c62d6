"""What text from outside may hold that cannot be written anywhere.

Python gives a byte of the environment or the command line that is no UTF-8 as half a surrogate pair
(PEP 383); whatever encodes it fails.
"""

import codecs
import re
from typing import Final

_NO_UTF8: Final = re.compile("[\udc80-\udcff]")
_NO_XML: Final = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def outside_utf8(text: str) -> str | None:
    """Return what to call the first byte of ``text`` that is no UTF-8; None if all are."""
    found = _NO_UTF8.search(text)
    return None if found is None else f"the byte 0x{ord(found[0]) - 0xDC00:02X}, which is no UTF-8"


def is_unicode(encoding: str | None) -> bool:
    """Return whether every character can be written in ``encoding``; None is that of no bytes."""
    return encoding is None or codecs.lookup(encoding).name.startswith("utf-")


def outside_xml(text: str) -> str | None:
    """Return what to call the first character of ``text`` that no XML can hold; None if it can."""
    found = _NO_XML.search(text)
    if found is None:
        return None
    return outside_utf8(text) or f"the character U+{ord(found[0]):04X}, which no XML can hold"
