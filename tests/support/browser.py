"""A real Chromium, by the WebDriver protocol of Debian's chromium-driver."""

import base64
import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.servers import free_port
from tests.support.waiting import wait_until
from tests.websocket.javascript_clients import CHROMIUM, MODULES

DRIVER: Final = shutil.which("chromedriver") or ""
AXE: Final = MODULES / "axe-core" / "axe.min.js"
needs_browser: Final = pytest.mark.skipif(
    not (CHROMIUM and DRIVER and AXE.exists()),
    reason="needs Chromium, its driver and axe-core: install chromium, chromium-driver, nodejs and"
    " npm, then run make setup-test-all",
)
_SECONDS: Final = 120
_ELEMENT: Final = "element-6066-11e4-a52e-4f735466cecf"
"""What WebDriver calls an element by."""
_ARGUMENTS: Final = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--window-size=1280,1000",
)  # fmt: skip


class Browser:
    """One window."""

    def __init__(self, port: int, directory: Path) -> None:
        """Open it; ``port`` is the driver's, ``directory`` holds the profile."""
        self._port = port
        options = {
            "binary": CHROMIUM,
            "args": [*_ARGUMENTS, f"--user-data-dir={directory / 'profile'}"],
        }
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        opened = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/session/{opened['sessionId']}"

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        connection = HTTPConnection("127.0.0.1", self._port, timeout=_SECONDS)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            value = json.loads(answer.read())["value"]
        finally:
            connection.close()
        assert answer.status == 200, value
        return value

    def _do(self, path: str, **body: object) -> Any:
        return self._ask("POST", f"{self._session}/{path}", body)

    def open(self, url: str) -> None:
        """Open a page, and wait until it is loaded."""
        self._do("url", url=url)

    def run(self, script: str, *arguments: object) -> Any:
        """Return what a function of JavaScript returns, whose body is ``script``."""
        return self._do("execute/sync", script=script, args=arguments)

    def text(self, selector: str = "body") -> str:
        """Return what a person reads of the first element that a selector of CSS finds."""
        return str(self.run("return document.querySelector(arguments[0]).innerText", selector))

    def _element(self, selector: str) -> str:
        found = self._do("element", using="css selector", value=selector)
        return f"element/{found[_ELEMENT]}"

    def type(self, selector: str, text: str) -> None:
        """Type into a field."""
        self._do(f"{self._element(selector)}/value", text=text)

    def click(self, selector: str) -> None:
        """Click on something."""
        self._do(f"{self._element(selector)}/click")

    def choose_dark(self, *, dark: bool) -> None:
        """Prefer dark colours, or light ones."""
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._do(
            "goog/cdp/execute", cmd="Emulation.setEmulatedMedia", params={"features": [feature]}
        )

    def wait_for(self, words: str, selector: str = "body") -> str:
        """Wait until an element says ``words``, and return all it says then."""
        wait_until(lambda: words in self.text(selector), what=f"{selector} says {words!r}")
        return self.text(selector)

    def complaints(self) -> list[str]:
        """Return what the browser complained of since it was asked last."""
        return [str(one["message"]) for one in self._do("se/log", type="browser")]

    def inaccessible(self) -> list[str]:
        """Return what axe-core finds in the page that is serious or critical."""
        found = self.run(
            AXE.read_text() + "; return axe.run({resultTypes: ['violations']}).then(found =>"
            " found.violations.map(one => [one.impact, one.id, one.nodes.map(node => node.html)]))"
        )
        return [str(one) for one in found if one[0] in ("serious", "critical")]

    def resize(self, width: int, height: int) -> None:
        """Give what is seen this size, in pixels, without bars to scroll it by."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._do("goog/cdp/execute", cmd="Emulation.setDeviceMetricsOverride", params=size)
        self._do("goog/cdp/execute", cmd="Emulation.setScrollbarsHidden", params={"hidden": True})

    def picture(self, path: Path) -> None:
        """Write a picture of what is seen."""
        path.write_bytes(base64.b64decode(self._ask("GET", f"{self._session}/screenshot")))

    def close(self) -> None:
        """Close it."""
        self._ask("DELETE", self._session)


@contextmanager
def browser(directory: Path) -> Iterator[Browser]:
    """Give a window for the block."""
    port = free_port()
    with (directory / "chromedriver.log").open("wb") as log:
        driver = subprocess.Popen([DRIVER, f"--port={port}"], stdout=log, stderr=log)
        try:
            wait_until(lambda: _is_ready(port), what="chromedriver is ready")
            window = Browser(port, directory)
            try:
                yield window
            finally:
                window.close()
        finally:
            driver.terminate()
            driver.wait(60)


def _is_ready(port: int) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=_SECONDS)
    try:
        connection.request("GET", "/status")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()
