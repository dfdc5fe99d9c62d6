"""Header lines: what a stored message of a STOMP client says, and to whom."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orthia.broker.protocols import encodings as _encodings  # noqa: F401 - which read heads
from orthia.broker.protocols.stomp.encoding import (
    StompEncoding,
    head_for,
    header_lines,
    headers_map,
)
from orthia.config.address_settings import RoutingType
from orthia.journal.model.encodings import NO_HEAD
from orthia.journal.model.fields import Fields, encode_fields
from tests.journal.test_codec import EXAMPLE, NAMES


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


def test_a_stomp_message_goes_to_a_stomp_client_as_it_was_sent() -> None:
    """Byte for byte, repeated headers and strange escapes included."""
    head = b"a:1\na:2\nodd:\\t\nexpires:5\npriority:9\n"
    assert head_for(EXAMPLE._replace(head=head)) is head


@pytest.mark.parametrize("around", ["", " ", "\0", "\n", "\r"])
def test_no_property_is_taken_for_a_header_of_the_frame(around: str) -> None:
    """With a content-length of its sender's, a body would be read as further frames."""
    properties = {
        f"{name}{around}": "0"
        for name in ("content-length", "destination", "message-id", "subscription", "ack")
    }
    stated = encode_fields(Fields(properties={**properties, "colour": "red"}))
    message = EXAMPLE._replace(head=b"", encoding=NO_HEAD, stated=stated, expires_ms=0, priority=4)
    assert head_for(message) == b"colour:red\n"


def test_what_the_broker_states_of_it_follows() -> None:
    """A property that the head has too is said once."""
    stated = encode_fields(Fields(group="g", properties={"co:lour": "blue", "n": 1}))
    message = EXAMPLE._replace(head=b"a:b\nco\\clour:red\n", stated=stated)
    assert head_for(message) == b"a:b\nco\\clour:blue\nn:1\n"


def test_a_message_of_no_protocol_goes_to_a_stomp_client() -> None:
    """All it says is in headers, under the names that Artemis gives them."""
    fields = Fields(
        id="m",
        routing_type=RoutingType.ANYCAST,
        durable=False,
        delivery_ms=7,
        group="g",
        duplicate_id="d",
        correlation_id="c",
        reply_to="r",
        content_type="text/plain",
        user_id="ann",
        subject="t",
        properties={"t": "a\nb", "n": -1, "x": 0.5, "yes": True, "b": b"\0\xff"},
    )
    message = EXAMPLE._replace(
        head=b"", encoding=NO_HEAD, stated=encode_fields(fields), expires_ms=9, priority=5
    )
    assert headers_map(head_for(message)) == {
        "t": "a\nb",
        "n": "-1",
        "x": "0.5",
        "yes": "true",
        "b": "00ff",
        "content-type": "text/plain",
        "correlation-id": "c",
        "reply-to": "r",
        "JMSXGroupID": "g",
        "_AMQ_DUPL_ID": "d",
        "JMSXUserID": "ann",
        "destination-type": "ANYCAST",
        "persistent": "false",
        "expires": "9",
        "priority": "5",
        "_AMQ_SCHED_DELIVERY": "7",
        "JMSMessageID": "m",
        "type": "t",
    }
    nothing = EXAMPLE._replace(head=b"", encoding=NO_HEAD)
    assert head_for(nothing) == b""


def test_fields_are_read_of_headers() -> None:
    """The standard ones have fields of their own; the rest are properties, all of them texts."""
    head = header_lines(
        {
            "content-type": "text/plain",
            "correlation-id": "c",
            "reply-to": "/queue/r",
            "persistent": "false",
            "destination-type": "multicast",
            "_AMQ_GROUP_ID": "g",
            "_AMQ_DUPL_ID": "d",
            "_AMQ_VALIDATED_USER": "ann",
            "type": "t",
            "n": "1",
        }
    )
    assert EXAMPLE._replace(head=head).fields() == Fields(
        routing_type=RoutingType.MULTICAST,
        durable=False,
        group="g",
        duplicate_id="d",
        correlation_id="c",
        reply_to="/queue/r",
        content_type="text/plain",
        user_id="ann",
        subject="t",
        properties={"destination-type": "multicast", "n": "1"},
    )


@pytest.mark.parametrize("said", ["false", "False", " FALSE "])
def test_what_is_not_stored_is_not_said_to_be(said: str) -> None:
    """Fields and selectors read ``persistent`` as the broker did that took it."""
    head = header_lines({"persistent": said})
    assert StompEncoding().fields(head).durable is False
    assert StompEncoding().properties(head)["JMSDeliveryMode"] == "NON_PERSISTENT"
