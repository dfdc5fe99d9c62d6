"""Nodes that want a login, and give up on a message after two attempts, on any store."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import Servers
from tests.process.file_nodes import FileCluster, file_cluster
from tests.process.nodes import NodeProcess
from tests.process.takeover_pairs import STORES, stored
from tests.support.waiting import wait_until

PASSCODES = {"alice": "a:b\\c", "bob": "plain"}
"""Of a client that escapes nothing in CONNECT, as the STOMP text has it, and of one that does."""
DEAD_LETTERS = "DLQ"
_DIVERTS = """<diverts><divert name="audit"><address>orders.#</address>
  <forwarding-address>audit</forwarding-address></divert></diverts>"""
_LAST_VALUES = """<address-setting match="prices.#">
  <default-last-value-queue>true</default-last-value-queue></address-setting>"""
REDELIVERY_DELAY_MS = 700
SECONDS = 120
"""How long a client waits for what must come."""
_PERMISSIONS = (
    *("send", "consume", "browse", "createAddress"),
    *("createDurableQueue", "deleteDurableQueue"),
    *("createNonDurableQueue", "deleteNonDurableQueue"),
)


@dataclass(frozen=True)
class Place:
    """Where the messages of a scenario are."""

    store: str
    is_paged: bool = False
    """Beyond two messages a queue is in the store alone."""
    moves: bool = False
    """Another node takes over amid the scenario."""

    def __str__(self) -> str:
        """Return what pytest calls it."""
        return self.store + "-paged" * self.is_paged + "-moves" * self.moves


HERE = Place("sqlite")
EVERYWHERE = [
    Place(store, *queues)
    for store in STORES
    for queues in ((False, False), (True, False), (False, True), (True, True))
]


def core(*, is_paged: bool) -> str:
    """Return what a node's broker.xml says beside its store and its acceptor."""
    permissions = "".join(f'<permission type="{one}" roles="amq"/>' for one in _PERMISSIONS)
    users = "".join(
        f'<user name="{name}" password="{passcode}" roles="amq"/>'
        for name, passcode in PASSCODES.items()
    )
    paged = "<max-size-messages>2</max-size-messages>" if is_paged else ""
    return f"""<message-expiry-scan-period>200</message-expiry-scan-period>
        <users xmlns="urn:orthia">{users}</users>
        <security-settings><security-setting match="#">{permissions}</security-setting>
        </security-settings>
        <address-settings><address-setting match="#">{paged}
          <max-delivery-attempts>2</max-delivery-attempts>
          <dead-letter-address>{DEAD_LETTERS}</dead-letter-address>
        </address-setting>{_LAST_VALUES}
        <address-setting match="slow.#"><redelivery-delay>{REDELIVERY_DELAY_MS}</redelivery-delay>
        </address-setting>
        <address-setting match="newest.#"><default-ring-size>2</default-ring-size>
        </address-setting></address-settings>{_DIVERTS}"""


@contextmanager
def nodes_at(place: Place, servers: Servers | None, directory: Path) -> Iterator[FileCluster]:
    """Give nodes on a store; at the end nothing unexpected may be in their logs."""
    of_store = stored(place.store, servers, directory)
    with file_cluster(directory, of_store + core(is_paged=place.is_paged), security="") as nodes:
        yield nodes
        for node in nodes.nodes:
            assert "Traceback" not in node.log, node.log


@dataclass
class Scene:
    """The node of a scenario, and the one that takes over from it."""

    place: Place
    live: NodeProcess
    backup: NodeProcess | None = None

    @property
    def ports(self) -> list[int]:
        """Where a program finds them."""
        return [node.port for node in (self.live, self.backup) if node is not None]

    def take_over(self) -> None:
        """Kill the node; return when the other one serves."""
        assert self.backup is not None
        self.live.kill()
        self.backup.wait_serving()


class Scenes:
    """Nodes that are kept for the next scenario, unless one is killed in it."""

    def __init__(self, servers: Servers, directory: Path) -> None:
        self._servers = servers
        self._directory = directory
        self._alone: dict[Place, NodeProcess] = {}
        self._kept = ExitStack()
        self._count = 0

    @contextmanager
    def scene(self, place: Place) -> Iterator[Scene]:
        """Give the nodes for a scenario."""
        if place.moves:
            with nodes_at(place, self._servers, self._new_directory()) as nodes:
                yield Scene(place, *nodes.pair())
            return
        if place not in self._alone:
            made = nodes_at(place, self._servers, self._new_directory())
            self._alone[place] = self._kept.enter_context(made).alone()
        yield Scene(place, self._alone[place])
        wait_until(lambda: self._alone[place].is_running, what="the node still runs")

    def close(self) -> None:
        """End them."""
        self._kept.close()

    def _new_directory(self) -> Path:
        self._count += 1
        path = self._directory / str(self._count)
        path.mkdir()
        return path
