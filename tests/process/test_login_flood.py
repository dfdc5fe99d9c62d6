"""Very many logins at a node with a database: its lease is renewed, and the others are served."""

import hashlib
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from orthia.config.settings import Role
from tests.hostile.node import Witness
from tests.process.nodes import failover_log
from tests.process.secured_node import SecuredNode
from tests.support.login_flood import Login, LoginFlood
from tests.support.servers import ServerProcess, free_port, url_with_password
from tests.support.waiting import wait_until

pytestmark = pytest.mark.extended

EXPIRATION_MS = 240_000
RENEWALS = 3
"""How many of the lease are to be made amid the flood."""
OFFERED = 500
LOGINS = (
    Login("right, Argon2id", "alice", "s3cret"),
    Login("right, PBKDF2", "old", "s3cret"),
    Login("wrong, Argon2id", "alice", "guess-{}"),
    Login("wrong, PBKDF2", "old", "guess-{}"),
    Login("unknown", "nobody-{}", "guess-{}"),
)


class FloodedNode(SecuredNode):
    """A node with the users of a flood, one who works meanwhile, and metrics."""

    lease = (
        "<jdbc-lock-renew-period>1000</jdbc-lock-renew-period>"
        f"<jdbc-lock-expiration>{EXPIRATION_MS}</jdbc-lock-expiration>"
    )

    def __init__(self, url: str, directory: Path) -> None:
        super().__init__(Role.LIVE, url, directory, "live")
        self.sockets = ExitStack()
        self.health_port = free_port()
        self.core = f'<health xmlns="urn:orthia"><port>{self.health_port}</port></health>'

    def make_users(self) -> None:
        """Write the files of users."""
        self.command()
        for name in ("alice", "worker"):
            self.user("add", name, "--role", "amq", password="s3cret")
        salt = bytes(range(32))
        made = hashlib.pbkdf2_hmac("sha1", b"s3cret", salt, 1_024, 64).hex()
        with (self.directory / "artemis-users.properties").open("a") as file:
            file.write(f"old = ENC(1024:{salt.hex()}:{made})\n")

    def connect(self) -> socket.socket:
        """Log in as the one who works."""
        client = self.sockets.enter_context(self.log_in("worker", "s3cret"))
        assert client.recv(4_096).startswith(b"CONNECTED")
        return client

    @property
    def renewals(self) -> int:
        """How often the live lease was renewed, as the metrics have it."""
        url = f"http://127.0.0.1:{self.health_port}/metrics"
        with urllib.request.urlopen(url, timeout=60) as answer:
            text: str = answer.read().decode()
        name = 'orthia_lease_renewal_seconds_count{lock="live"} '
        return int(float(text.partition(name)[2].split()[0]))


@pytest.fixture
def node(private_server: ServerProcess, tmp_path: Path) -> Iterator[FloodedNode]:
    """A node that serves."""
    url = url_with_password(private_server.settings(private_server.create_database()))
    node = FloodedNode(url, tmp_path)
    node.make_users()
    node.start().wait_serving()
    yield node
    node.sockets.close()
    node.end()


@pytest.mark.parametrize("private_server", ["postgresql"], indirect=True)
def test_a_flood_of_logins_disturbs_no_lease_and_nobody(node: FloodedNode) -> None:
    """Right, wrong and unknown ones, a thousand a second, while somebody works and others come."""
    worker = Witness(node)
    worker.is_served()
    flood = LoginFlood(node.port, LOGINS)
    before = node.renewals
    flood.start(1_000)
    try:

        def is_enough() -> bool:
            worker.is_served()
            answered = flood.offered >= OFFERED and "let in" in {
                of for _, of in list(flood.answers)
            }
            return answered and node.renewals >= before + RENEWALS

        wait_until(is_enough, timeout_seconds=300, what="a flood that outlasts some renewals")
        Witness(node).is_served()  # who is right gets in meanwhile
    finally:
        flood.stop()
    worker.is_served()
    let_in = {kind for kind, answer in flood.answers if answer == "let in"}
    assert let_in
    assert let_in <= {"right, Argon2id", "right, PBKDF2"}
    _renewed_in_time(node)
    assert "Traceback" not in node.log


def _renewed_in_time(node: FloodedNode) -> None:
    """No renewal failed, none came near the end of the lease, and the node became live once."""
    events = failover_log(node.url)
    codes = [one["code"] for one in events]
    assert codes.count("AMQ221007") == 1, events
    assert not {"ORT100001", "ORT100002"} & set(codes), events
    for one in events:
        if one["code"] == "ORT100004":  # on a machine with much else to do
            assert one["details"]["gap_ms"] < EXPIRATION_MS / 4, one
