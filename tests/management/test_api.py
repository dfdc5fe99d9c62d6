"""The API over HTTP: a real server before a core, and plain requests."""

import asyncio
import base64
import json
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from starlette.requests import Request

from orthia.broker.core.errors import AuthenticationFailed
from orthia.broker.core.identity import Principal
from orthia.broker.management.abc import Caller, OperatorLogins
from orthia.broker.management.http.call import credentials
from orthia.broker.management.http.node_server import NodeServer
from orthia.broker.management.http.resources import Managed
from orthia.broker.protocols.amqp.values import Value
from orthia.config.secrets import Secret
from orthia.config.settings import HealthSettings
from tests.amqp.support import Client as AmqpClient
from tests.management import support
from tests.management.support import OPERATOR
from tests.management.test_probes import Node
from tools.documents.management_api import reference

QUEUE = 'a/b c"d%2F'
IN_PATH = "a%2Fb%20c%22d%252F"


class Logins(OperatorLogins):
    """Knows one user."""

    async def log_in(self, caller: Caller) -> Principal:
        """Accept ``op`` with its passcode, wherever it is."""
        if (caller.login, caller.passcode) != ("op", "päss:word"):
            raise AuthenticationFailed("login or passcode is wrong")
        return replace(OPERATOR)


class Raw(NamedTuple):
    """What a request got, as it came."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Answer(NamedTuple):
    """What a request got."""

    status: int
    headers: Mapping[str, str]
    body: Any


class Api:
    """A node behind its API; ``ask`` sends one request while the core goes on."""

    def __init__(self) -> None:
        self.node = support.Managed()
        self.seen = Node()
        self.is_live = True
        self.token: Secret | None = None
        self.failover_logs: Path | None = None

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        passcode: str = "päss:word",
        **headers: str,
    ) -> Answer:
        """Return the answer to one request as the operator."""
        basic = base64.b64encode(f"op:{passcode}".encode()).decode()
        sent = {"Authorization": f"Basic {basic}", "Content-Type": "application/json"}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        data = body if isinstance(body, bytes) else json.dumps(body) if body is not None else None
        status, got, text = self.send(method, path, data, sent)
        return Answer(status, got, json.loads(text) if text else None)

    def send(
        self, method: str, path: str, data: str | bytes | None, headers: Mapping[str, str]
    ) -> Raw:
        """Return the answer to one request."""

        async def run() -> Raw:
            async with self.serving() as port:
                return await asyncio.to_thread(request, port, method, path, data, headers)

        return self.node.run(run(), forever=True)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[int]:
        """Serve HTTP meanwhile, on the port that is returned."""
        managed = Managed(self.node.management, Logins())
        server = NodeServer(
            HealthSettings("127.0.0.1", 0, self.token),
            self.seen,
            asyncio.get_running_loop(),
            managed=lambda: managed if self.is_live else None,
            failover_logs=self.failover_logs,
            ha_policy="Shared Store Backup",
        )
        server.start()
        try:
            yield server.server.port
        finally:
            await asyncio.to_thread(server.close)


def request(
    port: int, method: str, path: str, data: str | bytes | None, headers: Mapping[str, str]
) -> Raw:
    """Return the answer to one request."""
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, data, headers)
        got = connection.getresponse()
        return Raw(got.status, dict(got.getheaders()), got.read())
    finally:
        connection.close()


@pytest.fixture
def api() -> Api:
    """A node with a queue whose name has to be quoted in paths, and three messages in it."""
    made = Api()
    made.ask("POST", "/api/v1/queues", {"name": QUEUE, "routing-type": "anycast"})
    for number in range(3):
        text = f"number {number}"
        assert (
            made.ask(
                "POST", "/api/v1/messages", {"destination": f"/queue/{QUEUE}", "body": text}
            ).status
            == 201
        )
    return made


def test_a_property_that_json_has_no_number_for_is_told_as_a_text() -> None:
    """Whatever a client of AMQP sends, its queue can be browsed."""
    api = Api()
    sender = AmqpClient(api.node.core)
    said: dict[str, Value] = {"a": math.nan, "b": math.inf}
    sender.send(sender.sender("orders"), "x", application=said)
    api.node.core.settle()
    answer = api.ask("GET", "/api/v1/queues/orders/messages")
    assert answer.body["messages"][0]["properties"] == {"a": "NaN", "b": "Infinity"}


def test_queues_are_listed_by_page(api: Api) -> None:
    """Sorted and searched by the server, with the number of all that match."""
    found = api.ask("GET", "/api/v1/queues?search=B%20C&sort=-messages&limit=1").body
    assert (found["total"], found["queues"][0]["name"]) == (1, QUEUE)
    assert found["queues"][0]["messages"] == 3


def test_a_name_is_quoted_in_a_path(api: Api) -> None:
    """A slash, a quote, a blank and a percent sign are part of a queue's name."""
    assert api.ask("GET", f"/api/v1/queues/{IN_PATH}").body["name"] == QUEUE


def test_messages_are_browsed_by_page(api: Api) -> None:
    """The next page begins where the last ended, and all stay where they are."""
    first = api.ask("GET", f"/api/v1/queues/{IN_PATH}/messages?limit=2&body-bytes=100").body
    rest = api.ask(
        "GET", f"/api/v1/queues/{IN_PATH}/messages?after={first['next']}&body-bytes=100"
    ).body
    bodies = [one["body"] for one in (*first["messages"], *rest["messages"])]
    assert bodies == ["number 0", "number 1", "number 2"]
    assert rest["next"] is None
    assert api.ask("GET", f"/api/v1/queues/{IN_PATH}/count").body == {"messages": 3}


def test_a_purge_is_a_job(api: Api) -> None:
    """It is accepted, has a place to be asked for, and tells how many it deleted."""
    started = api.ask("POST", f"/api/v1/queues/{IN_PATH}/jobs", {"kind": "purge"})
    assert started.status == 202
    where = started.headers["location"]
    for _ in range(100):
        job = api.ask("GET", where).body
        if job["state"] != "running":
            break
    assert (job["state"], job["done"]) == ("done", 3)
    assert api.ask("GET", f"/api/v1/queues/{IN_PATH}").body["messages"] == 0


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "detail"),
    [
        ("GET", "/queues/nosuch", None, 404, "there is no queue 'nosuch'"),
        ("GET", "/queues?limit=many", None, 400, "limit is 'many'; expected an integer"),
        ("GET", "/queues?limit=1&limit=2", None, 400, "parameter 'limit' is given twice"),
        (
            "GET",
            "/jobs?x=1",
            None,
            400,
            "there is no 'x' here; expected none",
        ),
        ("POST", "/queues", {}, 400, "name is missing: its name"),
        ("POST", "/queues", {"name": 5}, 400, "name is '5'; expected a string"),
        (
            "POST",
            f"/queues/{IN_PATH}/jobs",
            {"kind": "eat"},
            400,
            "kind is 'eat'; expected one of purge, delete, move, copy, retry, expire, cancel,"
            " priority",
        ),
        (
            "POST",
            f"/queues/{IN_PATH}/jobs",
            {"kind": "move"},
            400,
            "a move needs a target, a queue: none was named",
        ),
        ("POST", "/queues", b"[1]", 400, "the body is not a JSON object"),
        ("POST", "/queues", b"{", 400, "the body is not JSON: "),
        ("POST", "/messages", b" " * 3_000_000, 429, "the body is longer than 2097152 bytes"),
        ("GET", "/jobs/x", None, 400, "job 'x' is no number"),
        ("PATCH", "/queues", None, 405, "PATCH /api/v1/queues: Method Not Allowed"),
        ("GET", "/nothing", None, 404, "GET /api/v1/nothing: Not Found"),
    ],
)
def test_what_is_wrong_is_said(
    api: Api, method: str, path: str, body: object, status: int, detail: str
) -> None:
    """As problem details; and nothing has happened."""
    answer = api.ask(method, f"/api/v1{path}", body)
    assert answer.headers["content-type"] == "application/problem+json"
    assert (answer.status, answer.body["status"]) == (status, status)
    assert answer.body["detail"].startswith(detail)
    assert api.ask("GET", f"/api/v1/queues/{IN_PATH}").body["messages"] == 3


def test_a_wrong_login_is_refused(api: Api) -> None:
    """With the challenge that has a browser ask for another."""
    answer = api.ask("GET", "/api/v1/overview", passcode="wrong")
    assert (answer.status, answer.body["detail"]) == (401, "login or passcode is wrong")
    assert answer.headers["www-authenticate"].startswith("Basic ")


@pytest.mark.parametrize(
    "given",
    [
        [b"Basic YTpi", b"Basic YzpkZWY="],
        [b"Bearer abc", b"Basic YTpi"],
        [b"Basic YTpi", b"Digest x"],
        [b"Negotiate abc"],
        [b"Basic YQ=="],
    ],
)
def test_one_login_is_given_or_none(given: list[bytes]) -> None:
    """A proxy may look at the first of two, and this node at the other."""
    headers = [(b"authorization", one) for one in given]
    with pytest.raises(AuthenticationFailed, match="expected one Authorization header"):
        credentials(Request({"type": "http", "headers": headers}))


@pytest.mark.parametrize("path", ["/api/v1/messages", "/console/jolokia/", "/console/queue?name=x"])
def test_no_body_is_read_without_a_login(api: Api, path: str) -> None:
    """It is refused while its body is still to come: bodies cost memory."""
    basic = base64.b64encode(b"op:wrong").decode()
    sent = {"Authorization": f"Basic {basic}", "Content-Length": "1000000"}
    sent["Sec-Fetch-Site"] = "same-origin"
    assert api.send("POST", path, None, sent).status == 401


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/api/v1/overview", {"Host": "[::1"}, 403),
        ("/console/jolokia/", {"Host": "[x]y"}, 403),
        ("/console/jolokia/", {"Host": "localhost", "Origin": "http://["}, 403),
        ("/console/queues", {"Referer": "http://["}, 401),
        ("/api/v1/overview", {"Authorization": "Basic \xff\xfe"}, 401),
        ("/api/v1/overview?" + "a&" * 100, {}, 400),
        ("/console/jolokia/?" + "a&" * 100, {}, 401),
    ],
)
def test_a_head_without_sense_is_refused(
    api: Api, path: str, headers: dict[str, str], status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """As the client's mistake: nobody writes errors into the log without a login."""
    assert api.send("GET", path, None, headers).status == status
    assert not caplog.records


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("POST", {"Origin": "http://elsewhere.example"}, 403),
        ("POST", {"Sec_Fetch_Site": "cross-site"}, 403),
        ("POST", {"Content_Type": "text/plain"}, 415),
        ("GET", {"Host": "elsewhere.example"}, 403),
        ("GET", {"Host": "localhost:8161"}, 200),
    ],
)
def test_a_page_of_another_site_does_nothing(
    api: Api, method: str, headers: dict[str, str], status: int
) -> None:
    """A browser that is logged in here is of no use to it."""
    body = {"destination": "/queue/stolen", "body": "x"} if method == "POST" else None
    path = "/api/v1/messages" if method == "POST" else "/api/v1/overview"
    assert api.ask(method, path, body, **headers).status == status
    assert api.ask("GET", "/api/v1/queues/stolen").status == 404


@pytest.mark.parametrize("path", ["/live/", "/api/v1/queues/", "/console/queues/"])
def test_a_path_with_a_slash_too_many_leads_nowhere(api: Api, path: str) -> None:
    """Least of all to another host, which whoever asks may name."""
    answer = api.send("GET", path, None, {"Host": "127.0.0.1.elsewhere.example"})
    assert (answer.status, answer.headers.get("location")) == (404, None)


def test_a_node_that_is_not_live_says_so(api: Api) -> None:
    """A backup has no queues to show."""
    api.is_live = False
    answer = api.ask("GET", "/api/v1/queues")
    assert answer.status == 503
    assert answer.body["detail"] == "this node is not live: ask the node that serves clients"


def test_the_document_names_every_operation(api: Api) -> None:
    """It is there without a login, and what it names is there."""
    document = api.ask("GET", "/api/v1/openapi.json", passcode="none").body
    operations = [one for path in document["paths"].values() for one in path.values()]
    assert len({one["operationId"] for one in operations}) == len(operations)
    assert document["paths"]["/queues/{queue}"]["delete"]["parameters"][1]["name"] == "force"


def test_the_page_says_what_there_is() -> None:
    """docs/management-api.md is what python -m tools.documents.management_api writes."""
    page = Path(__file__).parents[2] / "docs" / "management-api.md"
    assert page.read_text() == reference(), "make docs"
