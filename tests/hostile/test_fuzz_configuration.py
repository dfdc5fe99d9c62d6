"""Whatever stands in a broker.xml: settings, or an error that says where and what."""

import os
import re
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from orthia import config
from orthia.config.document import MAXIMUM_FILE_BYTES
from tests.hostile.fuzzing import damaged, fuzzed

pytestmark = pytest.mark.extended

_ROOT = Path(__file__).parents[2]
EXAMPLES = [
    (_ROOT / "broker.xml.example").read_bytes(),
    (_ROOT / "tests" / "config" / "artemis-broker.xml").read_bytes(),
]
_PASSWORDS = ("ORTHIA_DB_PASSWORD", "ORTHIA_PRODUCER_PASSWORD", "ORTHIA_CONSUMER_PASSWORD")
TOKENS = (
    b"<", b">", b"</", b"/>", b"&", b"&amp;", b"&lol;", b"&#0;", b"&#x1F600;", b"\0", b"\xff",
    b"${", b"${A}", b"${A:1}", b"-1", b"99999999999999999999999", b"1e9", b"ENC(", b"ENC(1)",
    b'<!DOCTYPE a [<!ENTITY lol "lol">]>', b"<![CDATA[", b"]]>", b"<!--", b"<?xml?>",
    b'<xi:include xmlns:xi="http://www.w3.org/2001/XInclude" href="/etc/passwd"/>',
    b' xmlns="urn:orthia"', b"<core>", b"<name/>", b"tcp://", b"?protocols=STOMP", b":99999",
)  # fmt: skip
TEXTS = st.one_of(
    st.sampled_from(
        "|-1|0|1|true|TRUE|1M|-1M|99999999999999999999|1.5|ANYCAST|*|#|a.*.#|${X}|${X:}|${:}|${|"
        "ENC()|ENC(zz)|ENC(-1)|jdbc:sqlite:x|jdbc:sqlite:|jdbc:postgresql://h:0/d|jdbc:mysql:///d|"
        "jdbc:postgresql://[::1/d|postgresql://u:p@h:x/d|jdbc:derby:x|jdbc:mysql://h/d?sslMode=no|"
        "tcp://h:1?protocols=STOMP|tcp://[::1]:1|tcp://h:x|udp://h|tcp://h:1?connectionsAllowed=x|"
        "tcp://h:1?a;b&c==d%zz%41|\u0661|\u00e9".split("|")
    ),
    st.text(st.characters(codec="utf-8", min_codepoint=32), max_size=40),
    st.integers().map(str),
    st.integers(3_000, 6_000).map(lambda size: "tcp://h:" + "9" * size),
    st.integers(3_000, 6_000).map(lambda size: "jdbc:mysql://h:" + "9" * size + "/d"),
    st.integers(3_000, 6_000).map(lambda size: "ENC(" + "9" * size + ")"),
)


@st.composite
def edited(draw: st.DrawFn) -> bytes:
    """Draw an example whose elements were moved, doubled, removed, or given other texts."""
    root = etree.fromstring(draw(st.sampled_from(EXAMPLES)), etree.XMLParser(remove_comments=True))
    for _ in range(draw(st.integers(1, 4))):
        nodes = [node for node in root.iter() if isinstance(node.tag, str)]
        node, other = draw(st.sampled_from(nodes)), draw(st.sampled_from(nodes))
        try:
            match draw(st.sampled_from("text text attribute remove copy rename empty".split())):
                case "text":
                    node.text = draw(TEXTS)
                case "attribute" if node.attrib:
                    node.set(draw(st.sampled_from(sorted(map(str, node.attrib)))), draw(TEXTS))
                case "remove" if (parent := node.getparent()) is not None:
                    parent.remove(node)
                case "copy":
                    other.append(etree.fromstring(etree.tostring(node)))
                case "rename":
                    node.tag = other.tag
                case _:
                    node.clear()
        except ValueError:  # a text that no XML can hold
            continue
    return etree.tostring(root)


FILES = st.one_of(
    edited(),
    *(damaged(example, TOKENS) for example in EXAMPLES),
    st.binary(max_size=200),
)


def load_or_refuse(path: Path, content: bytes) -> str | None:
    """Load ``content``; return the refusal, whose every line must name the file and a line."""
    path.write_bytes(content)
    try:
        with patch.dict(os.environ, dict.fromkeys(_PASSWORDS, "hunter2")):
            config.load(path)
    except config.ConfigurationError as error:
        refusal = str(error)
    else:
        return None
    for line in refusal.splitlines():
        # One that cannot be blamed on a line is blamed on the file.
        assert re.match(rf"({re.escape(str(path))}|/etc/passwd)(:\d+)?: ", line), line
    assert "hunter2" not in refusal
    assert "root:" not in refusal, "an included file is quoted"
    return refusal


@fuzzed(300)
@given(FILES)
def test_any_file_gives_settings_or_a_located_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    """Never a traceback of something else, never a hang."""
    load_or_refuse(tmp_path_factory.getbasetemp() / "broker.xml", content)


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_examples_themselves_are_accepted(tmp_path: Path, example: bytes) -> None:
    """What the mutations begin with has no problem of its own that would hide others."""
    assert load_or_refuse(tmp_path / "broker.xml", example) is None


BILLION = b"""<?xml version="1.0"?>
<!DOCTYPE configuration [<!ENTITY a "lol"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">]>
<configuration xmlns="urn:activemq"><core xmlns="urn:activemq:core"><name>&b;</name></core>
</configuration>"""


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (BILLION, "has a <!DOCTYPE>"),
        (b"<a>" * 100_000, "nested deeper than"),
        (b"<configuration>" + b" " * MAXIMUM_FILE_BYTES, "is larger than"),
        (b"<a " + b"".join(b'a%d="" ' % n for n in range(100_000)) + b"/>", "attributes"),
        (b"<configuration xmlns='urn:activemq'>" + b"<x/>" * 200_000 + b"</configuration>", "<x>"),
    ],
    ids=["entities", "depth", "size", "attributes", "elements"],
)
def test_a_file_made_to_fill_the_memory_is_refused(
    tmp_path: Path, content: bytes, complaint: str
) -> None:
    """Nothing is expanded, and the refusal comes before the memory is gone."""
    refused = load_or_refuse(tmp_path / "broker.xml", content)
    assert refused is not None
    assert complaint in refused


def test_an_include_that_cannot_be_a_path_is_refused(tmp_path: Path) -> None:
    """A name longer than any file's is an error of its line."""
    include = f'<xi:include xmlns:xi="http://www.w3.org/2001/XInclude" href="{"x" * 5_000}"/>'
    text = f'<configuration xmlns="urn:activemq">{include}</configuration>'
    refused = load_or_refuse(tmp_path / "broker.xml", text.encode())
    assert refused is not None
    assert "<xi:include>" in refused


@pytest.mark.parametrize(
    ("find", "replace"),
    [
        (b"tcp://127.0.0.1:61613", b"tcp://h:" + b"9" * 5_000),
        (b":5432/", b":" + b"9" * 5_000 + b"/"),
    ],
    ids=["acceptor", "database"],
)
def test_a_port_of_thousands_of_digits_is_refused(
    tmp_path: Path, find: bytes, replace: bytes
) -> None:
    """It is a number that Python itself refuses to read."""
    assert find in EXAMPLES[0]
    refused = load_or_refuse(tmp_path / "broker.xml", EXAMPLES[0].replace(find, replace))
    assert refused is not None
