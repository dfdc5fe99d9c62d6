"""The clients of examples/: none of them loses an order by a takeover."""

import shutil
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.clients.test_programs import is_ruby_installed
from tests.examples.programs import COUNT, EXAMPLES, Program, programs
from tests.process.nodes import accepts, cluster
from tests.support.servers import free_port
from tests.support.waiting import wait_until
from tests.websocket.javascript_clients import MODULES, NODE, needs_chromium, needs_node
from tests.websocket.test_page import chromium

_GO = EXAMPLES / "go" / "build"
_needs_go = pytest.mark.skipif(
    not (_GO / "producer").exists(),
    reason="needs go-stomp: install Go (golang-go), then run make setup-test-all",
)
_needs_ruby = pytest.mark.skipif(
    not is_ruby_installed(),
    reason="needs Ruby's stomp: install ruby-stomp, as make setup-test-all does",
)

Commands = Callable[[list[str]], tuple[list[str], list[str]]]
"""Of a producer and a consumer that are given the addresses of both nodes."""


def _of(interpreter: str, suffix: str) -> Commands:
    """Return how to run producer and consumer with ``interpreter``."""
    directory = EXAMPLES / ("python" if suffix == ".py" else "ruby")
    producer, consumer = (str(directory / f"{one}{suffix}") for one in ("producer", "consumer"))
    return lambda nodes: (
        [interpreter, producer, str(COUNT), *nodes],
        [interpreter, consumer, *nodes],
    )


def _go(nodes: list[str]) -> tuple[list[str], list[str]]:
    return [str(_GO / "producer"), str(COUNT), *nodes], [str(_GO / "consumer"), *nodes]


def _survive(directory: Path, start: Callable[[list[str]], tuple[Program, Program]]) -> None:
    """Start a producer and a consumer, which may be one, and kill the live node amid the orders."""
    with cluster(f"sqlite:///{directory}/orthia.db", directory) as nodes:
        live, backup = nodes.pair()
        producer, consumer = start([f"127.0.0.1:{live.port}", f"127.0.0.1:{backup.port}"])
        producer.wait_for("stored", COUNT // 4)
        live.kill()
        assert len(producer.orders("stored")) < COUNT
        producer.wait_for("stored", COUNT)
        consumer.wait_for("got", COUNT)
        assert producer is consumer or producer.process.wait(120) == 0
    assert consumer.orders("got") == dict.fromkeys(range(COUNT), 1)


@pytest.mark.parametrize(
    "commands",
    [
        pytest.param(_of(sys.executable, ".py"), id="python"),
        pytest.param(_go, id="go", marks=[pytest.mark.extended, _needs_go]),
        pytest.param(_of("ruby", ".rb"), id="ruby", marks=[pytest.mark.extended, _needs_ruby]),
    ],
)
def test_no_order_is_lost_by_a_takeover(commands: Commands, tmp_path: Path) -> None:
    """The producer ends once each order is stored; the consumer works on each once."""
    with programs(tmp_path) as running:

        def start(nodes: list[str]) -> tuple[Program, Program]:
            producer, consumer = commands(nodes)
            return running.start(producer), running.start(consumer)

        _survive(tmp_path, start)


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """Give a copy of the page with the packages that npm installs beside it."""
    copy = shutil.copytree(EXAMPLES / "javascript", tmp_path / "page")
    (copy / "node_modules").symlink_to(MODULES)
    return copy


@pytest.mark.extended
@needs_node
def test_what_the_page_does_survives_a_takeover(page: Path, tmp_path: Path) -> None:
    """In Node, which loads the same module."""
    runner = shutil.copy(Path(__file__).with_name("orders.mjs"), page)
    with programs(tmp_path) as running:

        def start(nodes: list[str]) -> tuple[Program, Program]:
            urls = [f"ws://{node}/" for node in nodes]
            program = running.start([NODE, str(runner), str(COUNT), *urls], page)
            return program, program

        _survive(tmp_path, start)


@pytest.mark.extended
@needs_chromium
def test_the_page_survives_a_takeover(page: Path, tmp_path: Path) -> None:
    """In Chromium, with the web server that its README names; the console has what it shows."""
    port = free_port()
    site = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"]
    with programs(tmp_path) as running, ExitStack() as opened:
        server = running.start(site, page).process
        wait_until(lambda: accepts(port), what="the page is served")

        def start(nodes: list[str]) -> tuple[Program, Program]:
            urls = ",".join(f"ws://{node}/" for node in nodes)
            url = f"http://127.0.0.1:{port}/?send={COUNT}&nodes={urls}"
            opened.enter_context(chromium(tmp_path, url))
            shown = Program(server, tmp_path / "chromium.log")
            return shown, shown

        _survive(tmp_path, start)
