"""Selectors: what they say of messages, what is refused and where, and what that may cost."""

import gc
import time
import tracemalloc
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orthia.broker.core.selectors import SelectorRefused, parse, parsing
from orthia.broker.core.selectors.like import like
from orthia.broker.core.selectors.selector import MAX_LENGTH, SelectorCache
from orthia.broker.protocols import encodings as _encodings  # noqa: F401 - which read heads
from orthia.journal.model.encodings import NO_HEAD
from orthia.journal.model.fields import Fields, Property, encode_fields
from orthia.journal.model.message import Message


def typed(**properties: Property) -> Message:
    """Return a message of no protocol, whose properties have the types they have."""
    return stated(Fields(properties=properties))


def stated(fields: Fields) -> Message:
    """Return a message of no protocol that says something."""
    return Message("orders", b"", b"text", 1_000, 0, 4, None, NO_HEAD, encode_fields(fields))


def stomp(head: bytes, *, priority: int = 4, expires_ms: int = 0) -> Message:
    """Return a message with STOMP's header lines."""
    return Message("orders", head, b"12345", 1_000, expires_ms, priority)


JAMES = typed(
    name="James", location="London", byteProp=123, floatProp=123.0, rank=123, version=2,
    quote="'In God We Trust'", foo="_foo", punctuation="!#$&()*+,-./:;<=>?@[\\]^`{|}~",
    endingUnderScore="XD7xlJIQn_", trueProp=True, falseProp=False, **{"a.test": "value"},
)  # fmt: skip
ARTEMIS_FACTS = [
    ("(trueProp OR falseProp) AND trueProp", True),
    ("(trueProp OR falseProp) AND falseProp", False),
    ("(falseProp OR falseProp OR falseProp OR trueProp)", True),
    ("(trueProp AND trueProp AND trueProp AND falseProp)", False),
    ("\"a.test\" = 'value'", True),
    ("name = 'James'", True),
    ("rank > 100", True),
    ("rank >= 123", True),
    ("rank >= 124", False),
    ("byteProp = 123", True),
    ("byteProp = 10", False),
    ("floatProp = 123", True),
    ("name = 'James' and rank < 200", True),
    ("name = 'James' and rank > 200", False),
    ("unknown = 'Foo' and anotherUnknown < 200", False),
    ("name = 'Foo' or rank < 200", True),
    ("unknown = 'Foo' or anotherUnknown < 200", False),
    ("rank + 2 = 125", True),
    ("125 = (rank + 2)", True),
    ("rank + version = 125", True),
    ("rank + 2 < 124", False),
    ("name + '!' = 'James!'", True),
    ("rank - version = 121", True),
    ("rank - 2 > 122", False),
    ("rank * version = 246", True),
    ("rank * 2 < 130", False),
    ("rank / version = 61.5", True),
    ("rank / 3 > 100", False),
    ("version / 2 = 1", True),
    ("rank between 100 and 150", True),
    ("rank between 10 and 120", False),
    ("name in ('Gromit', 'Bob', 'James')", True),
    ("name in ('Gromit', 'Bob', 'Cheddar')", False),
    ("name not in ('Gromit', 'Bob', 'Cheddar')", True),
    ("dummy is null", True),
    ("dummy is not null", False),
    ("name is not null", True),
    ("name is null", False),
    ("Command NOT IN ('MirrorLobbyRequest', 'MirrorLobbyReply')", False),
    ("1.0 < 1.1", True),
    ("-1.1E1 < 1.0E1", True),
    ("1. < 1.1", True),
    ("-1.1E1 < 1.E1", True),
    ("-.5E1 < .1E1", True),
    ("4E+10 < 5E+10", True),
    ("4E-10 < 5E-10", True),
    ("quote = '''In God We Trust'''", True),
    ("quote LIKE '''In G_d We Trust'''", True),
    ("quote NOT LIKE '''In Gd_ We Trust'''", True),
    ("foo LIKE '%oo'", True),
    ("foo LIKE '%ar'", False),
    ("foo LIKE '!_%' ESCAPE '!'", True),
    ("quote LIKE '!_%' ESCAPE '!'", False),
    ("punctuation LIKE '!#$&()*+,-./:;<=>?@[\\]^`{|}~'", True),
    ("foo LIKE '%_%' ESCAPE '%'", True),
    ("endingUnderScore LIKE '_D7xlJIQn$_' ESCAPE '$'", True),
    ("endingUnderScore LIKE '_D7xlJIQn__' ESCAPE '_'", True),
    ("endingUnderScore LIKE '%D7xlJIQn%_' ESCAPE '%'", True),
    ("endingUnderScore LIKE '%D7xlJIQn%'  ESCAPE '%'", True),
    ("endingUnderScore LIKE '%D7xlJIQn%%'  ESCAPE '%'", False),
    ("endingUnderScore LIKE '%D7xlJIQn\\_' ESCAPE '\\'", True),
]


@pytest.mark.parametrize(("text", "expected"), ARTEMIS_FACTS)
def test_it_says_what_artemis_says(text: str, expected: bool) -> None:
    """The facts of Artemis' own tests of its selectors."""
    assert parse(text).matches(JAMES) is expected


UNKNOWN = [
    *("unknown = 0", "unknown > 0", "unknown >= 0", "unknown < 0", "unknown <= 0", "unknown <> 0"),
    *("unknown LIKE 'zero'", "unknown NOT LIKE 'zero'", "unknown IN ('zero')"),
    *("unknown NOT IN ('zero')", "unknown BETWEEN 1 AND 2", "unknown NOT BETWEEN 1 AND 2"),
    *("-unknown = 0", "+unknown = 0", "unknown * 2 = 0", "unknown / 2 = 0", "unknown + 2 = 0"),
    *("unknown", "trueProp AND unknown", "falseProp OR unknown", "unknown OR unknown"),
    *("unknown = alsoUnknown", "rank = unknown", "name * 2 = 0", "rank IN ('123')"),
]


@pytest.mark.parametrize("text", UNKNOWN)
def test_what_is_unknown_is_neither_true_nor_false(text: str) -> None:
    """Three-valued: NOT makes nothing known."""
    assert not parse(text).matches(JAMES)
    assert not parse(f"NOT ({text})").matches(JAMES)


@pytest.mark.parametrize(
    "text",
    [
        *("falseProp AND unknown", "unknown AND falseProp", "name IS NULL", "rank = 'James'"),
        *("trueProp = 1", "rank LIKE '1%'", "no_convert_string_expressions:name = 5"),
    ],
)
def test_what_is_false_is_true_negated(text: str) -> None:
    """Also what compares values that are not of a kind, as JMS says."""
    assert not parse(text).matches(JAMES)
    prefix, colon, rest = text.rpartition(":")
    assert parse(f"{prefix}{colon}NOT ({rest})").matches(JAMES)


def test_not_takes_all_of_a_comparison() -> None:
    """As in SQL-92; in Artemis it takes the next operand."""
    assert parse("NOT rank = 5").matches(JAMES)
    assert parse("NOT NOT rank = 123 AND NOT name LIKE 'B%'").matches(JAMES)


HEADERS = stomp(
    b"rank:123\nweight: 1.5e2\nurgent:true\nnot-a-name:1\ntype:order\ncorrelation-id:c-1\n"
    b"reply-to:/queue/answers\npersistent:false\nJMSXGroupID:g\nJMSMessageID:ID:7\n",
    priority=7,
    expires_ms=5,
)


@pytest.mark.parametrize(
    "text",
    [
        *("rank > 100", "rank = '123'", "rank + 2 = 125", "2 + rank = 125", "rank / 2 = 61.5"),
        *("weight BETWEEN 149 AND 151", "urgent", "urgent = TRUE", "NOT (urgent = FALSE)"),
        "convert_string_expressions:rank > 100",
        "hyphenated_props:not-a-name = 1",
        "convert_string_expressions:hyphenated_props:not-a-name < 2",
        "\"not-a-name\" = '1'",
    ],
)
def test_headers_of_stomp_are_read_as_numbers_where_numbers_are_meant(text: str) -> None:
    """All that a STOMP client sends are texts: as Classic does it for its STOMP clients."""
    assert parse(text).matches(HEADERS)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *(("rank BETWEEN 123 AND 124", True), ("rank BETWEEN 122 AND 123", True)),
        *(("rank BETWEEN 124 AND 125", False), ("rank BETWEEN 121 AND 122", False)),
        *(("rank NOT BETWEEN 123 AND 124", False), ("rank NOT BETWEEN 122 AND 123", False)),
    ],
)
def test_between_has_both_its_ends(text: str, expected: bool) -> None:
    """And NOT BETWEEN neither."""
    assert parse(text).matches(HEADERS) is expected


@pytest.mark.parametrize(
    ("value", "expected"), [("50!", True), ("50!!", False), ("50x", False), ("50", False)]
)
def test_an_escape_before_itself_is_that_character(value: str, expected: bool) -> None:
    """Once, and nothing else."""
    record = stomp(f"share:{value}\n".encode())
    assert parse("share LIKE '%!!' ESCAPE '!' AND share LIKE '50_'").matches(record) is expected


@pytest.mark.parametrize("text", ["rank > 100", "urgent", "urgent = TRUE", "rank = 123"])
def test_a_client_may_have_texts_left_what_they_are(text: str) -> None:
    """As Artemis does unless told otherwise."""
    assert not parse(f"no_convert_string_expressions:{text}").matches(HEADERS)


@pytest.mark.parametrize(
    "text",
    [
        *("AMQPriority = 7", "JMSPriority > 6", "AMQTimestamp = 1000", "JMSTimestamp = 1000"),
        *("AMQExpiration = 5", "JMSExpiration = 5", "AMQAddress = 'orders'", "AMQSize > 100"),
        *("AMQDurable = 'NON_DURABLE'", "JMSDeliveryMode = 'NON_PERSISTENT'"),
        *("JMSType = 'order'", "JMSCorrelationID = 'c-1'", "JMSReplyTo = '/queue/answers'"),
        *("AMQGroupID = 'g'", "JMSXGroupID = 'g'", "_AMQ_GROUP_ID = 'g'"),
        *("AMQUserID = 'ID:7'", "JMSMessageID = 'ID:7'"),
    ],
)
def test_the_names_of_jms_and_artemis(text: str) -> None:
    """What a message says of itself, whatever its protocol calls it."""
    assert parse(text).matches(HEADERS)


def test_the_same_names_for_a_message_of_another_protocol() -> None:
    """What is stated counts as what a head says."""
    message = stated(Fields(id="ID:1", group="g", correlation_id="c", durable=False))
    for text in ("AMQUserID = 'ID:1'", "AMQGroupID = 'g'", "JMSCorrelationID = 'c'"):
        assert parse(f"{text} AND AMQDurable = 'NON_DURABLE'").matches(message)
    assert parse("AMQDurable = 'DURABLE' AND AMQUserID IS NULL").matches(typed())


def test_a_head_that_cannot_be_read_says_nothing() -> None:
    """Its message stays where it is, and whoever wants messages that say nothing gets it."""
    assert not parse("rank = 1").matches(stomp(b"no colon\n"))
    assert parse("rank IS NULL").matches(stomp(b"no colon\n"))


@pytest.mark.parametrize(
    "text",
    [
        "rank = 0x7B",
        "rank = 0X7b",
        "rank = 123L",
        "rank = 0173",
        "rank = 123.0d",
        "rank--a comment\n= 123",
        "rank /* here * / too */ = 123",
        "rank\t=\r\n123",
        "rank --122 = 245",
        "rank = 5 OR 1 / 0 > 100 AND NOT (0 / 0 = 0 / 0)",
        "rank % 100 = 23",
        "9223372036854775807 + 1 = 9223372036854775808",
        "(trueProp = (rank = 123)) = TRUE",
        "notable IS NULL AND island IS NULL AND order$ IS NULL",
    ],
)
def test_literals_and_blanks(text: str) -> None:
    """As Java writes numbers; comments are blanks."""
    assert parse(text).matches(JAMES)


@pytest.mark.parametrize(
    ("text", "column", "problem"),
    [
        ("3+5", 1, "a condition is expected"),
        ("True AND 3+5", 10, "a condition is expected"),
        ("=TEST 'test'", 1, "'=' is not expected"),
        ("prop1 = prop2 foo AND string = 'Test'", 15, "'foo' is not expected"),
        ("a = 1 AMD  b = 2", 7, "'AMD' is not expected"),
        ("a = 1)", 6, "')' is not expected"),
        ("a = ", 5, "ends too early"),
        ("a = 'x", 5, "never closed"),
        ("a > 'x'", 5, "compares numbers"),
        ("a < TRUE", 5, "compares numbers"),
        ("a = NULL", 5, "not expected"),
        ("a = 1\n AND #", 12, "'#' cannot be read"),
        ("a LIKE 'x' ESCAPE 'ab'", 19, "one character"),
        ("'a' IN ('b')", 1, "name of a property"),
        ("a IN (1)", 7, "not expected"),
        ("1 + TRUE = 2", 5, "is a condition"),
        ("a = 09", 5, "octal"),
        (f"a = {'9' * 50}", 5, "too long"),
        ("hyphenated_props:a-b = #", 24, "cannot be read"),
        ("hyphenated_props:no_convert_string_expressions:1", 48, "a condition is expected"),
        ("XPATH '//a'", 1, "not supported"),
        ("a BETWEEN 1 OR 2", 13, "not expected"),
        ("a.b = 1", 2, "cannot be read"),
        ("NOT " * 150 + "a", None, "within one another"),
        ("((1+" * 150 + "1" + "))" * 150 + " = 1", None, "within one another"),
    ],
)
def test_what_is_wrong_is_said_with_its_column(text: str, column: int | None, problem: str) -> None:
    """Counted from 1, in all that was given."""
    with pytest.raises(SelectorRefused, match="the selector is refused") as caught:
        parse(text)
    assert problem in str(caught.value)
    if column is not None:
        assert caught.value.column == column
        assert f"at column {column}:" in str(caught.value)


def test_an_empty_or_endless_selector_is_refused() -> None:
    """There is no column to name."""
    for text in ("", "  ", "hyphenated_props: "):
        with pytest.raises(SelectorRefused, match="empty"):
            parse(text)
    with pytest.raises(SelectorRefused, match=f"may have {MAX_LENGTH}"):
        parse(" " * MAX_LENGTH + "a")


@pytest.mark.parametrize(
    "text",
    [
        " OR ".join(f"a{number}" for number in range(500)),
        "1" + "+1" * 2_000 + " = 2001",
        "a LIKE '" + "_%" * 2_000 + "x'",
        "a LIKE '%" + "_a" * 1_900 + "x%'",
        "a LIKE '%" + "a%" * 1_900 + "x'",
        "(" * 1_900 + "a" + ")" * 1_900,
        "- " * 90 + "a = 1",
        "a IN (" + ",".join(f"'{number}'" for number in range(400)) + ")",
        "b /* " + "*" * 4_000,
        "b " + "--" * 2_000,
    ],
)
def test_no_selector_takes_long(text: str) -> None:
    """The longest there are, against a long header: far less than a heart-beat."""
    message = stomp(b"a:" + b"a" * 4_000 + b"\n")
    began = time.process_time()
    try:
        selector = parse(text)
    except SelectorRefused:
        pass
    else:
        selector.matches(message)
    assert time.process_time() - began < 10


@pytest.mark.parametrize(
    "text",
    [
        " OR ".join(["a LIKE '%_b%'"] * 220),
        " OR ".join(["a LIKE '%" + "a" * 50 + "b%'"] * 60),
        "+".join(["a"] * 2_000) + " = 'b'",
        " OR ".join(["a"] * 800),
        " OR ".join(["a > 1"] * 400),
    ],
)
def test_no_selector_that_names_a_long_header_often_takes_long(text: str) -> None:
    """The header is searched, or put together, so far and no farther, however often it is named."""
    selector = parse(text)
    # So long that to search it each time takes far more than any machine needs for the rest.
    message = stomp(b"a:" + b"a" * 1_000_000 + b"\n")
    began = time.process_time()
    assert not selector.matches(message)
    assert time.process_time() - began < 10


def test_a_header_that_is_nearly_a_number_is_read_once() -> None:
    """However it ends: what was read is not gone back over, nor read for each condition anew."""
    selector = parse(" OR ".join(["a > 1"] * 400))
    almost = "1" * 308 + "." + "1" * 308 + "e1x"
    messages = [stomp(f"a:{almost}{'x' * number}\n".encode()) for number in range(100)]
    began = time.process_time()
    assert not any(selector.matches(one) for one in messages)
    assert time.process_time() - began < 10


def test_a_selector_knows_how_many_operations_it_does() -> None:
    """What a match costs is in proportion, and is counted by that."""
    few, many = parse("a = 1"), parse(" OR ".join(["a = 1"] * 100))
    assert 90 * few.operations < many.operations < 110 * few.operations


def test_parsed_selectors_are_shared_and_bounded() -> None:
    """Equal texts are parsed once while any is in use; of others the last ones are kept."""
    cache = SelectorCache(most_bytes=10_000)
    used = cache.get("a = 1")
    unused = weakref.ref(cache.get("a = 2"))
    assert cache.get("a = 2") is unused()
    for number in range(100):
        cache.get(f"a = {number + 3}")
    assert cache.bytes <= 10_000
    assert cache.get("a = 1") is used
    gc.collect()
    assert unused() is None
    with pytest.raises(SelectorRefused):
        cache.get("a =")


def test_what_would_be_searched_too_long_is_unknown() -> None:
    """It is neither true nor false; whatever else is asked of the message counts."""
    long = stomp(b"a:" + b"a" * 20_000 + b"\nb:c\n")
    assert not parse("a LIKE '%a%'").matches(long)
    assert not parse("a NOT LIKE '%a%'").matches(long)
    assert parse("a LIKE '%a%' OR b = 'c'").matches(long)
    assert parse("(a + a) IS NULL").matches(long)
    assert parse("a LIKE '%a%'").matches(stomp(b"a:" + b"a" * 4_000 + b"\n"))


def test_equal_selectors_are_one() -> None:
    """So that what reads for one reads for the other."""
    assert parse("a = 1") == parse("a = 1")
    assert len({parse("a = 1"), parse("a = 1"), parse("a = 2")}) == 2


def seconds_to_read(text: str) -> float:
    """Return what it takes of a processor to read a selector, at best."""

    def once() -> float:
        began = time.thread_time()
        with suppress(SelectorRefused):
            parse(text)
        return time.thread_time() - began

    return min(once() for _ in range(5))


def test_signs_in_a_row_take_a_time_in_proportion() -> None:
    """Two of them could begin a comment, whose end is not looked for again at each."""
    signs = MAX_LENGTH // 2 - 4
    assert seconds_to_read("a = " + "-" * signs) < 8 * seconds_to_read("a = " + "- " * signs)


@pytest.mark.parametrize("before", ["-", "NOT ", "("])
def test_what_stands_before_a_value_is_read_in_steps(before: str) -> None:
    """Others have their turn, however much of it there is."""
    steps = parsing(before * 1_000)
    count = 0
    with suppress(SelectorRefused):
        for _ in steps:
            count += 1
    assert count > 10


@pytest.mark.parametrize(
    "text",
    [
        "a LIKE '%_" + "".join(map(chr, range(0x4E00, 0x4E00 + 4_000))) + "%'",
        "a LIKE '_" + "".join(map(chr, range(0x4E00, 0x4E00 + 4_000))) + "'",
        "a LIKE '%" + "_%".join(map(chr, range(0x4E00, 0x4E00 + 1_300))) + "'",
        "a LIKE '%" + "_".join(map(chr, range(0x4E00, 0x4E00 + 2_000))) + "%'",
        "a LIKE '%_" + "".join(map(chr, range(0x4E00, 0x4E00 + 60))) * 60 + "%'",
        " OR ".join(f"a{number}" for number in range(500)),
    ],
    ids=["find", "start", "many runs", "many wildcards", "few characters", "names"],
)
def test_a_selector_takes_no_more_memory_than_its_client_is_charged(text: str) -> None:
    """Also once it was matched; max-client-bytes would bound nothing otherwise."""
    message = stomp(b"a:" + b"\xe4\xb8\x80" * 4_000 + b"\n")
    parse("b LIKE '_' OR b = 1").matches(message)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        selector = parse(text)
        selector.matches(message)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 100 * len(selector.text)


# --- against a reference that is slow and plain


def is_like(text: str, pattern: str, escape: str | None) -> bool:
    """Return whether a text is LIKE a pattern, by trying all there is."""
    reachable = {0}
    index = 0
    while index < len(pattern):
        one, two = pattern[index], pattern[index + 1 : index + 2]
        index += 1
        if one == escape and two and two in ("%", "_", escape):
            index += 1
            reachable = {at + 1 for at in reachable if text[at : at + 1] == two}
        elif one == "%":
            reachable = {later for at in reachable for later in range(at, len(text) + 1)}
        elif one == "_":
            reachable = {at + 1 for at in reachable if at < len(text)}
        else:
            reachable = {at + 1 for at in reachable if text[at : at + 1] == one}
    return len(text) in reachable


FEW = st.text("ab%_\n", max_size=8)


@given(text=FEW, pattern=FEW, escape=st.sampled_from([None, "a", "%", "_", "!"]))
def test_like_is_what_trying_all_finds(text: str, pattern: str, escape: str | None) -> None:
    """Every pattern, also those whose escape is a wildcard itself."""
    assert like(pattern, escape)(text) is is_like(text, pattern, escape)


Known = str | float | bool | None
"""What a reference finds; integers are floats here, which are exact for the few there are."""
VALUES: dict[str, Known] = {"i": 3, "j": -2, "t": "ab", "u": "b", "y": True, "n": False, "x": None}
SUBJECT = typed(**{name: value for name, value in VALUES.items() if value is not None})


@dataclass
class Part:
    """A part of a selector, as it is written and what it is."""

    text: str
    value: Known


def relation(sign: str, left: Known, right: Known) -> bool | None:
    """Return whether two values are in a relation."""
    if left is None or right is None:
        return None
    kinds = [str if isinstance(one, str) else bool if isinstance(one, bool) else float
             for one in (left, right)]  # fmt: skip
    alike = kinds[0] is kinds[1]
    if sign in ("=", "<>"):
        return (alike and left == right) is (sign == "=")
    assert isinstance(left, int | float)
    assert isinstance(right, int | float)
    answers: dict[str, Callable[[], bool]] = {
        "<": lambda: left < right,
        ">": lambda: left > right,
        "<=": lambda: left <= right,
        ">=": lambda: left >= right,
    }
    return alike and answers[sign]()


def negated(value: Known) -> Known:
    """Return NOT a condition."""
    return None if value is None else not value


def both(left: Known, right: Known) -> Known:
    """Return left AND right."""
    if left is False or right is False:
        return False
    return None if left is None or right is None else True


NUMBERS = st.one_of(
    st.sampled_from([Part(name, VALUES[name]) for name in ("i", "j", "x")]),
    st.integers(0, 9).map(lambda number: Part(str(number), number)),
    st.sampled_from([Part("0.5", 0.5), Part("1e1", 10.0), Part("0x1F", 31)]),
)


def computed(parts: tuple[Part, str, Part]) -> Part:
    """Return what two numbers make."""
    left, sign, right = parts
    text = f"({left.text} {sign} {right.text})"
    if left.value is None or right.value is None:
        return Part(text, None)
    assert not isinstance(left.value, str)
    assert not isinstance(right.value, str)
    made = {"+": left.value + right.value, "-": left.value - right.value}
    return Part(text, made.get(sign, left.value * right.value))


ARITHMETIC = st.recursive(
    NUMBERS,
    lambda parts: (
        st.tuples(parts, st.sampled_from("+-*"), parts).map(computed)
        | parts.map(lambda one: Part(f"- {one.text}", None if one.value is None else -one.value))
    ),
    max_leaves=4,
)
TEXTS = st.one_of(
    st.sampled_from([Part(name, VALUES[name]) for name in ("t", "u", "x")]),
    st.sampled_from([Part("'ab'", "ab"), Part("'b'", "b"), Part("''''", "'")]),
)
ORDERS = st.sampled_from(["=", "<>", "<", ">", "<=", ">="])


def compared(parts: tuple[Part, str, Part]) -> Part:
    """Return whether two parts are in a relation."""
    left, sign, right = parts
    return Part(f"{left.text} {sign} {right.text}", relation(sign, left.value, right.value))


def between(parts: tuple[Part, Part, Part, bool]) -> Part:
    """Return whether a number is between two."""
    one, low, high, negate = parts
    is_in = both(relation(">=", one.value, low.value), relation("<=", one.value, high.value))
    word = "NOT BETWEEN" if negate else "BETWEEN"
    return Part(
        f"{one.text} {word} {low.text} AND {high.text}", negated(is_in) if negate else is_in
    )


def listed(parts: tuple[str, list[str], bool]) -> Part:
    """Return whether a text is in a list."""
    name, texts, negate = parts
    value = VALUES[name]
    is_in = value in texts if isinstance(value, str) else None
    written = ", ".join(f"'{text}'" for text in texts)
    word = "NOT IN" if negate else "in"
    return Part(f"{name} {word} ({written})", negated(is_in) if negate else is_in)


CONDITIONS = st.recursive(
    st.one_of(
        st.tuples(ARITHMETIC, ORDERS, ARITHMETIC).map(compared),
        st.tuples(TEXTS, st.sampled_from(["=", "<>"]), TEXTS).map(compared),
        st.tuples(TEXTS, st.sampled_from(["=", "<>"]), NUMBERS).map(compared),
        st.tuples(ARITHMETIC, ARITHMETIC, ARITHMETIC, st.booleans()).map(between),
        st.tuples(
            st.sampled_from(["t", "u", "x", "i"]),
            st.lists(st.sampled_from(["ab", "b", "c"]), min_size=1, max_size=3),
            st.booleans(),
        ).map(listed),
        st.sampled_from([Part(name, VALUES[name]) for name in ("y", "n", "x")]),
        st.sampled_from([Part("x IS NULL", True), Part("t is not null", True)]),
        st.sampled_from([Part("TRUE", True), Part("false", False)]),
    ),
    lambda parts: st.one_of(
        parts.map(lambda one: Part(f"NOT ({one.text})", negated(one.value))),
        st.tuples(parts, parts).map(
            lambda two: Part(
                f"({two[0].text}) AND ({two[1].text})", both(two[0].value, two[1].value)
            )
        ),
        st.tuples(parts, parts).map(
            lambda two: Part(
                f"({two[0].text} or {two[1].text})",
                negated(both(negated(two[0].value), negated(two[1].value))),
            )
        ),
    ),
    max_leaves=6,
)


@given(CONDITIONS)
def test_a_selector_is_what_the_reference_finds(part: Part) -> None:
    """Made of all there is; and negated, so that false and unknown are told apart."""
    prefix = "no_convert_string_expressions:"
    assert parse(prefix + part.text).matches(SUBJECT) is (part.value is True), part.text
    assert parse(f"{prefix}NOT ({part.text})").matches(SUBJECT) is (part.value is False), part.text


@given(st.text("ab'\"()=<>+-*/% 019.,_$\n#", max_size=30))
def test_any_text_is_a_selector_or_is_refused(text: str) -> None:
    """Nothing else comes of it."""
    try:
        parse(text).matches(JAMES)
    except SelectorRefused as error:
        column = error.column
    else:
        column = None
    assert column is None or 1 <= column <= len(text) + 1
