"""A page in headless Chromium, with a real node of Orthia."""

import json
import queue
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from tests.hostile.node import live_node
from tests.websocket.javascript_clients import CHROMIUM, HERE, MODULES, Seen, needs_chromium

pytestmark = pytest.mark.extended

_SECONDS = 240
_HOSTS = ("127.0.0.1", "localhost")
"""Two names of one site, which make two origins of its pages."""
_FILES = {
    "/": (HERE / "page.html", "text/html"),
    "/scenario.js": (HERE / "scenario.js", "text/javascript"),
    "/stomp.umd.js": (
        MODULES / "@stomp" / "stompjs" / "bundles" / "stomp.umd.js",
        "text/javascript",
    ),
}


class Site(ThreadingHTTPServer):
    """The site of a page, which tells it what it saw."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.options: dict[str, Any] = {}
        self.seen: queue.Queue[Seen] = queue.Queue()


class _Request(BaseHTTPRequestHandler):
    server: Site

    def do_GET(self) -> None:
        if self.path == "/options":
            self._answer(json.dumps(self.server.options).encode(), "application/json")
        elif self.path == "/frames":
            port = self.server.server_port
            frames = (f'<iframe src="http://{host}:{port}/"></iframe>' for host in _HOSTS)
            self._answer("".join(frames).encode(), "text/html")
        elif self.path in _FILES:
            path, kind = _FILES[self.path]
            self._answer(path.read_bytes(), kind)
        else:
            self.send_error(404)

    def do_POST(self) -> None:
        seen = Seen(**json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self._answer(b"", "text/plain")
        self.server.seen.put(seen)

    def _answer(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    @override
    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def serving_pages() -> Iterator[Site]:
    """Serve the page for the block."""
    with Site() as site:
        thread = threading.Thread(target=site.serve_forever)
        thread.start()
        try:
            yield site
        finally:
            site.shutdown()
            thread.join()


@contextmanager
def chromium(directory: Path, url: str) -> Iterator[None]:
    """Have a page open for the block."""
    arguments = [
        "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        "--no-first-run", "--disable-background-networking", "--disable-component-update",
        "--disable-sync", "--enable-logging=stderr", f"--user-data-dir={directory / 'profile'}",
    ]  # fmt: skip
    with (directory / "chromium.log").open("wb") as log:
        process = subprocess.Popen(
            [CHROMIUM, *arguments, url], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        try:
            yield
        finally:
            process.terminate()
            process.wait(60)


@needs_chromium
def test_a_page_speaks_stomp_and_one_of_another_site_does_not(tmp_path: Path) -> None:
    """The same page under two names of its site, of which the acceptor allows one."""
    with serving_pages() as site:
        port = site.server_port
        allowed = f"http://127.0.0.1:{port}"
        parameters = f";webSocketAllowedOrigins={allowed}"
        with live_node(tmp_path, parameters=parameters) as node:
            site.options = {
                "url": f"ws://127.0.0.1:{node.port}/stomp",
                "queue": "/queue/page",
                "sizes": [10, 20_000],
                "client": {},
            }
            with chromium(tmp_path, f"{allowed}/frames"):
                pages = {
                    seen.origin: seen
                    for seen in (site.seen.get(timeout=_SECONDS) for _ in range(2))
                }
            node.wait_log(f"a page of 'http://localhost:{port}' may not connect")
    seen = pages[allowed]
    assert seen.messages == [["bytes", 256, True], ["text", 20, True], ["text", 40_000, True]]
    assert (seen.errors, seen.closes) == ([], [1000])
    assert (seen.version, seen.subprotocol, seen.extensions) == ("1.2", "v12.stomp", "")
    other = pages[f"http://localhost:{port}"]
    assert (other.messages, other.closes) == ([], [1006])
