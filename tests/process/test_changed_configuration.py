"""A broker.xml that is changed while its node runs, as a user changes it."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from orthia.config.settings import Role
from tests.process.secured_node import SecuredNode

_OFTEN = "<configuration-file-refresh-period>100</configuration-file-refresh-period>"
_ONE_MESSAGE = (
    '<address-settings><address-setting match="#"><max-size-messages>1</max-size-messages>'
    "<address-full-policy>FAIL</address-full-policy></address-setting></address-settings>"
)
_READ_AGAIN = "broker.xml: changes in effect"


@pytest.fixture
def live(tmp_path: Path) -> Iterator[SecuredNode]:
    """A live node that is not started; alice may do everything."""
    node = SecuredNode(Role.LIVE, f"jdbc:sqlite:{tmp_path / 'orthia.db'}", tmp_path, "live")
    node.core = _OFTEN
    node.command()
    node.user("add", "alice", "--role", "amq", password="s3cret")
    yield node
    node.end()


def change(node: SecuredNode, old: str, new: str) -> None:
    """Have other text in the node's file."""
    text = node.config_path.read_text()
    assert old in text
    node.config_path.write_text(text.replace(old, new))


def answers(node: SecuredNode, *frames: str) -> str:
    """Return what alice gets for frames, of which the last ends the connection or has a receipt."""
    with node.log_in("alice", "s3cret") as client:
        client.recv(4096)
        client.sendall("".join(f"{frame}\0" for frame in frames).encode())
        data = b""
        while b"receipt-id:last" not in data and (chunk := client.recv(4096)):
            data += chunk
    return data.decode()


def sent(queue: str, receipt: str) -> str:
    """Return a SEND."""
    return f"SEND\ndestination:/queue/{queue}\nreceipt:{receipt}\n\nx"


def test_clients_meet_what_changed(live: SecuredNode) -> None:
    """A limit, a declared queue, a permission; the log names each, and what needs a restart."""
    live.start().wait_serving()
    assert "receipt-id:last" in answers(live, sent("a", "1"), sent("a", "last"))
    declared = '<addresses><address name="new"><anycast><queue name="q"/></anycast></address>'
    change(live, _OFTEN, f"{_OFTEN}{_ONE_MESSAGE}{declared}</addresses>")
    live.wait_log(_READ_AGAIN)
    assert "address-setting[#]/max-size-messages: not set -> 1 (applied)" in live.log
    assert "addresses/address[new]/queue[q]: added (applied)" in live.log
    assert "receipt-id:last" in answers(live, sent("new", "last"))
    assert "max-size-messages 1" in answers(live, sent("new", "last"))
    with live.log_in("alice", "s3cret") as consumer:
        consumer.recv(4096)
        consumer.sendall(b"SUBSCRIBE\nid:1\ndestination:/queue/b\nreceipt:1\n\n\0")
        assert b"receipt-id:1" in consumer.recv(4096)
        change(live, '<permission type="consume" roles="amq"/>', "<!-- none consumes -->")
        change(live, f":{live.port}<", f":{live.port}?connectionsAllowed=9<")
        ended = b""
        while chunk := consumer.recv(4096):
            ended += chunk
    assert b"the permissions were changed: user 'alice' has no role" in ended
    live.wait_log("waiting for a restart of this node: 1")
    assert "connections-allowed: -1 -> 9 (takes effect when this node is restarted)" in live.log


def test_users_of_the_file_come_and_are_ended_when_they_change(live: SecuredNode) -> None:
    """As those of files of users; others stay."""
    live.start().wait_serving()
    users = '<users xmlns="urn:orthia"><user name="bob" password="{}" roles="amq"/></users>'
    assert b"login or passcode is wrong" in live.answer("bob", "w0rd-one")
    change(live, _OFTEN, f"{_OFTEN}{users.format('w0rd-one')}")
    live.wait_log("users/user[bob]: added (applied)").wait_log(_READ_AGAIN)
    with live.log_in("bob", "w0rd-one") as bob, live.log_in("alice", "s3cret") as alice:
        assert bob.recv(4096).startswith(b"CONNECTED")
        assert alice.recv(4096).startswith(b"CONNECTED")
        change(live, "w0rd-one", "w0rd-two")
        assert b"the password or the roles of this user were changed" in bob.recv(4096)
        alice.sendall(f"{sent('a', '1')}\0".encode())
        assert b"receipt-id:1" in alice.recv(4096)
    live.wait_log("users/user[bob]/password: changed (applied)")
    assert live.answer("bob", "w0rd-two").startswith(b"CONNECTED")
    assert "w0rd" not in live.log


def test_a_wrong_file_changes_nothing(live: SecuredNode) -> None:
    """The log says what is wrong; what is right in it counts once it is mended."""
    live.start().wait_serving()
    change(live, _OFTEN, f"{_OFTEN}{_ONE_MESSAGE}<no-such-element/>")
    live.wait_log("broker.xml changed, and nothing of it was applied")
    assert "<no-such-element>" in live.log
    assert "receipt-id:last" in answers(live, sent("a", "1"), sent("a", "last"))
    change(live, "<no-such-element/>", "")
    live.wait_log(_READ_AGAIN)
    assert "max-size-messages 1" in answers(live, sent("a", "last"))
    assert live.log.count("changed, and nothing of it was applied") == 1


def test_a_backup_takes_over_with_its_file_as_it_is_then(live: SecuredNode) -> None:
    """It follows its file while it waits."""
    live.start().wait_serving()
    directory = live.directory / "backup"
    directory.mkdir()
    for name in ("artemis-users.properties", "artemis-roles.properties"):
        shutil.copy(live.directory / name, directory)
    backup = SecuredNode(Role.BACKUP, live.url, directory, "backup")
    policy = "<ha-policy><shared-store><backup/></shared-store></ha-policy>"
    backup.core = f"{_OFTEN}{policy}"
    try:
        backup.start().wait_log("AMQ221031")
        change(backup, _OFTEN, f"{_OFTEN}{_ONE_MESSAGE}")
        backup.wait_log(_READ_AGAIN)
        live.kill()
        backup.wait_serving()
        assert "max-size-messages 1" in answers(backup, sent("a", "1"), sent("a", "last"))
    finally:
        backup.end()
