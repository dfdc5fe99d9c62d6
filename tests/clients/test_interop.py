"""Apache's qpid-interop-test 2.0, of which QIT in the environment names a checkout.

``make test-amqp QIT=CHECKOUT`` makes its clients, as far as the machine has tools for them. Each of
them sends to each of them: values of every type, headers, messages of JMS, large ones.
"""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.process.file_nodes import file_cluster
from tests.process.nodes import NodeProcess
from tests.process.takeover_pairs import stored

CHECKOUT: Final = Path(os.environ.get("QIT") or "nowhere")
MADE: Final = {
    "python-proton": ".venv/bin/python",
    "javascript-rhea": "shims/javascript-rhea/node_modules/rhea",
    "java-qpid-jms": "shims/java-qpid-jms/target/qit-jms-shim-2.0.0-jar-with-dependencies.jar",
    "java-protonj2": "shims/java-protonj2/target/qit-shim-protonj2.jar",
}
"""By client: what is there if it can be run."""
CLIENTS: Final = [name for name, path in MADE.items() if (CHECKOUT / path).exists()]
FRAMES: Final = {
    "": "not smallframe and not largeframe",
    "?maxFrameSize=4096": "smallframe",
    "?maxFrameSize=1048576": "largeframe",
}
"""By the parameters of the acceptor: the tests of large messages that are for it."""
_SECONDS: Final = 7_200
_AT_ONCE: Final = "2"
pytestmark = [
    pytest.mark.extended,
    pytest.mark.timeout(_SECONDS),
    pytest.mark.xdist_group("interop"),  # one after the other: its programs wait for a minute each
    pytest.mark.skipif(
        "QIT" not in os.environ,
        reason="needs a checkout of qpid-interop-test: run make test-amqp QIT=CHECKOUT",
    ),
]


@pytest.fixture(params=[""])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NodeProcess]:
    """Give a node on SQLite, whose acceptor has the parameters that a test says."""
    core = stored("sqlite", None, tmp_path)
    with file_cluster(tmp_path, core, parameters=request.param) as nodes:
        yield nodes.alone()


def run(node: NodeProcess, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a program of the checkout, which finds the node."""
    url = f"127.0.0.1:{node.port}"
    programs = CHECKOUT.resolve() / ".venv" / "bin"
    return subprocess.run(
        [str(programs / command[0]), *command[1:]],
        cwd=CHECKOUT,
        env={
            **os.environ,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "QIT_BROKER_URL": url,
            "QIT_BROKER_URL_SMALL_FRAME": url,
            "QIT_BROKER_URL_LARGE_FRAME": url,
            "PYTHONPATH": "",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_SECONDS,
        check=False,
    )


def test_values_of_every_type_come_as_they_were_sent(node: NodeProcess) -> None:
    """Of 18 primitive types and 4 of several values; what a client itself does wrong is known."""
    clients = [one for one in CLIENTS if one != "java-qpid-jms"]
    options = [part for one in clients for part in ("--sender", one, "--receiver", one)]
    broker = ["--broker", f"amqp://127.0.0.1:{node.port}", "--workers", _AT_ONCE]
    ran = run(node, "qit", "test", "amqp-types", *options, *broker)
    assert re.search(r"^Failed: 0$", ran.stdout, re.MULTILINE), ran.stdout
    assert re.search(rf"^Total: +{22 * len(clients) ** 2}$", ran.stdout, re.MULTILINE)


def run_suite(node: NodeProcess, suite: str, *options: str) -> None:
    """Run a file of its tests; none of them may fail."""
    command = ["python", "-m", "pytest", f"tests/test_{suite}.py", "-n", _AT_ONCE]
    ran = run(node, *command, "--shims", ",".join(CLIENTS), "--timeout", "240", *options)
    assert ran.returncode == 0, ran.stdout
    assert re.search(r"\b[1-9][0-9]* passed", ran.stdout), ran.stdout


@pytest.mark.parametrize("suite", ["amqp_headers", "jms_unified"])
def test_messages_come_as_they_were_sent(node: NodeProcess, suite: str) -> None:
    """Headers; texts, bytes, maps, streams, headers and properties of JMS."""
    run_suite(node, suite)


@pytest.mark.parametrize(("node", "frames"), FRAMES.items(), indirect=["node"])
def test_large_messages_come_as_they_were_sent(node: NodeProcess, frames: str) -> None:
    """A mebibyte in one value, and in lists and arrays of values that end amid a frame."""
    run_suite(node, "large_content", "-k", frames)
