"""A Spring Boot application with qpid-jms and pooled-jms: its features, a crash amid a flood."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from orthia.config.settings import Role
from tests.clients.jms.java import RUNS_ALL, Program, missing, reason
from tests.conftest import Servers
from tests.process.file_nodes import FileNodeProcess, file_cluster
from tests.process.takeover_pairs import stored

pytestmark = [
    pytest.mark.extended,
    pytest.mark.timeout(2_400),
    pytest.mark.skipif(missing("spring") or not RUNS_ALL, reason=reason("test-amqp")),
]
MESSAGES: Final = int(os.environ.get("AMQP_MESSAGES", "50000"))
"""Of the flood on PostgreSQL; on files a tenth."""
SECONDS: Final = 1_800
"""How long a flood may take on a busy machine."""
POLICY: Final = "<failover-on-shutdown>true</failover-on-shutdown>"
OPTIONS: Final = [
    "--spring.jms.listener.session.transacted=true",
    "--spring.jms.template.receive-timeout=60s",
    "--spring.main.banner-mode=off",
    "--logging.level.root=warn",
]


@pytest.fixture
def application(tmp_path: Path) -> Iterator[Program]:
    """Give the application, compiled."""
    program = Program("spring", tmp_path)
    yield program
    program.kill()


def test_an_application_of_spring_boot_runs_unchanged(tmp_path: Path, application: Program) -> None:
    """Replies, a transaction that fails once, selectors, a durable subscription, a browser."""
    with file_cluster(tmp_path) as cluster:
        url = f"--broker.url=amqp://127.0.0.1:{cluster.alone().port}"
        application.start("shop.Orders", url, "--scenario=features", *OPTIONS)
        told = [one for one in application.end(300) if one.split(" ")[0] in EVENTS]
    assert told == [
        *("reply quote for tea", "order a attempt 1", "order b attempt 1", "order b attempt 2"),
        *("done a by attempt 1", "done b by attempt 2", "done null"),
        *("part red3", "browsed [red2, blue2, blue3]", "selected blue3"),
        *("news 1", "news 2", "news 3"),
    ]


def test_the_properties_of_spring_boot_act(tmp_path: Path, application: Program) -> None:
    """A durable subscription, priority, time to live, delay and delivery mode without code."""
    with file_cluster(tmp_path) as cluster:
        url = f"--broker.url=amqp://127.0.0.1:{cluster.alone().port}"
        application.start("shop.Orders", url, "--scenario=properties", *OPTIONS, *PROPERTIES)
        *_, told = application.end(300)
    assert told == "price 7.50 priority 7 mode 1 lives 3600000 ms after 100 ms of JmsTopic"


PROPERTIES: Final = [
    "--broker.pooled=false",
    "--spring.jms.client-id=shop",
    "--spring.jms.pub-sub-domain=true",
    "--spring.jms.subscription-durable=true",
    "--spring.jms.listener.session.acknowledge-mode=client",
    "--spring.jms.template.default-destination=prices",
    "--spring.jms.template.delivery-delay=100ms",
    "--spring.jms.template.delivery-mode=non_persistent",
    "--spring.jms.template.priority=7",
    "--spring.jms.template.qos-enabled=true",
    "--spring.jms.template.time-to-live=1h",
]
EVENTS: Final = {"reply", "order", "done", "part", "browsed", "selected", "news"}


@pytest.mark.parametrize(
    ("store", "knows_both", "messages"),
    [("postgresql", True, MESSAGES), ("files", False, MESSAGES // 10)],
    ids=["both-nodes-in-its-url", "the-other-node-by-failover-server-list"],
)
def test_nothing_is_lost_or_doubled_when_the_live_node_is_killed_amid_a_flood(
    tmp_path: Path,
    application: Program,
    shared_servers: Servers,
    store: str,
    messages: int,
    *,
    knows_both: bool,
) -> None:
    """Each message that was accepted was moved on once, by a transaction; those in doubt again."""
    with file_cluster(tmp_path, stored(store, shared_servers, tmp_path)) as cluster:
        live = cluster.node(Role.LIVE, "live", policy=POLICY)
        backup = cluster.node(Role.BACKUP, "backup", policy=POLICY)
        tell_both(live, backup)
        live.start().wait_serving()
        backup.start().wait_log("AMQ221031")
        known = [live, backup] if knows_both else [live]
        urls = ",".join(f"amqp://127.0.0.1:{node.port}" for node in known)
        flood = ["--broker.url=failover:(" + urls + ")", f"--messages={messages}"]
        application.start("shop.Orders", "--scenario=flood", *flood, *OPTIONS)
        application.wait_printed(f"sent {messages // 2}\n", SECONDS)
        live.kill()
        *_, told = application.end(SECONDS)
        assert told == f"moved {messages}, distinct {messages}", application.printed
        assert "AMQ221010" in backup.log


def tell_both(*nodes: FileNodeProcess) -> None:
    """Name all nodes in the acceptor of each, which tells clients of them."""
    servers = ",".join(f"127.0.0.1:{node.port}" for node in nodes)
    for node in nodes:
        node.parameters += f";amqpFailoverServers={servers}"
