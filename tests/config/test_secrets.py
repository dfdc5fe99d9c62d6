"""Passwords: masked as Artemis masks them, and never printed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orthia.config import ConfigurationError, Secret, mask
from orthia.config.secrets import KEY_PROPERTY, KEY_VARIABLE, codec_key, read_secret, unmask


@pytest.mark.parametrize(
    ("masked", "password"),
    [
        ("ENC(3a34fd21b82bf2a822fa49a8d8fa115d)", "password"),
        ("ENC(-41e444c3ed07d6dd)", "secret"),
        ("ENC(-5da23e449f1b4b24dd05b6572705eea3)", "testuser"),
        ("ENC(56a0db3b71043054269d11823973462f)", "targetpassword"),
    ],
)
def test_what_artemis_masked_is_unmasked(masked: str, password: str) -> None:
    """Passwords masked by Artemis' default codec are read, negative numbers included."""
    assert unmask(masked).reveal() == password


def test_masking_gives_what_artemis_gives() -> None:
    """A password masked here can be read by Artemis."""
    assert mask("password") == "ENC(3a34fd21b82bf2a822fa49a8d8fa115d)"


@given(st.text(max_size=40), st.text(st.characters(codec="ascii"), min_size=4, max_size=56))
def test_masking_and_unmasking_gives_the_password_back(password: str, key: str) -> None:
    """Any password comes back with the built-in key and with one's own."""
    assert unmask(mask(password)).reveal() == password
    assert unmask(mask(password, key), key).reveal() == password


def test_another_key_does_not_unmask() -> None:
    """A password masked with a key of one's own is refused without it."""
    with pytest.raises(ConfigurationError, match="cannot be unmasked with this key") as caught:
        unmask(mask("hunter2", "a key of my own"))
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("key", ["abc", "x" * 57])
def test_a_key_of_the_wrong_length_is_refused(key: str) -> None:
    """Blowfish takes keys of 4 to 56 bytes; the error says so and not the key."""
    with pytest.raises(ConfigurationError, match=r"expected 4 to 56") as caught:
        mask("hunter2", key)
    assert key not in str(caught.value)


def test_a_plain_password_is_taken_as_it_stands() -> None:
    """What is not ENC(...) is the password itself."""
    assert unmask("ENC(not closed").reveal() == "ENC(not closed"


def test_a_secret_is_not_printed() -> None:
    """str, repr and formatting of a Secret show stars only."""
    secret = Secret("hunter2")
    for shown in (str(secret), repr(secret), f"{secret}", f"{[secret]}"):
        assert "hunter2" not in shown
        assert "****" in shown


def test_secrets_are_compared_by_value() -> None:
    """Two Secrets of one password are equal, and a candidate is checked against one."""
    assert Secret("a") == Secret("a")
    assert Secret("a") != Secret("b")
    assert hash(Secret("a")) == hash(Secret("a"))
    assert Secret("ä").matches("ä")
    assert not Secret("ä").matches("a")


@pytest.mark.parametrize("text", ["", "  ", mask(""), mask(" ")])
def test_an_empty_password_is_no_password(text: str) -> None:
    """Whether it is written or masked."""
    with pytest.raises(ConfigurationError, match="the password is empty"):
        read_secret(text)


def test_the_codec_key_of_the_command_line_wins() -> None:
    """As in Artemis: the system property, else the environment; one that is empty is none."""
    properties = {KEY_PROPERTY: "of the command line"}
    environment = {KEY_VARIABLE: "of the environment"}
    assert codec_key(properties, environment) == "of the command line"
    assert codec_key({KEY_PROPERTY: ""}, environment) == "of the environment"
    assert codec_key({}, {KEY_VARIABLE: ""}) is None
