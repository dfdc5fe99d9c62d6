"""Users in files, on a node as it is run: changed with ``orthia user`` while it serves."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from orthia.config.settings import Role
from tests.process.nodes import orthia, status_of
from tests.process.secured_node import SecuredNode
from tests.support.waiting import wait_until

pytestmark = pytest.mark.extended


@pytest.fixture
def node(tmp_path: Path) -> Iterator[SecuredNode]:
    """A node that is not started; alice and bob may do everything."""
    node = SecuredNode(Role.LIVE, f"jdbc:sqlite:{tmp_path / 'orthia.db'}", tmp_path, "live")
    node.command()
    for name in ("alice", "bob"):
        node.user("add", name, "--role", "amq", password="s3cret")
    yield node
    node.end()


def test_a_change_is_taken_while_the_node_serves(node: SecuredNode) -> None:
    """Whoever it is about is ended within seconds and comes in by what it is now; others stay."""
    node.start().wait_serving()
    with node.log_in("alice", "s3cret") as alice, node.log_in("bob", "s3cret") as bob:
        for client in (alice, bob):
            assert client.recv(4096).startswith(b"CONNECTED")
        node.user("reset", "alice", password="n3w")
        assert b"the password or the roles of this user were changed" in alice.recv(4096)
        assert node.answer("alice", "n3w").startswith(b"CONNECTED")
        assert b"login or passcode is wrong" in node.answer("alice", "s3cret")
        bob.sendall(b"SEND\ndestination:/queue/a\nreceipt:1\n\nx\0")
        assert b"receipt-id:1" in bob.recv(4096)
        node.user("reset", "bob", "--no-roles")
        assert b"were changed" in bob.recv(4096)
    with node.log_in("bob", "s3cret") as bob:
        bob.sendall(b"SEND\ndestination:/queue/a\nreceipt:1\n\nx\0")
        bob.settimeout(60)
        data = b""
        while chunk := bob.recv(4096):
            data += chunk
        assert b"has no role with permission 'send'" in data
    with node.log_in("alice", "n3w") as alice:
        assert alice.recv(4096).startswith(b"CONNECTED")
        node.user("rm", "alice")
        assert b"or the user was removed" in alice.recv(4096)
    assert b"login or passcode is wrong" in node.answer("alice", "n3w")


def replace(path: Path, text: str) -> None:
    """Write a file anew; nobody reads half of it, or none."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def test_a_file_that_became_wrong_changes_nothing(node: SecuredNode) -> None:
    """The log says what is wrong with it; who could log in still can, once it is mended others."""
    node.start().wait_serving()
    users = node.directory / "artemis-users.properties"
    right = users.read_text()
    replace(users, "alice = ENC(nonsense)\n")
    node.wait_log("the files of users changed, and nothing of them was applied")
    assert f"{users}:1: alice: ENC(...) is no hash" in node.log
    assert node.answer("alice", "s3cret").startswith(b"CONNECTED")
    replace(users, f"{right}carol = plain\n")
    node.wait_log("reloaded the files of users: 3 users")
    assert node.answer("carol", "plain").startswith(b"CONNECTED")


def test_status_says_that_the_users_of_a_pair_differ(node: SecuredNode, tmp_path: Path) -> None:
    """A user who is added on one node alone could not log in after a takeover."""
    node.start().wait_serving()
    of_backup = tmp_path / "of-backup"
    of_backup.mkdir()
    backup = SecuredNode(Role.BACKUP, node.url, of_backup, "backup")
    backup.core = "<ha-policy><shared-store><backup/></shared-store></ha-policy>"
    backup.command()
    for name in ("artemis-users.properties", "artemis-roles.properties"):
        shutil.copy(node.directory / name, backup.directory / name)
    url = f"sqlite:///{tmp_path / 'orthia.db'}"
    try:
        backup.start().wait_log("AMQ221031")
        wait_until(lambda: status_of(url)["users_differ"] is False, what="they are the same")
        backup.user("add", "carol", "--role", "amq", password="s3cret")
        wait_until(lambda: status_of(url)["users_differ"] is True, what="they differ")
        node.user("add", "carol", "--role", "amq", password="s3cret")
        shutil.copy(backup.directory / "artemis-users.properties", node.directory)
        wait_until(lambda: status_of(url)["users_differ"] is False, what="they are the same again")
    finally:
        backup.end()


def test_a_node_whose_users_cannot_be_read_does_not_start(node: SecuredNode) -> None:
    """It says so before it asks for the lock; so does ``check``."""
    (node.directory / "artemis-roles.properties").unlink()
    assert node.start().exit_code() == 78
    assert "artemis-roles.properties: cannot be read: No such file" in node.log
    checked = orthia("check", node.config_path, code=78)
    assert "artemis-roles.properties: cannot be read" in checked
