"""Files of users and roles as Artemis writes them, and the hashes in them."""

import hashlib
import os
from pathlib import Path

import pytest

from orthia.config.certificate_users import read_certificate_users
from orthia.config.errors import ConfigurationError
from orthia.config.loader import load
from orthia.config.passwords import HashedPassword, hash_password, read_stored
from orthia.config.properties import PropertiesFile, decode_properties
from orthia.config.secrets import Secret
from orthia.config.security_settings import PropertiesLoginModule
from orthia.config.user_files import read_users

ARTEMIS = (
    "ENC(1024:48F4E3C4DD5D9D9B85A0C1A4CDB97FB6E08B8E0FB4E1C9DA3AC0D9A7FB2E9F11:"
    + hashlib.pbkdf2_hmac(
        "sha1",
        b"s3cret",
        bytes.fromhex("48F4E3C4DD5D9D9B85A0C1A4CDB97FB6E08B8E0FB4E1C9DA3AC0D9A7FB2E9F11"),
        1024,
        64,
    )
    .hex()
    .upper()
    + ")"
)
"""As DefaultSensitiveStringCodec writes it: iterations, 32 bytes of salt, 64 of hash."""
BROKER = """<configuration xmlns="urn:activemq"><core xmlns="urn:activemq:core">
  <store><database-store>
    <jdbc-connection-url>jdbc:sqlite:x.db</jdbc-connection-url>
  </database-store></store>
  {inner}
</core></configuration>"""


def test_a_hash_of_artemis_is_read() -> None:
    """PBKDF2WithHmacSHA1, 1,024 iterations, hexadecimal."""
    stored = read_stored(ARTEMIS)
    assert isinstance(stored, HashedPassword)
    assert stored.matches("s3cret")
    assert not stored.matches("s3cre")
    assert not stored.matches("")


def test_a_new_hash_is_read_again_and_says_nothing() -> None:
    """Two of one password are not alike, and neither shows it."""
    one, other = hash_password("s3cret"), hash_password("s3cret")
    assert one != other
    assert one.startswith("ENC($argon2id$v=19$m=19456,t=2,p=1$")
    stored = read_stored(one)
    assert isinstance(stored, HashedPassword)
    assert stored.matches("s3cret")
    assert not stored.matches("S3cret")
    assert one not in f"{stored} {stored!r}"


def test_a_hash_made_elsewhere_is_read() -> None:
    """The reference implementation's own example of Argon2id."""
    stored = read_stored(
        "ENC($argon2id$v=19$m=65536,t=2,p=1$c29tZXNhbHQ"
        "$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc)"
    )
    assert isinstance(stored, HashedPassword)
    assert stored.matches("password")


@pytest.mark.parametrize(
    "text",
    [
        "ENC()",
        "ENC(-2f2a2b1c)",  # two-way: Artemis takes what is in this file for a hash, too
        "ENC(0:ABCD:0011223344556677)",
        "ENC(99999999:ABCD:0011223344556677)",
        "ENC(1024:ABC:0011223344556677)",
        "ENC($argon2id$v=19$m=99999999,t=2,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8)",
        "ENC($argon2id$v=19$m=65536,t=0,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8)",
        "ENC($argon2id$v=19$m=8,t=1,p=0$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8)",
        "ENC($argon2i$v=19$m=65536,t=2,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8)",
    ],
)
def test_what_is_no_hash_is_refused_without_showing_it(text: str) -> None:
    """Nobody could log in with it, which is found out before anybody tries."""
    with pytest.raises(ConfigurationError, match="no hash that can be read here") as refused:
        read_stored(text)
    assert text not in str(refused.value)


def test_properties_are_read_as_java_reads_them() -> None:
    """Separators, comments, escapes and lines that go on."""
    found = PropertiesFile(
        "# a comment\n! another\n\n"
        "alice = one two \n"
        "bob:two\n"
        "carol three\n"
        "d\\ e\\=f = g\\=h\\\\i\\u00e9\n"
        "long = first\\\n   second\n"
        "twice=1\r\ntwice=2\r\n"
        "nothing\n"
        "last = end"
    )
    assert found.values == {
        "alice": "one two ",
        "bob": "two",
        "carol": "three",
        "d e=f": "g=h\\i\u00e9",
        "long": "firstsecond",
        "twice": "2",
        "nothing": "",
        "last": "end",
    }
    assert decode_properties("é".encode()) == decode_properties("é".encode("iso-8859-1")) == "é"


def test_a_character_may_be_two_escapes() -> None:
    """As native2ascii writes one beyond the first 65,536; they may be on two lines."""
    found = PropertiesFile("alice = \\uD83D\\\n  \\uDE00xy\n")
    assert found.values == {"alice": "\U0001f600xy"}
    assert PropertiesFile("\\ufeffa = \\ufeffb").values == {"\ufeffa": "\ufeffb"}


@pytest.mark.parametrize(
    ("users", "roles", "line"),
    [
        ("alice = s3cret\nbob = s3cret\\ud83d\n", "", "users.properties:2"),
        ("alice = s3cret\\\n \\ude00\\ud83d\n", "", "users.properties:1"),
        ("al\\ud83dice = s3cret\n", "", "users.properties:1"),
        ("alice = s3cret\n", "amq = alice\nx\\udfff = bob\n", "roles.properties:2"),
        ("alice = s3cret\n", "amq = alice, \\ud83dbob\n", "roles.properties:1"),
    ],
)
def test_half_a_character_is_refused(tmp_path: Path, users: str, roles: str, line: str) -> None:
    """By file and line, without the password: nothing could be compared with it."""
    module = files(tmp_path, users, roles)
    with pytest.raises(ConfigurationError, match=f"{line}: .* is half a character") as refused:
        read_users(module)
    assert "s3cret" not in str(refused.value)
    with pytest.raises(ConfigurationError, match=f"{line}: .* is half a character"):
        read_certificate_users(module)


def test_an_escape_without_its_digits_is_told_with_its_line(tmp_path: Path) -> None:
    """A path of Windows, as it happens."""
    module = files(tmp_path, "# ours\nalice = c:\\users\n", "")
    with pytest.raises(ConfigurationError, match=r"users\.properties:2: \\u is not followed"):
        read_users(module)


def test_one_entry_is_changed_and_the_rest_stays() -> None:
    """Comments, order and other people's ways of writing are theirs."""
    text = "# ours\nalice = 1\n\nbob:2\nbob = 3"
    file = PropertiesFile(text)
    assert file.render() == text
    file.set("alice", " x=\\y\n")
    file.set("d e=f:#", "new")
    assert file.render() == (
        "# ours\nalice = \\ x=\\\\y\\n\n\nbob:2\nbob = 3\nd\\ e\\=f\\:\\# = new\n"
    )
    assert PropertiesFile(file.render()).values == {
        "alice": " x=\\y\n",
        "bob": "3",
        "d e=f:#": "new",
    }
    file.remove("bob")
    assert "bob" not in file.render()


def files(directory: Path, users: str, roles: str) -> PropertiesLoginModule:
    """Write both files."""
    module = PropertiesLoginModule(directory / "users.properties", directory / "roles.properties")
    module.user.write_text(users)
    module.role.write_text(roles)
    return module


def test_users_have_the_roles_that_name_them(tmp_path: Path) -> None:
    """A user without a role is one; a role's name that is no user is nobody."""
    module = files(
        tmp_path, f"alice = {ARTEMIS}\nbob = plain\neve=x\n", "amq = alice, bob ,ghost\nview=bob\n"
    )
    alice, bob, eve = read_users(module)
    assert (alice.name, set(alice.roles)) == ("alice", {"amq"})
    assert (bob.password, set(bob.roles)) == (Secret("plain"), {"amq", "view"})
    assert (eve.name, eve.roles) == ("eve", frozenset())


def test_every_problem_of_a_file_is_told_with_its_line(tmp_path: Path) -> None:
    """And never with the password."""
    module = files(tmp_path, "alice = ok\nbob =\n# eve\neve = ENC(h1dden)\n", "")
    with pytest.raises(ConfigurationError) as refused:
        read_users(module)
    first, second = str(refused.value).splitlines()
    assert first == f"{module.user}:2: bob: the password is empty; expected one"
    assert second.startswith(f"{module.user}:4: eve: ENC(...) is no hash")
    assert "h1dden" not in str(refused.value)
    module.user.unlink()
    with pytest.raises(ConfigurationError, match=r"users\.properties: cannot be read: No such"):
        read_users(module)


def test_a_pipe_is_no_file_of_users(tmp_path: Path) -> None:
    """A node would wait for a writer, and not see again that a user is removed."""
    module = files(tmp_path, "alice = ok\n", "")
    module.user.unlink()
    os.mkfifo(module.user)
    with pytest.raises(ConfigurationError, match=r"users\.properties: is a named pipe; expected"):
        read_users(module)


def test_a_broker_xml_names_the_files(tmp_path: Path) -> None:
    """Beside it, as Artemis' login.config does, if they are not named otherwise."""
    etc = tmp_path / "etc"
    etc.mkdir()
    file = etc / "broker.xml"
    file.write_text(
        BROKER.format(
            inner='<login-modules xmlns="urn:orthia"><properties-login-module role="/x/r"'
            ' reload="false"/></login-modules>'
        )
    )
    settings = load(file)
    assert settings.properties_login_module == PropertiesLoginModule(
        etc / "artemis-users.properties", Path("/x/r"), reload=False
    )
    assert settings.login_domain is None
