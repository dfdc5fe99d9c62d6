"""``${...}``: values from outside the file."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orthia.config import ConfigurationError
from orthia.config.substitution import Properties

_NAMES = st.from_regex(re.compile(r"[A-Za-z][\w.]{0,10}", re.ASCII), fullmatch=True)
_XML_TEXT = st.text(
    st.characters(exclude_categories=["Cc", "Cs"], exclude_characters="\ufffe\uffff")
    | st.sampled_from("\t\n\r")
)
_TEXT_WITHOUT_PLACEHOLDER = st.text().filter(lambda text: "${" not in text and text[-1:] != "$")


def test_a_system_property_wins_over_the_environment() -> None:
    """-D wins over the environment, the environment over the default."""
    properties = Properties({"a": "1"}, {"a": "2", "b": "3"})
    assert properties.substitute("${a:x} ${b:x} ${c:x}") == "1 3 x"


def test_a_property_may_have_a_value_by_default() -> None:
    """What is given wins, and a default in the file comes last."""
    properties = Properties({"a": "1"}, {"b": "2"}, {"a": "8", "b": "8", "c": "8"})
    assert properties.substitute("${a} ${b} ${c:x}") == "1 2 8"


def test_a_default_may_be_empty_or_hold_colons() -> None:
    """Everything after the first colon is the default."""
    properties = Properties({}, {})
    assert properties.substitute("[${a:}] ${b:tcp://h:1}") == "[] tcp://h:1"


def test_an_empty_value_is_a_value() -> None:
    """A property set to nothing does not fall back to the default."""
    assert Properties({"a": ""}, {"a": "x"}).substitute("[${a:default}]") == "[]"


@given(_NAMES, _XML_TEXT)
def test_a_value_is_taken_as_it_stands(name: str, value: str) -> None:
    """A value with ``${``, markup or anything else in it is put in unchanged."""
    assert Properties({name: value}, {}).substitute(f"<${{{name}}}>") == f"<{value}>"


@given(_TEXT_WITHOUT_PLACEHOLDER)
def test_text_without_a_placeholder_is_unchanged(text: str) -> None:
    """Nothing else in a text means anything."""
    assert Properties({}, {}).substitute(text) == text


@given(_NAMES)
def test_an_unset_property_is_named(name: str) -> None:
    """The error names the property that is set nowhere."""
    with pytest.raises(ConfigurationError, match=re.escape(f"${{{name}}} is not set")):
        Properties({}, {}).substitute(f"${{{name}}}")


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("secret\udcff", "the byte 0xFF, which is no UTF-8"),
        ("\x00secret", "the character U+0000, which no XML can hold"),
        ("secret\x1b", "the character U+001B, which no XML can hold"),
        ("secret\ufffe", "the character U+FFFE, which no XML can hold"),
    ],
)
def test_a_value_that_no_file_can_hold_is_refused(value: str, told: str) -> None:
    """By the property's name, and without the value: it may be a password."""
    with pytest.raises(ConfigurationError) as refused:
        Properties({}, {"password": value}).substitute("${password}")
    assert str(refused.value) == f"the value of ${{password}} has {told}"
