"""Each operation of the API on every store: refused, granted, and its line in the audit log."""

import asyncio
import base64
import inspect
import json
import logging
import re
from dataclasses import replace
from typing import Any, NamedTuple
from urllib.parse import quote

from orthia.broker.core.identity import Origin, Principal
from orthia.broker.management.abc import Caller, Handover, OperatorLogins
from orthia.broker.management.facade import Management
from orthia.broker.management.http.api import OPERATIONS
from orthia.broker.management.http.node_server import NodeServer
from orthia.broker.management.http.resources import PREFIX, Managed
from orthia.broker.management.job import RECORD_KIND
from orthia.broker.management.views import HandoverView, JobState
from orthia.broker.security.audit import Audit
from orthia.broker.security.permissions import PermissionRules
from orthia.config.security_settings import SecuritySetting
from orthia.config.settings import HealthSettings
from orthia.journal import Unit
from orthia.journal.model.codec import OperatorRecord
from orthia.journal.model.xid import Xid
from orthia.journal.xa import XaTransactions
from tests.core.stored_node import StoredNode
from tests.core.support import SETTINGS
from tests.journal.conftest import store as store
from tests.journal.support import JournalStore
from tests.management.support import OPERATOR, FakeClients, OnStore, connection
from tests.management.test_api import Raw, request
from tests.management.test_on_every_store import facade_is_counted, later
from tests.management.test_probes import Node

STAFF = frozenset({"staff"})
ADA = Principal("ada", STAFF, origin=Origin("10.0.0.9", 1))
AS_CLIENT = ("send", "createDurableQueue", "createAddress", "deleteDurableQueue", "deleteAddress")
EVERYTHING = SecuritySetting("#", dict.fromkeys(AS_CLIENT, STAFF))
MANAGE = SecuritySetting("activemq.management", {"manage": STAFF})
LOGGER_NAME = "orthia.for-a-test-of-permissions"


class Case(NamedTuple):
    """One operation: how it is asked for, and what it is called."""

    facade: str
    """The method of the facade."""
    method: str
    path: str
    """With the ids that the scene has in braces."""
    name: str
    """What permissions and the audit log call it: RESOURCE.OPERATION."""
    permission: str = "edit"
    body: dict[str, Any] | None = None


def _job(kind: str, operation: str, queue: str = "orders", **said: Any) -> Case:
    return Case(
        *("start_job", "POST", f"/queues/{queue}/jobs", f"queue.{queue}.{operation}"),
        body={"kind": kind, **said},
    )


_SEE = "view"
CASES = (
    Case("overview", "GET", "/overview", "broker.getStatus", _SEE),
    Case("memory", "GET", "/memory", "broker.getAddressMemoryUsage", _SEE),
    Case("queues", "GET", "/queues", "broker.listQueues", _SEE),
    Case("dead_letter_queues", "GET", "/dead-letter-queues", "broker.listQueues", _SEE),
    Case("queue", "GET", "/queues/orders", "queue.orders.getAttributes", _SEE),
    Case("addresses", "GET", "/addresses", "broker.listAddresses", _SEE),
    Case("address", "GET", "/addresses/orders", "address.orders.getAttributes", _SEE),
    Case(
        *("settings", "GET", "/addresses/orders/settings"),
        *("broker.getAddressSettingsAsJSON", _SEE),
    ),
    Case(
        *("bindings", "GET", "/addresses/orders/bindings", "broker.listBindingsForAddress", _SEE),
    ),
    Case("consumers", "GET", "/consumers", "broker.listAllConsumersAsJSON", _SEE),
    Case("consumers", "GET", "/queues/orders/consumers", "queue.orders.listConsumersAsJSON", _SEE),
    Case("connections", "GET", "/connections", "broker.listConnectionsAsJSON", _SEE),
    Case("browse", "GET", "/queues/orders/messages", "queue.orders.browse", _SEE),
    Case("message", "GET", "/queues/orders/messages/{first}", "queue.orders.getMessage", _SEE),
    Case("count", "GET", "/queues/orders/count", "queue.orders.countMessages", _SEE),
    Case("scheduled", "GET", "/scheduled", "broker.listScheduledMessages", _SEE),
    Case(
        "scheduled", "GET", "/queues/orders/scheduled", "queue.orders.listScheduledMessages", _SEE
    ),
    Case("transactions", "GET", "/transactions", "broker.listTransactions", _SEE),
    Case("jobs", "GET", "/jobs", "broker.listJobs", _SEE),
    Case("job", "GET", "/jobs/{stopped}", "broker.getJob", _SEE),
    Case(
        *("cancel_scheduled", "DELETE", "/scheduled/{scheduled}"),
        "broker.cancelScheduledMessage",
    ),
    Case(
        *("send", "POST", "/messages", "address./queue/orders.sendMessage"),
        body={"destination": "/queue/orders", "body": "new"},
    ),
    Case("create_queue", "POST", "/queues", "broker.createQueue", body={"name": "red"}),
    Case(
        *("change_queue", "PATCH", "/queues/red", "broker.updateQueue"),
        body={"max-consumers": 3},
    ),
    Case("pause_queue", "POST", "/queues/red/pause", "queue.red.pause"),
    Case("resume_queue", "POST", "/queues/red/resume", "queue.red.resume"),
    Case(
        *("attach_stream", "POST", "/queues/red/stream", "queue.red.attachStream"),
        body={"stream": "spark"},
    ),
    Case("stream", "GET", "/queues/red/stream", "queue.red.getStream", _SEE),
    Case("detach_stream", "DELETE", "/queues/red/stream", "queue.red.detachStream"),
    Case("delete_queue", "DELETE", "/queues/red", "broker.destroyQueue"),
    Case(
        *("create_address", "POST", "/addresses", "broker.createAddress"),
        body={"name": "blue", "routing-type": "multicast"},
    ),
    Case("pause_address", "POST", "/addresses/blue/pause", "address.blue.pause"),
    Case("resume_address", "POST", "/addresses/blue/resume", "address.blue.resume"),
    Case("delete_address", "DELETE", "/addresses/blue", "broker.deleteAddress"),
    _job("copy", "copyMessages", target="other"),
    _job("move", "moveMessages", ids=["{first}"], target="other"),
    _job("retry", "retryMessages", "other"),
    _job("priority", "changeMessagesPriority", priority=6),
    _job("expire", "expireMessages", ids=["{first}"]),
    _job("delete", "removeMessages", ids=["{first}"]),
    _job("cancel", "cancelScheduledMessages"),
    _job("purge", "removeAllMessages"),
    Case("start_job", "POST", "/addresses/other/purge", "address.other.removeAllMessages"),
    Case("continue_job", "POST", "/jobs/{continued}/continue", "broker.continueJob"),
    Case("stop_job", "POST", "/jobs/{stopped}/stop", "broker.stopJob"),
    Case(
        *("commit_transaction", "POST", "/transactions/{committed}/commit"),
        "broker.commitPreparedTransaction",
    ),
    Case(
        *("roll_back_transaction", "POST", "/transactions/{rolled}/rollback"),
        "broker.rollbackPreparedTransaction",
    ),
    Case("close_consumer", "DELETE", "/consumers/{consumer}", "broker.closeConsumerWithID"),
    Case("close_connection", "DELETE", "/connections/c1", "broker.closeConnectionWithID"),
    Case(
        *("close_connections", "POST", "/connections/close", "broker.closeConnectionsForUser"),
        body={"user": "bob"},
    ),
    Case(
        *("close_connections", "POST", "/connections/close", "broker.closeConnectionsForAddress"),
        body={"address": "10.0.0.7"},
    ),
    Case(
        *("set_log_level", "POST", "/log-level", "broker.setLogLevel"),
        body={"logger": LOGGER_NAME, "level": "ERROR"},
    ),
    Case("hand_over", "POST", "/handover", "broker.forceFailover"),
)
"""In an order in which each finds what it needs."""
_ELSEWHERE = {"finished", "all_queues", "in_steps", "queue_names", "remove_message"}
"""Waits for what ``job`` shows, or shows all of ``queues``, with the same permission; does nothing
by itself; or is asked for by Jolokia and messages to the management address alone."""


class _Logins(OperatorLogins):
    async def log_in(self, caller: Caller) -> Principal:
        del caller
        return ADA


class _Handover(Handover):
    def __init__(self) -> None:
        self.asked = 0

    async def hand_over(self) -> HandoverView:
        self.asked += 1
        return HandoverView("other", 0.5)


class Scene:
    """A node on which each of the operations has something to do."""

    def __init__(self, store: JournalStore) -> None:
        self.options = replace(SETTINGS, security_enabled=True, management_message_rbac=True)
        node = StoredNode(store, SETTINGS)
        node.send(*(f"m{number}" for number in range(8)))
        node.send("first", destination="/queue/other")
        node.send_all([later("later", 3_600_000), later("latest", 7_200_000)])
        self.xids = {name: Xid(1, name.encode(), b"b") for name in ("committed", "rolled")}
        self.jobs = {name: node.journal.next_id() for name in ("continued", "stopped")}
        for xid in self.xids.values():
            XaTransactions(node.journal).prepare(xid, Unit())
        for job in self.jobs.values():
            details = {"id": job, "job": "purge", "user": "op", "since-ms": 1, "done": 0}
            record = OperatorRecord(node.journal.next_id(), RECORD_KIND, "other", details)
            node.journal.add_binding(record)
        store.settle(node.journal)
        clients = FakeClients(
            connection(""), connection("c1"), connection("c2", user="bob"),
            connection("c3", address="10.0.0.7"),
        )  # fmt: skip
        self.handover = _Handover()
        self.managed = OnStore(node.take_over(self.options), clients, self.handover)
        self.lines: list[bytes] = []
        self.managed.node.broker.security.audit = Audit(self.lines.append, "test")
        self.managed.node.consume(0, destination="/queue/watched")

    def grant(self, *more: SecuritySetting) -> None:
        """Give the operator ``manage``, and what is named."""
        options = replace(self.options, security_settings=(EVERYTHING, MANAGE, *more))
        self.managed.node.broker.security.rules = PermissionRules(options)

    async def ids(self) -> dict[str, str]:
        """Return what cases name."""
        facade = self.managed.management
        messages = (await facade.browse(OPERATOR, "orders")).messages
        scheduled = (await facade.scheduled(OPERATOR)).messages
        found = {name: str(job) for name, job in self.jobs.items()}
        found |= {name: quote(str(xid)) for name, xid in self.xids.items()}
        found["first"] = str(messages[0].id) if messages else ""
        found["scheduled"] = str(scheduled[0].id) if scheduled else ""
        found["consumer"] = next((one.id for one in await facade.consumers(OPERATOR)), "")
        return found

    async def state(self) -> tuple[object, ...]:
        """Return what operations change."""
        facade = self.managed.management
        facade._forget_lists()
        return (
            (await facade.queues(OPERATOR)).items,
            [queue.stream for queue in self.managed.node.broker.queues().values()],
            await facade.addresses(OPERATOR),
            (await facade.scheduled(OPERATOR)).messages,
            await facade.transactions(OPERATOR),
            [(one.id, one.state) for one in await facade.jobs(OPERATOR)],
            list(self.managed.clients.ended),
            logging.getLogger(LOGGER_NAME).level,
            self.handover.asked,
        )


BASIC = "Basic " + base64.b64encode(b"ada:secret").decode()


def test_every_operation_is_refused_granted_and_audited(store: JournalStore) -> None:
    """Refused, nothing has happened; granted, there is one line that says who did what."""
    scene = Scene(store)
    managed = scene.managed
    read: set[str] = set()

    async def settled() -> None:
        while any(one.state is JobState.RUNNING for one in await managed.management.jobs(OPERATOR)):
            await managed.management.count(OPERATOR, "orders", "a = 1")

    async def ask(port: int, case: Case) -> Raw:
        ids = await scene.ids()
        body = None
        if case.body is not None:
            named = {
                name: [int(one.format(**ids)) for one in value] if name == "ids" else value
                for name, value in case.body.items()
            }
            body = json.dumps(named)
        headers = {"Authorization": BASIC, "Content-Type": "application/json"}
        path = PREFIX + case.path.format(**ids)
        return await asyncio.to_thread(request, port, case.method, path, body, headers)

    async def check(port: int, case: Case) -> None:
        before = await scene.state()
        scene.grant(SecuritySetting("mops.#", {}))
        scene.lines.clear()
        refused = await ask(port, case)
        assert refused.status == 403, (case, refused)
        needed = f"'{case.permission}' on address 'mops.{case.name}'"
        assert needed in json.loads(refused.body)["detail"]
        assert await scene.state() == before, case
        (line,) = audit(scene)
        assert (line["event"], line["permission"]) == ("permission-refused", case.permission)
        consumes = [SecuritySetting("red", {"consume": STAFF})] * (case.facade == "attach_stream")
        scene.grant(SecuritySetting(f"mops.{case.name}", {case.permission: STAFF}), *consumes)
        scene.lines.clear()
        granted = await ask(port, case)
        assert granted.status in (200, 201, 202), (case, granted)
        lines = audit(scene)
        if case.permission != _SEE or case.name not in read:
            (line,) = lines
            assert line["event"] == "management"
            assert f"{line['resource']}.{line['operation']}" == case.name
            assert (line["user"], line["from"]) == ("ada", "10.0.0.9")
        else:
            assert not lines, case  # a read is audited once in a while
        read.add(case.name)
        await settled()
        assert (await scene.state() == before) is (case.permission == _SEE), case

    async def all_of_them() -> None:
        server = NodeServer(
            HealthSettings("127.0.0.1", 0, None),
            Node(),
            asyncio.get_running_loop(),
            managed=lambda: Managed(managed.management, _Logins()),
            failover_logs=None,
        )
        server.start()
        try:
            for case in CASES:
                await check(server.server.port, case)
        finally:
            await asyncio.to_thread(server.close)

    try:
        managed.run(facade_is_counted(managed))
        managed.run(all_of_them())
    finally:
        logging.getLogger(LOGGER_NAME).setLevel(logging.NOTSET)


def audit(scene: Scene) -> list[dict[str, Any]]:
    """Return what ada did, or was not allowed."""
    lines = [json.loads(one) for one in scene.lines]
    return [one for one in lines if one["user"] == "ada"]


def test_no_operation_is_missing() -> None:
    """Each method of the facade is asked for by the API, and each route of it is tried above."""
    methods = {
        name
        for name, _ in inspect.getmembers(Management, inspect.iscoroutinefunction)
        if not name.startswith("_")
    }
    assert {one.facade for one in CASES} == methods - _ELSEWHERE
    tried = {(one.method, one.path) for one in CASES}
    for operation in OPERATIONS:
        pattern = re.sub(r"\{\w+\}", "[^/]+", operation.path)
        assert any(
            method == operation.method and re.fullmatch(pattern, path) for method, path in tried
        ), operation.path
