"""What is in the audit log, and what never is."""

import json
import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from orthia.broker.core.errors import NotAuthorized
from orthia.broker.core.identity import Principal
from orthia.broker.security.permissions import Security
from orthia.config.secrets import Secret
from orthia.config.security_settings import SecuritySetting, User
from tests.core.support import SETTINGS
from tests.core.test_server import ServerUnderTest, read_to_the_end, serving
from tests.hostile.test_logins import answer_to, log_in
from tests.support.waiting import wait_until

STAFF = frozenset({"staff"})
ALL = (
    *("send", "consume", "createAddress", "createDurableQueue", "manage"),
    *("deleteDurableQueue", "deleteAddress"),
)
SECURED = replace(
    SETTINGS,
    security_enabled=True,
    users=(User("ada", Secret("l0vel@ce"), STAFF), User("eve", Secret("hunter2"), frozenset())),
    security_settings=(SecuritySetting("#", dict.fromkeys(ALL, STAFF)),),
)
Lines = list[dict[str, Any]]


@pytest.fixture
def audited() -> Iterator[tuple[ServerUnderTest, Lines]]:
    """A server, and the lines it wrote."""
    lines: Lines = []
    with serving(SECURED) as server:
        server.broker.security.audit._write = lambda line: lines.append(json.loads(line))
        yield server, lines


def facts(line: dict[str, Any]) -> dict[str, Any]:
    """Return a line without its time and its connection, which are such."""
    assert line["time"].endswith("+00:00")
    assert line["node"] == "test"
    assert 0 < line["port"] < 65_536
    assert str(uuid.UUID(line["connection"])) == line["connection"]
    apart = {"time", "node", "port", "connection"}
    return {name: value for name, value in line.items() if name not in apart}


def test_who_came_and_went_is_noted(audited: tuple[ServerUnderTest, Lines]) -> None:
    """With the address, the user, its roles and the acceptor."""
    server, lines = audited
    with log_in(server, "ada", "l0vel@ce", "127.0.0.2") as client:
        client.sendall(b"DISCONNECT\nreceipt:bye\n\n\0")
        read_to_the_end(client)
    wait_until(lambda: len(lines) == 2, what="it is gone")
    assert lines[0]["connection"] == lines[1]["connection"]
    login, gone = map(facts, lines)
    assert login == {
        "event": "login",
        "from": "127.0.0.2",
        "user": "ada",
        "acceptor": login["acceptor"],
        "roles": ["staff"],
        "verified": True,
    }
    assert gone == {"event": "disconnect", "from": "127.0.0.2", "user": "ada"}


def test_a_failed_login_names_users_and_nothing_else(
    audited: tuple[ServerUnderTest, Lines],
) -> None:
    """People type the passcode where the name belongs."""
    server, lines = audited
    for login in ("ada", "l0vel@ce", "nobody"):
        assert b"wrong" in answer_to(server, login, "gu3ss", "127.0.0.2")
    assert [(one["event"], one["user"], one["from"]) for one in lines] == [
        ("login-failed", "ada", "127.0.0.2"),
        ("login-failed", None, "127.0.0.2"),
        ("login-failed", None, "127.0.0.2"),
    ]
    assert not {"l0vel@ce", "gu3ss"} & {str(value) for one in lines for value in one.values()}


def test_a_permission_refused_is_noted(audited: tuple[ServerUnderTest, Lines]) -> None:
    """With whoever asked, from where, what, and on which address."""
    server, lines = audited
    with log_in(server, "eve", "hunter2", "127.0.0.3") as client:
        client.sendall(b"SEND\ndestination:/queue/orders\n\nx\0")
        assert b"has no role with permission 'send'" in read_to_the_end(client)
    refused = next(one for one in lines if one["event"] == "permission-refused")
    assert facts(refused) == {
        "event": "permission-refused",
        "from": "127.0.0.3",
        "user": "eve",
        "permission": "send",
        "address": "orders",
    }


@pytest.mark.parametrize(
    "settings",
    [
        (
            SecuritySetting("a.#", {"consume": frozenset({"guests"})}),
            SecuritySetting("a.secret", {"consume": STAFF}),
        ),
        (SecuritySetting("a.*", {"consume": frozenset({"guests"})}),),
    ],
)
def test_a_wildcard_that_is_refused_is_noted(settings: tuple[SecuritySetting, ...]) -> None:
    """Though its own name is granted: it stands for an address that is not."""
    lines: list[bytes] = []
    security = Security(replace(SECURED, security_settings=settings), audit=lines.append)
    guest = Principal("guest", frozenset({"guests"}))
    with pytest.raises(NotAuthorized, match="stands for"):
        security.check_pattern(guest, "consume", "a.#")
    (refused,) = map(json.loads, lines)
    assert (refused["event"], refused["user"]) == ("permission-refused", "guest")
    assert (refused["permission"], refused["address"]) == ("consume", "a.#")


def test_what_is_only_asked_is_no_refusal() -> None:
    """Nobody was refused anything."""
    lines: list[bytes] = []
    security = Security(SECURED, audit=lines.append)
    eve = Principal("eve", frozenset())
    assert not security.allows(eve, "send", "orders")
    assert not lines
    with pytest.raises(NotAuthorized):
        security.check(eve, "send", "orders")
    assert len(lines) == 1


def test_every_management_operation_is_noted(audited: tuple[ServerUnderTest, Lines]) -> None:
    """With its arguments; one that is refused as the permission that lacks."""
    server, lines = audited
    request = (
        b"SEND\ndestination:activemq.management\n_AMQ_ResourceName:broker\n"
        b'_AMQ_OperationName:destroyQueue\nreceipt:1\n\n["orders", true]\0'
    )
    with log_in(server, "ada", "l0vel@ce", "127.0.0.2") as client:
        client.sendall(b"SEND\ndestination:/queue/orders\n\nx\0" + request)
        client.sendall(b"DISCONNECT\nreceipt:bye\n\n\0")
        assert b"deleted-messages:1" in read_to_the_end(client)
    managed = next(one for one in lines if one["event"] == "management")
    assert facts(managed) == {
        "event": "management",
        "from": "127.0.0.2",
        "user": "ada",
        "resource": "broker",
        "operation": "destroyQueue",
        "arguments": ["orders", True],
    }
    with log_in(server, "eve", "hunter2", "127.0.0.3") as client:
        client.sendall(request)
        read_to_the_end(client)
    refused = [one for one in lines if one["event"] == "permission-refused"]
    assert [(one["user"], one["permission"]) for one in refused] == [("eve", "manage")]
    assert (refused[0]["resource"], refused[0]["operation"]) == ("broker", "destroyQueue")


def test_of_the_same_reads_the_first_is_noted() -> None:
    """And of what changes something each."""
    lines: list[bytes] = []
    security = Security(SECURED, audit=lines.append)
    ada = Principal("ada", STAFF)
    for _ in range(2):
        security.check_management(ada, "broker", "getQueueNames", ["ANYCAST"])
        security.check_management(ada, "queue.later", "removeMessage", [4711])
    assert [
        (one["user"], one["resource"], one["operation"], one["arguments"])
        for one in map(json.loads, lines)
    ] == [
        ("ada", "broker", "getQueueNames", ["ANYCAST"]),
        ("ada", "queue.later", "removeMessage", [4711]),
        ("ada", "queue.later", "removeMessage", [4711]),
    ]


def test_without_a_log_nothing_is_made() -> None:
    """It costs nothing where nobody uses it."""
    security = Security(SECURED)
    security.audit.logged_in(Principal("ada", STAFF), "stomp")
    assert security.audit._write is None
