"""Users in files, on a node as it is run: changed with ``orthia user`` while it serves."""

import asyncio
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from orthia.config.settings import Role
from tests.process.secured_node import CLI, SecuredNode


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


def test_a_file_that_became_wrong_changes_nothing(node: SecuredNode) -> None:
    """The log says what is wrong with it; who could log in still can, once it is mended others."""
    node.start().wait_serving()
    users = node.directory / "artemis-users.properties"
    right = users.read_text()
    users.write_text("alice = ENC(nonsense)\n")
    node.wait_log("the files of users changed and are not taken")
    assert f"{users}:1: alice: ENC(...) is no hash" in node.log
    assert node.answer("alice", "s3cret").startswith(b"CONNECTED")
    users.write_text(f"{right}carol = plain\n")
    node.wait_log("the files of users were read again: 3 users")
    assert node.answer("carol", "plain").startswith(b"CONNECTED")


def test_a_node_whose_users_cannot_be_read_does_not_start(node: SecuredNode) -> None:
    """It says so before it asks for the lock; so does ``check``."""
    (node.directory / "artemis-roles.properties").unlink()
    assert node.start().exit_code() == 78
    assert "artemis-roles.properties: cannot be read: No such file" in node.log
    checked = subprocess.run(
        [*CLI, "check", str(node.config_path)], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 78
    assert "artemis-roles.properties: cannot be read" in checked.stderr


FLOOD_SECONDS = 5.0


async def flood(port: int, login: str, seconds: float) -> int:
    """Guess passcodes on as many connections as there can be; return how many were answered."""
    answered, until = 0, time.monotonic() + seconds

    async def guess(number: int) -> None:
        nonlocal answered
        while time.monotonic() < until:
            with suppress(OSError):
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", port, local_addr=(f"127.0.{number}.2", 0)
                )
                passcode = f"{number}-{answered}"  # none is remembered from before
                writer.write(f"CONNECT\nlogin:{login}\npasscode:{passcode}\n\n\0".encode())
                answer = await reader.read(4096)
                answered += bool(answer)
                writer.close()

    async with asyncio.timeout(seconds + 60):
        await asyncio.gather(*(guess(number) for number in range(1, 100)))
    return answered


@pytest.mark.parametrize("login", ["alice", "nobody"])
def test_guesses_without_end_do_not_disturb_the_lease(node: SecuredNode, login: str) -> None:
    """As many as it takes: the node serves on under its lease, and who has a passcode is in."""
    node.lease = (
        "<jdbc-lock-renew-period>300</jdbc-lock-renew-period>"
        "<jdbc-lock-expiration>8000</jdbc-lock-expiration>"
    )
    node.start().wait_serving()
    with node.log_in("bob", "s3cret") as bob:
        assert bob.recv(4096).startswith(b"CONNECTED")
        answers: list[int] = []
        guessing = threading.Thread(
            target=lambda: answers.append(asyncio.run(flood(node.port, login, FLOOD_SECONDS)))
        )
        guessing.start()
        sent = 0
        while guessing.is_alive():
            bob.sendall(b"SEND\ndestination:/queue/a\nreceipt:1\n\nx\0")
            assert b"receipt-id:1" in bob.recv(4096)
            sent += 1
        guessing.join()
    assert sent
    assert answers[0]
    assert node.is_running
    assert node.log.count("AMQ221007") == 1
    assert node.answer("bob", "s3cret").startswith(b"CONNECTED")
