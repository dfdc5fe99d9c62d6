"""``orthia user``: what it makes of the files, and what it never shows."""

import stat
from pathlib import Path

import pytest

from orthia.config.passwords import HashedPassword
from tests.cli.conftest import Run, users_of
from tests.config.test_user_files import ARTEMIS, BROKER

PASSWORD = {"ORTHIA_PASSWORD": "s3cret"}


@pytest.fixture
def broker_xml(tmp_path: Path) -> Path:
    """A broker.xml that names files of users, which are not there."""
    file = tmp_path / "broker.xml"
    file.write_text(
        BROKER.format(
            inner='<users xmlns="urn:orthia"><user name="root" password="x" roles="amq"/></users>'
            '<login-modules xmlns="urn:orthia"><properties-login-module/></login-modules>'
        )
    )
    return file


def test_a_user_is_added_changed_and_removed(run: Run, broker_xml: Path, tmp_path: Path) -> None:
    """Only its hash is kept, in files that only their owner reads."""
    added = run(
        "user",
        "add",
        "alice",
        "--role",
        "amq,ops",
        "--role",
        "view",
        "--config",
        broker_xml,
        environment=PASSWORD,
    )
    assert added.exit_code == 0, added.output
    assert "added user alice with roles amq,ops,view" in added.stdout
    assert "the other node of the pair has files of its own" in added.stderr
    alice = users_of(broker_xml)["alice"]
    assert set(alice.roles) == {"amq", "ops", "view"}
    assert isinstance(alice.password, HashedPassword)
    assert alice.password.matches("s3cret")
    for name in ("artemis-users.properties", "artemis-roles.properties"):
        file = tmp_path / name
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert "s3cret" not in file.read_text() + added.output

    assert run("user", "reset", "alice", "--role", "view", "--config", broker_xml).exit_code == 0
    assert set(users_of(broker_xml)["alice"].roles) == {"view"}
    assert users_of(broker_xml)["alice"].password == alice.password
    assert run("user", "reset", "alice", "--no-roles", "--config", broker_xml).exit_code == 0
    assert not users_of(broker_xml)["alice"].roles
    new = {"ORTHIA_PASSWORD": "n3w"}
    assert run("user", "reset", "alice", "--config", broker_xml, environment=new).exit_code == 0
    assert users_of(broker_xml)["alice"].password.matches("n3w")

    assert run("user", "rm", "alice", "--config", broker_xml).exit_code == 0
    assert users_of(broker_xml) == {}
    assert not [one for one in tmp_path.iterdir() if one.name.startswith(".artemis")]


def test_what_others_wrote_stays(run: Run, broker_xml: Path, tmp_path: Path) -> None:
    """Comments, other users, the rights of the file, and where a link leads."""
    real = tmp_path / "elsewhere.properties"
    real.write_text(f"# ours\nbob = {ARTEMIS}\n")
    real.chmod(0o640)
    (tmp_path / "artemis-users.properties").symlink_to(real)
    (tmp_path / "artemis-roles.properties").write_text("# roles\namq = bob , ghost\n")
    run("user", "add", "alice", "--role", "amq", "--config", broker_xml, environment=PASSWORD)
    assert real.read_text().startswith(f"# ours\nbob = {ARTEMIS}\nalice = ENC($argon2id$")
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    roles = tmp_path / "artemis-roles.properties"
    assert roles.read_text() == "# roles\namq = alice,bob,ghost\n"
    run("user", "rm", "alice", "--config", broker_xml)
    assert real.read_text() == f"# ours\nbob = {ARTEMIS}\n"
    assert (tmp_path / "artemis-users.properties").is_symlink()


def test_list_shows_no_password(run: Run, broker_xml: Path, tmp_path: Path) -> None:
    """But how well it is kept, so that what Artemis wrote long ago can be found."""
    (tmp_path / "artemis-users.properties").write_text(f"bob = {ARTEMIS}\neve = h1dden\nroot=y\n")
    (tmp_path / "artemis-roles.properties").write_text("amq = bob\n")
    shown = run("user", "list", "--config", broker_xml).stdout
    assert "PBKDF2, 1024 iterations" in shown
    assert "h1dden" not in shown
    assert ARTEMIS not in shown
    rows = [line.split() for line in shown.splitlines()[1:]]
    assert [(row[0], row[-1]) for row in rows if row[0] in {"root", "bob", "eve"}] == [
        ("root", "broker.xml"),
        ("bob", "file"),
        ("eve", "file"),
    ]
    as_json = run("user", "list", "--config", broker_xml, "--json").stdout
    assert '"password": "plain"' in as_json
    assert "h1dden" not in as_json


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("add", "root"), "has a <user> 'root', who wins"),
        (("add", "a,b"), "cannot be a user's name"),
        (("add", " a"), "cannot be a user's name"),
        (("rm", "nobody"), "there is no user 'nobody'"),
        (("reset", "nobody"), "there is no user 'nobody'"),
        (("list",), "cannot be read: No such file"),
    ],
)
def test_what_cannot_be_done_is_told(
    run: Run, broker_xml: Path, arguments: tuple[str, ...], told: str
) -> None:
    """With the exit code of a configuration that is wrong."""
    result = run("user", *arguments, "--config", broker_xml, environment=PASSWORD)
    assert result.exit_code == 78
    assert told in result.stderr


def test_a_user_is_not_added_twice(run: Run, broker_xml: Path) -> None:
    """Its password stays the one it was."""
    run("user", "add", "alice", "--config", broker_xml, environment=PASSWORD)
    again = run(
        "user", "add", "alice", "--config", broker_xml, environment={"ORTHIA_PASSWORD": "x"}
    )
    assert again.exit_code == 78
    assert "`orthia user reset`" in again.stderr
    assert users_of(broker_xml)["alice"].password.matches("s3cret")


def test_a_broker_xml_without_files_says_what_to_add(run: Run, tmp_path: Path) -> None:
    """In words that can be copied."""
    file = tmp_path / "broker.xml"
    file.write_text(BROKER.format(inner=""))
    result = run("user", "add", "alice", "--config", file, environment=PASSWORD)
    assert result.exit_code == 78
    assert '<login-modules xmlns="urn:orthia"><properties-login-module/>' in result.stderr
