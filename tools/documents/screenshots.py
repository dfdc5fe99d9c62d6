"""``python -m tools.documents.screenshots DIRECTORY`` takes the pictures of docs/console.md.

Of a real pair, in Debian's Chromium: `orthia pair`, some queues, dead letters, and a takeover.
"""

import base64
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final

from orthia.broker.client.connection import BrokerAddress, Connection
from tests.support.browser import DRIVER, Browser, browser
from tests.support.servers import free_port
from tests.support.waiting import wait_until
from tests.websocket.javascript_clients import CHROMIUM

_CLI: Final = (sys.executable, "-m", "orthia.broker.cli")
_QUEUES: Final = {"orders": 1_284, "invoices": 31, "shipping.labels": 402, "mail.out": 0}
_REFUSED: Final = 12
"""Messages that a consumer rejects until they are dead letters."""
_ROLES: Final = ("live", "backup")
_WIDTH: Final = 1_180
_HEIGHTS: Final = {"queues": 560, "queue": 860, "dead-letters": 560, "pair": 600}


class Pair:
    """What ``orthia pair`` runs."""

    def __init__(self, directory: Path) -> None:
        self.stomp = {role: free_port() for role in _ROLES}
        self.http = {role: free_port() for role in _ROLES}
        self._log = directory / "log"
        options = [f"--{role}-port={self.stomp[role]}" for role in _ROLES]
        options += [f"--{role}-console-port={self.http[role]}" for role in _ROLES]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(  # noqa: S603 - our own program and options
                [*_CLI, "pair", "--data-dir", str(directory / "data"), *options],
                stdout=log,
                stderr=log,
            )
        self.wait("AMQ221031")
        self.wait("Ctrl-C stops both.")

    def wait(self, text: str) -> None:
        """Wait until it has printed ``text``."""
        wait_until(lambda: text in self._log.read_text(), what=f"the pair says {text}")

    def _said(self, pattern: str) -> str:
        found = re.search(pattern, self._log.read_text())
        if found is None:
            raise RuntimeError(f"the pair does not say {pattern!r}")
        return found[1]

    @property
    def login(self) -> str:
        """User and password, as a URL has them."""
        password = self._said("with the password ([^ ]+)\n")
        return f"admin:{password}"

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """Return what the API of the live node answers."""
        basic = base64.b64encode(self.login.encode()).decode()
        headers = {"Authorization": f"Basic {basic}", "Content-Type": "application/json"}
        with closing(HTTPConnection("127.0.0.1", self.http["live"], timeout=120)) as connection:
            connection.request(method, f"/api/v1{path}", json.dumps(body or {}), headers)
            return json.loads(connection.getresponse().read())

    def console(self, role: str, page: str, login: str = "") -> str:
        """Return the address of a page of the console."""
        return f"http://{login and f'{login}@'}127.0.0.1:{self.http[role]}/console/{page}"

    def kill_live(self) -> None:
        """End the live node as ``kill -9`` does, and wait until the backup serves."""
        os.kill(int(self._said(r"kill -9 (\d+) ")), signal.SIGKILL)
        self.wait("AMQ221010")

    def stop(self) -> None:
        """End both nodes."""
        self.process.terminate()
        self.process.wait(120)


@contextmanager
def _pair(directory: Path) -> Iterator[Pair]:
    found = Pair(directory)
    try:
        yield found
    finally:
        found.stop()


def _fill(pair: Pair) -> None:
    """Send messages, and reject some until they are dead letters."""
    at = BrokerAddress("127.0.0.1", pair.stomp["live"])
    for queue in _QUEUES:
        pair.ask("POST", "/queues", {"name": queue, "routing-type": "anycast"})
    with closing(Connection.open(at, timeout_seconds=120)) as client:
        for number in range(_REFUSED):
            client.send("SEND", {"destination": "/queue/invoices"}, _body(number))
        # Each message of a prefetch of one is rejected until the broker gives it up.
        headers = {"destination": "/queue/invoices", "id": "1", "ack": "client-individual"}
        client.send("SUBSCRIBE", headers)

        def are_dead_letters() -> bool:
            for frame in client.exchange(0.1):
                if frame.command == "MESSAGE":
                    client.send("NACK", {"id": frame.headers["ack"]})
            return bool(pair.ask("GET", "/queues/DLQ/count")["messages"] == _REFUSED)

        wait_until(are_dead_letters, what="what was rejected is dead")
        client.send("UNSUBSCRIBE", {"id": "1"})
        for queue, count in _QUEUES.items():
            for number in range(count):
                properties = {"customer": f"C-{number % 97:03}", "content-type": "application/json"}
                sent = {"destination": f"/queue/{queue}", **properties}
                client.send("SEND", sent, _body(number))
        client.send("SEND", {"destination": "/queue/mail.out", "receipt": "all"}, b"")
        wait_until(
            lambda: any(one.headers.get("receipt-id") == "all" for one in client.exchange(0.1)),
            what="everything is stored",
        )


def _body(number: int) -> bytes:
    return json.dumps({"order": 10_000 + number, "total": f"{number * 7 % 400}.90"}).encode()


def _take(window: Browser, pair: Pair, target: Path) -> None:
    for page in ("queues", "queue", "dead-letters"):
        query = "?name=orders" if page == "queue" else ""
        if page == "queues":
            window.open(pair.console("live", page, pair.login))  # logs in
        window.open(pair.console("live", page + query))
        _picture(window, target, page)
    pair.kill_live()
    window.open(pair.console("backup", "queues", pair.login))
    window.open(pair.console("backup", "pair"))
    window.wait_for("backup server is now active", "#live")
    _picture(window, target, "pair")


def _picture(window: Browser, target: Path, page: str) -> None:
    window.resize(_WIDTH, _HEIGHTS[page])
    window.picture(target / f"console-{page}.png")


def main() -> None:
    """Write the pictures into the directory that the command line names."""
    if len(sys.argv) != len(("program", "directory")):
        sys.exit("say where to: python -m tools.documents.screenshots DIRECTORY")
    if not (CHROMIUM and DRIVER):
        sys.exit("needs Chromium and its driver: install chromium and chromium-driver")
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name, _pair(Path(name)) as pair:
        _fill(pair)
        with browser(Path(name)) as window:
            _take(window, pair, target)


if __name__ == "__main__":
    main()
