"""The console of a real pair in a real browser: what is watched, and what does no harm there."""

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from tests.process.nodes import NodeProcess, cluster, orthia
from tests.support.browser import Browser, browser, needs_browser
from tests.support.servers import free_port
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.extended, needs_browser]
MESSAGES = 100_000
HARM = "<script>window.harmed = 1</script><img src=x onerror='window.harmed = 1'>\"'"


class ConsoleOf:
    """The console and the API of one node."""

    def __init__(self, node: NodeProcess) -> None:
        self.node = node
        self._address = str(node.options["health"])
        self.url = f"http://{self._address}/console/"

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """Return what the API answers, which has to be good."""
        connection = HTTPConnection(self._address, timeout=120)
        try:
            headers = {"Content-Type": "application/json"}
            connection.request(method, f"/api/v1{path}", json.dumps(body or {}), headers)
            answer = connection.getresponse()
            found = json.loads(answer.read())
        finally:
            connection.close()
        assert answer.status < 300, found
        return found

    def queue(self, name: str) -> str:
        """Return the address of a queue's page."""
        return f"{self.url}queue?{urlencode({'name': name})}"


@contextmanager
def pair(directory: Path) -> Iterator[tuple[ConsoleOf, ConsoleOf]]:
    """Give the consoles of a live node and of its backup."""
    with cluster(f"sqlite:///{directory / 'orthia.db'}", directory) as nodes:
        live = nodes.live("live", health=f"127.0.0.1:{free_port()}").wait_serving()
        backup = nodes.backup("backup", health=f"127.0.0.1:{free_port()}").wait_log("AMQ221031")
        yield ConsoleOf(live), ConsoleOf(backup)


def stays(window: Browser) -> None:
    """Note the page, so that one that is loaded anew is told from one that follows."""
    window.run("window.stays = 1")


def stayed(window: Browser) -> bool:
    """Return whether the page is the one that was noted."""
    return bool(window.run("return window.stays === 1"))


def test_a_purge_is_watched_to_its_end(tmp_path: Path) -> None:
    """Of 100,000 messages: the page shows how far it is, and its end, without being loaded anew."""
    with pair(tmp_path) as (live, _), browser(tmp_path) as window:
        orthia(
            *("produce", "--broker", f"127.0.0.1:{live.node.port}", "--destination", "/queue/many"),
            *("--count", MESSAGES, "--size", 10),
        )
        window.open(live.queue("many"))
        assert f"{MESSAGES:,}" in window.text("#live")
        window.type("#most", str(MESSAGES))
        window.click("button[value=purge]")
        stays(window)
        seen: set[int] = set()

        def is_over() -> bool:
            jobs = window.text("#jobs")  # once: the page may go on between two looks
            told = re.search(r"([\d,]+) done, [\d,]+ of 100,000 looked at", jobs)
            if told:
                seen.add(int(told[1].replace(",", "")))
            return "done at" in jobs

        wait_until(is_over, what="the purge is over")
        assert max(seen) == MESSAGES
        assert len(seen) >= 2, "it was not watched, but seen at its end"
        assert "Messages\n0" in window.text("#live")
        assert stayed(window)
        assert window.complaints() == []


def test_a_takeover_is_seen_on_the_backups_page(tmp_path: Path) -> None:
    """When it happens, with the new token, in words; the page of the dead node says so, too."""
    with pair(tmp_path) as (live, backup), browser(tmp_path) as window:
        window.open(backup.url)
        assert "Role\nbackup" in window.text("#live")
        stays(window)
        live.node.kill()
        assert "Fencing token\n2" in window.wait_for("Role\nlive", "#live")
        window.wait_for("backup server is now active", "#live")
        assert stayed(window)
        assert window.complaints() == []
        window.open(f"{backup.url}queues")
        stays(window)
        backup.node.kill()
        window.wait_for("does not answer since", "#live-state")
        backup.node.start().wait_serving()
        wait_until(lambda: window.text("#live-state") == "", what="the page follows again")
        assert stayed(window)


def test_what_clients_name_and_send_does_no_harm(tmp_path: Path) -> None:
    """Markup, control characters, marks of direction, long properties: text, on every page."""
    with pair(tmp_path) as (live, _), browser(tmp_path) as window:
        live.ask("POST", "/queues", {"name": HARM, "routing-type": "anycast"})
        for body in (HARM, "\x1b]0;harm\x07\x00\u202e", '{"a": "</script>"}'):
            sent = {
                "destination": f"/queue/{HARM}",
                "body": body,
                "properties": {HARM: f"{HARM}\r\n\x00\x1b\u202e", "long": "x" * 60_000},
            }
            live.ask("POST", "/messages", sent)
        messages = live.ask("GET", f"/queues/{quote(HARM, safe='')}/messages")["messages"]
        pages = [f"{live.url}{page}" for page in ("queues", "dead-letters", "connections", "jobs")]
        pages += [f"{live.url}queues?{urlencode({'search': HARM})}", live.queue(HARM)]
        pages += [f"{live.queue(HARM)}&{urlencode({'selector': HARM})}", live.queue("no" + HARM)]
        pages += [
            f"{live.url}message?{urlencode({'queue': HARM, 'id': one['id'], 'as': form})}"
            for one in messages
            for form in ("text", "json", "hex")
        ]
        for page in pages:
            window.open(page)
            window.run("window.scrollTo(0, document.body.scrollHeight)")
            assert window.run("return window.harmed") is None, page
            assert window.run("return document.scripts.length") == 2, page
            assert window.run("return document.images.length") == 0, page
            complaints = [one for one in window.complaints() if "status of 404" not in one]
            assert complaints == [], page
        assert window.text("h1").startswith("Message")
        assert "window.harmed = 1" in window.text()


def test_everybody_can_use_the_pages(tmp_path: Path) -> None:
    """axe-core finds nothing serious on any page, in light and in dark colours."""
    with pair(tmp_path) as (live, backup), browser(tmp_path) as window:
        for number in range(3):
            sent = {"destination": "/queue/orders", "body": f'{{"number": {number}}}'}
            live.ask("POST", "/messages", sent)
        live.ask("POST", "/queues/orders/pause")
        live.ask("POST", "/queues", {"name": "copies", "routing-type": "anycast"})
        live.ask("POST", "/queues/orders/jobs", {"kind": "copy", "target": "copies"})
        message = live.ask("GET", "/queues/orders/messages")["messages"][0]["id"]
        paths = ["queues", "dead-letters", "connections", "jobs", "pair", "queue?name=orders"]
        paths.append(f"message?queue=orders&id={message}")
        pages = [*(f"{live.url}{path}" for path in paths), f"{backup.url}pair", f"{backup.url}jobs"]
        pictures = Path(os.environ.get("PICTURES", tmp_path))
        for dark in (False, True):
            window.choose_dark(dark=dark)
            for number, page in enumerate(pages):
                window.open(page)
                assert window.inaccessible() == [], page
                window.picture(pictures / f"{'dark' if dark else 'light'}-{number}.png")
