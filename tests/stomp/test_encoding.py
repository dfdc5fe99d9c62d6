"""Header lines: what a stored message of a STOMP client says, and to whom."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orthia.broker.protocols.stomp.encoding import header_lines, headers_map
from tests.journal.test_codec import NAMES


def test_headers_are_unescaped() -> None:
    """A header block is decoded by the rules of STOMP 1.2; the first of repeats counts."""
    block = b"plain:1\nes\\ccaped:a\\nb\\rc\\\\d\nplain:2\nempty:\nwith:colon:inside\n"
    assert headers_map(block) == {
        "plain": "1",
        "es:caped": "a\nb\rc\\d",
        "empty": "",
        "with": "colon:inside",
    }


@pytest.mark.parametrize("block", [b"no colon\n", b"a:\\t\n", b"a:ends\\\n", b"\xff:x\n"])
def test_a_malformed_header_block_is_refused(block: bytes) -> None:
    """What STOMP 1.2 could not have written is not guessed at."""
    with pytest.raises(ValueError, match=r"colon|escape|utf-8"):
        headers_map(block)


@given(st.dictionaries(NAMES.filter(bool), NAMES, max_size=5))
def test_header_lines_are_read_back(headers: dict[str, str]) -> None:
    """Whatever is in a name or a value; a NUL, which STOMP cannot say, is a space."""
    lines = header_lines(headers)
    assert lines.count(b"\n") == len(headers)
    assert not {0, ord("\r")} & set(lines)
    said: dict[str, str] = {}
    for name, value in headers.items():
        said.setdefault(name.replace("\0", " "), value.replace("\0", " "))
    assert headers_map(lines) == said
