"""Frames as bytes: what is written by one side is what the other reads, in every version."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orthia.broker.protocols.stomp.client_frame import Frame
from orthia.broker.protocols.stomp.frames import (
    Version,
    block_for,
    canonical,
    error_frame,
    escape,
    server_frame,
    unescape,
)
from orthia.broker.protocols.stomp.parser import FrameParser
from orthia.config.settings import ClientLimits
from tests.stomp.support import is_trimmed

VERSIONS = st.sampled_from(list(Version))
TEXTS = st.text(st.one_of(st.sampled_from("\\\r\n:cnr"), st.characters(codec="utf-8")), max_size=20)
NAMES = TEXTS.filter(lambda name: bool(name) and not (is_trimmed(name[0]) or is_trimmed(name[-1])))


def parse_one(data: bytes, version: Version) -> Frame:
    """Return the one frame of ``data``."""
    parser = FrameParser(ClientLimits())
    parser.version = version
    (frame,) = parser.feed(data)
    return frame


def expressible(text: str, version: Version, *, is_name: bool = False) -> str:
    """Return ``text`` as ``version`` can say it: what it cannot is a space."""
    text = text.replace("\0", " ")
    if version is not Version.V1_2:
        text = text.replace("\r", " ")
    if version is Version.V1_0:
        text = text.replace("\n", " ")
        text = text.replace(":", " ") if is_name else text
    return text


@given(TEXTS, st.sampled_from([Version.V1_1, Version.V1_2]))
def test_unescaping_undoes_escaping(text: str, version: Version) -> None:
    """And an escaped text has nothing a header's line could break at."""
    text = expressible(text, version)
    escaped = escape(text.encode(), version)
    assert unescape(escaped, version).decode() == text
    assert not {b"\n"[0], b":"[0], b"\r"[0]} & set(escaped)


@given(
    VERSIONS,
    st.sampled_from(["MESSAGE", "RECEIPT", "ERROR"]),
    st.dictionaries(NAMES, TEXTS, max_size=5),
    st.binary(max_size=50),
)
def test_a_servers_frame_is_read_as_it_was_meant(
    version: Version, command: str, headers: dict[str, str], body: bytes
) -> None:
    """Any header that the version can say, and any body."""
    sayable = {
        expressible(key, version, is_name=True): expressible(value, version)
        for key, value in headers.items()
    }
    # Whatever was drawn: the parser goes by it.
    sayable["content-length"] = str(len(body))
    frame = parse_one(server_frame(command, sayable.items(), body, version), version)
    assert frame.command == command
    assert frame.body == body
    assert {key: frame.get(escape(key.encode(), version)) for key in sayable} == sayable


@given(VERSIONS, VERSIONS, st.dictionaries(NAMES, TEXTS, max_size=5))
def test_a_senders_headers_mean_the_same_to_a_receiver(
    sender: Version, receiver: Version, headers: dict[str, str]
) -> None:
    """Whatever the two versions are: the journal's form between them loses nothing."""
    lines = b""
    heard: dict[str, str] = {}
    for key, value in headers.items():
        said_key, said_value = expressible(key, sender, is_name=True), expressible(value, sender)
        name = expressible(said_key, receiver, is_name=True)
        if name not in heard and "content-length" not in (said_key, name):
            heard[name] = expressible(said_value, receiver)
            lines += b"%b:%b\n" % (
                escape(said_key.encode(), sender),
                escape(said_value.encode(), sender),
            )
    sent = parse_one(b"SEND\n" + lines + b"\n\0", sender)
    block = sent.user_headers(frozenset())
    written = b"MESSAGE\n" + block_for(receiver, block) + b"\n\0"
    received = parse_one(written, receiver)
    assert len(received.raw) == len(heard)
    assert {key: received.get(escape(key.encode(), receiver)) for key in heard} == heard


@given(VERSIONS, st.binary(max_size=30))
def test_the_journals_form_never_breaks_a_line(version: Version, value: bytes) -> None:
    """What a client of any version put into a value cannot become a header of its own."""
    raw = value.replace(b"\n", b"")
    if version is not Version.V1_0:
        raw = raw.replace(b"\\", b"")
    assert b"\n" not in canonical(raw, version)


@pytest.mark.parametrize("version", list(Version))
def test_what_a_version_cannot_say_is_a_space(version: Version) -> None:
    """A line end in a header of 1.0, a carriage return in one of 1.1: the frame stays whole."""
    said = {
        Version.V1_0: b"a:b c d",
        Version.V1_1: b"a\\cb\\nc d",
        Version.V1_2: b"a\\cb\\nc\\rd",
    }
    assert escape(b"a:b\nc\rd", version) == said[version]


@pytest.mark.parametrize(
    ("version", "line"),
    [
        (Version.V1_0, b"a b:c d e: f\n"),
        (Version.V1_1, b"a b:c d e\\c f\n"),
        (Version.V1_2, b"a b:c\\rd e\\c\\rf\n"),
    ],
)
def test_lines_of_an_older_journal_are_made_harmless(version: Version, line: bytes) -> None:
    """NUL and bare carriage returns were taken once; no receiver's line or frame ends at them."""
    assert block_for(version, b"a\0b:c\rd\0e\\c\rf\n") == line


@given(VERSIONS, st.booleans(), st.binary(max_size=30))
def test_nothing_a_server_says_breaks_a_frame(version: Version, is_key: bool, raw: bytes) -> None:
    """Ids, names and texts of any origin: no byte of them ends a line or a frame."""
    assert not {0, ord("\n"), ord("\r")} & set(escape(raw, version, is_key=is_key))


def test_a_name_cannot_become_another_header_of_an_older_version() -> None:
    """A colon in a name is nothing 1.0 can say, and must not end the name there."""
    assert block_for(Version.V1_0, b"content-length\\c1:x\n") == b"content-length 1:x\n"


def test_connected_is_not_escaped() -> None:
    """As the specification has it, for the sake of 1.0 clients."""
    frame = server_frame("CONNECTED", [("server", "a:b\\c")], b"", Version.V1_2)
    assert frame == b"CONNECTED\nserver:a:b\\c\n\n\0"


@pytest.mark.parametrize("version", list(Version))
@given(
    message=st.text(st.characters(codec="utf-8"), max_size=500),
    receipt=st.none() | st.text(st.characters(codec="utf-8"), max_size=20),
)
def test_an_error_frame_is_whole_whatever_the_message(
    version: Version, message: str, receipt: str | None
) -> None:
    """The body has all but NULs; the header its first line, shortened; the receipt is named."""
    frame = parse_one(error_frame(message, receipt, version), version)
    assert frame.body.decode() == message.replace("\0", " ") + "\n"
    assert len(frame.get(b"message") or "") <= 200
    assert frame.get(b"content-type") == "text/plain;charset=utf-8"
    sayable = None if receipt is None else expressible(receipt, version)
    assert frame.get(b"receipt-id") == sayable
    assert frame.get(b"version") is None


def test_the_header_of_an_error_is_its_first_line_and_short() -> None:
    """Clients log it; whoever wants all reads the body."""
    frame = parse_one(error_frame("x" * 300 + "\nmore", None, Version.V1_2), Version.V1_2)
    assert frame.get(b"message") == "x" * 200
    assert frame.body == b"x" * 300 + b"\nmore\n"
