"""The console over HTTP, as a browser without JavaScript asks for it and sends its forms."""

import base64
import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode

import pytest
from typing_extensions import override

from orthia.broker.management.views import JobKind
from orthia.config.address_settings import RoutingType
from orthia.config.secrets import Secret
from orthia.nodemanager.events import BackupActive, LiveActive
from orthia.nodemanager.failover_log import FailoverLog, log_file_name
from tests.management.support import OPERATOR, connection
from tests.management.test_api import Api

HOSTILE = "<script>alert(1)</script>\"'&\u202e\u200b"
"""No name of a queue may hold control characters; a header may."""
PASSCODE = "päss:word"


class Page(NamedTuple):
    """A page of the console."""

    status: int
    headers: dict[str, str]
    text: str

    @property
    def words(self) -> str:
        """What a person reads of it: without markup, and with single blanks."""
        return " ".join(unescape(re.sub(r"<[^>]*>", " ", self.text)).split())


class Browser:
    """Asks for pages and sends forms as the operator."""

    def __init__(self, api: Api) -> None:
        self.api = api

    def get(self, path: str, **headers: str) -> Page:
        """Return a page."""
        return self._send("GET", path, None, headers)

    def submit(self, path: str, **fields: object) -> Page:
        """Send a form, and return the page that is shown then."""
        answer = self.post(path, **fields)
        assert answer.status == 303, answer.words
        return self.get(answer.headers["location"].partition("#")[0])

    def post(self, path: str, **fields: object) -> Page:
        """Send a form, as a page of the console does."""
        form = urlencode(fields, doseq=True)
        return self._send("POST", path, form, {"Sec-Fetch-Site": "same-origin"})

    def _send(self, method: str, path: str, form: str | None, headers: dict[str, str]) -> Page:
        basic = base64.b64encode(f"op:{PASSCODE}".encode()).decode()
        sent = {"Authorization": f"Basic {basic}"} | headers
        if form is not None:
            sent["Content-Type"] = "application/x-www-form-urlencoded"
        answer = self.api.send(method, path, form, sent)
        return Page(answer.status, dict(answer.headers), answer.body.decode())

    def wait_for_job(self, path: str) -> Page:
        """Look at a page until no job runs on it."""
        for _ in range(200):
            page = self.get(path)
            if "<strong>running</strong>" not in page.text:
                return page
        raise AssertionError("the job does not end")


def of_queue(name: str, **more: str) -> str:
    """Return the address of a queue's page."""
    return f"/console/queue?{urlencode({'name': name} | more)}"


@pytest.fixture
def api() -> Api:
    """A node with a queue of three messages, and an empty one."""
    made = Api()
    for name in ("orders", "later"):
        create(made, name)
    for number in range(3):
        send(made, f'{{"number": {number}}}')
    return made


@pytest.fixture
def browser(api: Api) -> Browser:
    """The operator's browser."""
    return Browser(api)


def create(api: Api, name: str) -> None:
    """Create a queue."""
    node = api.node
    node.run(node.management.create_queue(OPERATOR, name, routing_type=RoutingType.ANYCAST))


def send(api: Api, body: str | bytes, queue: str = "orders", **more: object) -> None:
    """Send a message to a queue."""
    data = body if isinstance(body, bytes) else body.encode()
    sent = {"destination": f"/queue/{queue}", "body-base64": base64.b64encode(data).decode()}
    assert api.ask("POST", "/api/v1/messages", sent | more).status == 201


def ids(page: Page) -> list[str]:
    """Return the ids of the messages that a page shows."""
    return re.findall(r'name="ids" value="(\d+)"', page.text)


def test_the_console_is_where_one_looks_first(browser: Browser) -> None:
    """The root leads there, and there to the queues."""
    assert browser.get("/").headers["location"] == "/console/"
    assert browser.get("/console/").headers["location"] == "/console/queues"


def test_queues_are_searched_sorted_and_paged(browser: Browser, api: Api) -> None:
    """By links and a form; the fullest queue first, if that is asked for."""
    for number in range(60):
        create(api, f"many.{number:02}")
    first = browser.get("/console/queues?search=MANY&sort=-name")
    assert "60 queues with “MANY”" in first.words
    assert "many.59" in first.words
    assert "many.09" not in first.words
    assert "many.09" in browser.get("/console/queues?search=MANY&sort=-name&page=2").words
    fullest = browser.get("/console/queues?sort=-messages").text
    assert 'aria-sort="descending"' in fullest
    assert re.findall(r"queue\?name=([\w.]+)", fullest)[0] == "orders"


def test_a_message_is_shown_as_text_json_and_hex(browser: Browser, api: Api) -> None:
    """Its headers beside it; JSON is indented by itself."""
    send(api, b"\xff\x00A", properties={"colour": "red"})
    *_, json_id, binary = ids(browser.get(of_queue("orders")))
    path = f"/console/message?queue=orders&id={json_id}"
    assert '{ "number": 2 }' in browser.get(path).words
    assert "00000000 7b 22 6e" in browser.get(f"{path}&as=hex").words
    shown = browser.get(f"/console/message?queue=orders&id={binary}").words
    assert "It is no UTF-8 text." in shown
    assert "ff 00 41" in shown
    assert "colour red" in shown


def test_a_purge_asks_how_many(browser: Browser) -> None:
    """Fewer than there are delete nothing; then the job is shown to its end."""
    path = of_queue("orders")
    assert "How many messages may be deleted? The queue has 3." in browser.get(path).words
    for most, problem in (("2", "has 3 messages, and 2 may be deleted"), ("", "say how many")):
        refused = browser.post(path, do="purge", most=most)
        assert refused.status == 400
        assert problem in refused.words
    assert len(ids(browser.get(path))) == 3
    browser.submit(path, do="purge", most="3")
    over = browser.wait_for_job(path)
    assert "done at" in over.words
    assert "3 done, 3 of 3 looked at" in over.words
    assert ids(over) == []


def test_ticked_messages_are_moved_retried_and_deleted(browser: Browser) -> None:
    """And no other; retry brings them back."""
    path = of_queue("orders")
    first, second, _ = ids(browser.get(path))
    browser.submit(path, do="move", ids=[first, second], target="later", which="ticked")
    assert len(ids(browser.wait_for_job(path))) == 1
    later = of_queue("later")
    moved = ids(browser.get(later))
    assert len(moved) == 2
    browser.submit(later, do="retry", ids=moved[0], which="ticked")
    browser.wait_for_job(later)
    back = browser.get(path)
    assert len(ids(back)) == 2
    browser.submit(later, do="delete", ids=moved[1], which="ticked")
    assert ids(browser.wait_for_job(later)) == []
    assert "no message is ticked" in browser.post(path, do="delete").words
    assert "a move needs a target" in browser.post(path, do="move", which="all").words


def test_a_paused_queue_says_so(browser: Browser) -> None:
    """And has a button that resumes it."""
    path = of_queue("orders")
    assert '<strong class="state">paused</strong>' in browser.submit(path, do="pause").text
    assert "paused" in browser.get("/console/queues").words
    assert "paused" not in browser.submit(path, do="resume").words


def test_dead_letters_are_grouped_and_go_back(browser: Browser, api: Api) -> None:
    """By the queue that they came from, whatever it is called."""
    name = "o'clock"
    create(api, name)
    create(api, "DLQ")
    send(api, "late", queue=name)
    for queue in ("orders", name):
        api.node.job(JobKind.MOVE, queue, target="DLQ")
    page = browser.get("/console/dead-letters")
    assert "orders 3 3 0" in page.words
    assert f"{name} 1 1 0" in page.words
    browser.submit("/console/dead-letters?name=DLQ", origin=name)
    browser.wait_for_job(of_queue("DLQ"))
    assert "o'clock" not in browser.get("/console/dead-letters").words
    assert len(ids(browser.get(of_queue(name)))) == 1
    assert len(ids(browser.get(of_queue("orders")))) == 0


def test_a_connection_is_closed(browser: Browser, api: Api) -> None:
    """It is told by whom, and no longer listed."""
    api.node.clients.there = {one: connection(one) for one in ("7", "8")}
    assert "2 connections" in browser.get("/console/connections").words
    assert "1 connection," in browser.submit("/console/connections", connection="7").words
    assert api.node.clients.ended == [
        ("7", f"an operator, user '{OPERATOR.name}', closed this connection")
    ]


class Markup(HTMLParser):
    """Collects what a browser would act on."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    @override
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_hostile_names_and_bodies_are_text(browser: Browser, api: Api) -> None:
    """Markup is escaped, what is not seen is shown by its code, a megabyte is cut."""
    name = HOSTILE.replace("\u202e\u200b", "")
    create(api, name)
    send(
        api,
        f"{HOSTILE}\x1b[2J",
        queue=name,
        properties={name: f"{HOSTILE}\r\n\x00\x1b", "long": "x" * 60_000},
    )
    message = ids(browser.get(of_queue(name)))[0]
    pages = [
        browser.get("/console/queues"),
        browser.get(of_queue(name, selector=HOSTILE)),
        browser.get(f"/console/queues?{urlencode({'search': HOSTILE})}"),
        browser.get(f"/console/message?{urlencode({'queue': name, 'id': message})}"),
        browser.get(of_queue(HOSTILE)),
    ]
    for page in pages:
        assert "alert(1)" in page.words
        scripts = [about for tag, about in Markup(page.text).tags if tag == "script"]
        assert scripts == [
            {"src": f"/console/static/{name}", "defer": None} for name in ("htmx.min.js", "live.js")
        ]
        shown = re.sub(r'value="[^"]*"', "", page.text)  # fields have what was typed
        assert not set(shown) & set("\x00\x1b\u202e\u200b\r")
        assert len(page.text) < 100_000
    assert "\\u202e\\u200b\\x1b[2J" in pages[3].words
    assert "(60,000 characters)" in pages[3].words


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "http://elsewhere.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Host": "elsewhere.example", "Origin": "http://elsewhere.example"},
    ],
)
def test_a_form_of_another_site_does_nothing(api: Api, headers: dict[str, str]) -> None:
    """Nor one that does not say where it is from, though the browser sends the login."""
    basic = base64.b64encode(f"op:{PASSCODE}".encode()).decode()
    sent = {"Content-Type": "application/x-www-form-urlencoded", "Authorization": f"Basic {basic}"}
    answer = api.send("POST", of_queue("orders"), "do=purge&most=9", sent | headers)
    assert answer.status == 403
    assert api.node.texts("orders") == [f'{{"number": {one}}}' for one in range(3)]


def test_pages_are_locked_down(browser: Browser) -> None:
    """No script of another place and none in a page, in no frame; a login is asked for."""
    page = browser.get(of_queue("orders"))
    assert "script-src 'self';" in page.headers["content-security-policy"]
    assert "unsafe" not in page.headers["content-security-policy"]
    assert page.headers["x-frame-options"] == "DENY"
    assert page.headers["referrer-policy"] == "same-origin"
    tags = Markup(page.text).tags
    assert not [name for _, about in tags for name in about if name.startswith(("on", "style"))]
    for tag, about in tags:
        where = about.get("href") or about.get("src") or about.get("action") or ""
        assert where.startswith(("/console/", "#")) or not where, (tag, about)
    wrong = base64.b64encode(b"op:wrong").decode()
    refused = browser.get("/console/queues", Authorization=f"Basic {wrong}")
    assert refused.status == 401
    assert refused.headers["www-authenticate"].startswith("Basic ")


def test_what_is_wrong_is_said(browser: Browser) -> None:
    """On a page with a way back; a wrong selector beside its field."""
    missing = browser.get(of_queue("nosuch"))
    assert (missing.status, "there is no queue 'nosuch'" in missing.words) == (404, True)
    wrong = browser.get(of_queue("orders", selector="a ="))
    assert wrong.status == 200
    assert 'aria-invalid="true"' in wrong.text
    assert browser.get("/console/queues?page=x").status == 400
    assert browser.post(of_queue("orders"), do="eat").status == 400
    assert browser.get("/console/static/..%2fpages.py").status == 404


def test_every_field_has_a_label(browser: Browser) -> None:
    """And every table a caption and headers, every page one heading of the first level."""
    message = ids(browser.get(of_queue("orders")))[0]
    for path in ("queues", "connections", "dead-letters", "jobs", "pair"):
        check_markup(browser.get(f"/console/{path}").text)
    check_markup(browser.get(of_queue("orders")).text)
    check_markup(browser.get(f"/console/message?queue=orders&id={message}").text)


def check_markup(text: str) -> None:
    """Fail where somebody who hears a page would miss something."""
    tags = Markup(text).tags
    labelled = {about["for"] for tag, about in tags if tag == "label"}
    named = [about["id"] for _, about in tags if "id" in about]
    assert len(set(named)) == len(named)
    for tag, about in tags:
        if tag in ("input", "select") and about.get("type") != "hidden":
            assert "aria-label" in about or about.get("id") in labelled, about
    count = [tag for tag, _ in tags].count
    assert count("table") == count("caption") == count("thead")
    assert count("h1") == 1


def test_a_backup_shows_the_pair(browser: Browser, api: Api) -> None:
    """Its own role; and of a queue it says where to ask."""
    api.is_live = False
    assert browser.get("/console/").headers["location"] == "/console/pair"
    pair = browser.get("/console/pair")
    assert "Role backup" in pair.words
    assert "queues, connections and jobs are on the live node" in pair.words
    queue = browser.get(of_queue("orders"))
    assert queue.status == 503
    assert "Queues, connections and jobs are on the live node." in queue.words


def test_a_backup_with_a_token_asks_for_it(browser: Browser, api: Api) -> None:
    """As a password, which a browser can ask for; ``/role`` takes it as a token alone."""
    api.is_live = False
    api.token = Secret("seen by few")
    refused = browser.get("/console/pair")
    assert refused.status == 401
    assert refused.headers["www-authenticate"].startswith("Basic ")
    basic = base64.b64encode(b"anybody:seen by few").decode()
    assert browser.get("/console/pair", Authorization=f"Basic {basic}").status == 200
    assert browser.get("/console/pair", Authorization="Bearer seen by few").status == 200
    assert browser.get("/role", Authorization=f"Basic {basic}").status == 401


def test_takeovers_are_told_in_words(browser: Browser, api: Api, tmp_path: Path) -> None:
    """Those of all logs in the directory, the newest first; a torn line is left out."""
    api.is_live = False
    api.failover_logs = tmp_path
    for name, event in (("a", LiveActive(token=7)), ("b", BackupActive(token=8))):
        path = tmp_path / log_file_name(name)
        log = FailoverLog(node_name=name, holder_id=name, role="live", path=path)
        log.emit(event)
        log.close(60)
    with path.open("a") as file:
        file.write('{"db_time": ')
    words = browser.get("/console/pair").words
    later = words.index("b backup server is now active under token 8")
    assert later < words.index("a server is now active under token 7")
