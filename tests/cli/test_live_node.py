"""The commands that ask the live node, against a real one."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from orthia.broker.cli import watching
from orthia.broker.cli.app import orthia
from orthia.broker.cli.managing import NodeOptions
from orthia.broker.cli.settings_options import StoreOptions
from orthia.broker.client.connection import BrokerAddress, Connection, Login
from orthia.broker.client.failover import FailoverLink
from orthia.broker.client.management import (
    ManagementAddress,
    ManagementClient,
    ManagementUnreachable,
)
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.config.urls import DatabaseUrl
from orthia.database import Database
from orthia.nodemanager.locks.holder_id import HolderId
from orthia.nodemanager.locks.lease import Lock
from orthia.nodemanager.locks.reports import Report, SqlReportStore
from orthia.nodemanager.locks.sql_store import SqlNodeManagerStore
from tests.cli.conftest import PROGRAM, Run, finished
from tests.support.servers import free_port
from tests.support.waiting import wait_until

PASSWORD = "quiet-harbour-7"


@dataclass
class Node:
    """A live node of `orthia create` and `orthia run`."""

    config: Path
    port: int
    http: int
    environment: dict[str, str] = field(default_factory=lambda: {"ORTHIA_PASSWORD": PASSWORD})

    def __call__(self, *arguments: object, given: str = "", code: int = 0) -> Result:
        """Run a command as its user, which must end with an exit code."""
        words = [*map(str, arguments), "--config", str(self.config), "--user", "admin"]
        ended = CliRunner().invoke(
            orthia, words, prog_name="orthia", input=given, env=self.environment
        )
        assert ended.exit_code == code, ended.output
        return ended

    def told(self, *arguments: object, code: int = 0) -> Any:
        """Return what a command prints as JSON."""
        return json.loads(self(*arguments, "--json", code=code).stdout)

    def fill(self, queue: str, *bodies: str) -> list[int]:
        """Create a queue with these messages; return their ids."""
        self("queue", "create", queue)
        for body in bodies:
            self("message", "send", f"/queue/{queue}", "--body", body, "-P", f"kind={body}")
        return [one["id"] for one in self.told("queue", "browse", queue)["messages"]]

    def bodies(self, queue: str) -> list[str]:
        """Return the bodies of a queue's messages."""
        page = self.told("queue", "browse", queue, "--bodies", 1000)
        return [one["body"] for one in page["messages"]]

    def consumer(self, queue: str) -> Connection:
        """Return a client that consumes from a queue and acknowledges nothing."""
        link = FailoverLink(
            (BrokerAddress("127.0.0.1", self.port),),
            Login("admin", PASSWORD),
            patience_seconds=60,
            say=lambda _: None,
        )
        client = link.connect()
        headers = {"destination": f"/queue/{queue}", "id": "1", "ack": "client", "receipt": "s"}
        client.send("SUBSCRIBE", headers, b"")
        while not any(one.command == "RECEIPT" for one in client.exchange(1)):
            pass
        return client


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """Give a live node, one for all tests of this module."""
    directory = tmp_path_factory.mktemp("live") / "node"
    port, http = free_port(), free_port()
    made = finished(
        *("create", str(directory), "--user", "admin"),
        *("--port", str(port), "--health-port", str(http)),
        ORTHIA_PASSWORD=PASSWORD,
    )
    assert made.returncode == 0, made.stderr
    node = Node(directory / "etc" / "broker.xml", port, http)
    log = (directory / "log").open("w")
    process = subprocess.Popen([*PROGRAM, "run", str(node.config)], stdout=log, stderr=log)
    where = NodeOptions((ManagementAddress("127.0.0.1", http),))

    def is_live() -> bool:
        assert process.poll() is None, (directory / "log").read_text()
        try:
            where.client.find_live()
        except ManagementUnreachable:
            return False
        return True

    try:
        wait_until(is_live, what="the node is live")
        yield node
    finally:
        process.terminate()
        process.wait(60)
        log.close()


def test_a_queue_from_its_creation_to_its_deletion(node: Node) -> None:
    """Create, look, pause, resume and delete say what they did."""
    assert node("queue", "create", "a/b ü", "--option", "exclusive=true").stdout == (
        "created queue 'a/b ü' of address 'a/b ü', anycast\n"
    )
    assert node.told("queue", "show", "a/b ü")["exclusive"] is True
    changed = node(
        "queue", "update", "a/b ü", "--option", "exclusive=false", "--max-consumers", "3"
    )
    assert changed.stdout == "changed queue 'a/b ü'\n"
    shown = node.told("queue", "show", "a/b ü")
    assert (shown["exclusive"], shown["max-consumers"]) == (False, 3)
    assert "Say what to change" in node("queue", "update", "a/b ü", code=64).stderr
    assert (
        "change its options there" in node("queue", "update", "DLQ", "--filter", "", code=77).stderr
    )
    assert node("queue", "pause", "a/b ü").stdout == "queue 'a/b ü' is paused, with 0 messages\n"
    assert node.told("queue", "list", "--search", "a/B")[0]["paused"] is True
    assert node("queue", "resume", "a/b ü").stdout == "queue 'a/b ü' is resumed, with 0 messages\n"
    assert node("queue", "delete", "a/b ü").stdout == "a/b ü: deleted, with 0 messages\n"
    refused = node("queue", "show", "a/b ü", code=77)
    assert refused.stderr == "orthia: there is no queue 'a/b ü'\n"


def test_messages_are_moved_copied_and_sent_back(node: Node) -> None:
    """Each by selector or id, and a dead letter without a destination."""
    ids = node.fill("m.from", "one", "two", "three")
    node("queue", "create", "m.to")
    moved = node("queue", "move", "m.from", "m.to", "--selector", "kind = 'two'")
    assert moved.stdout == "moved 1 of queue 'm.from' to queue 'm.to'\n"
    node("queue", "copy", "m.from", "m.to", "--id", ids[0])
    assert (node.bodies("m.from"), node.bodies("m.to")) == (["one", "three"], ["two", "one"])
    assert node("queue", "retry", "m.to").stdout == "sent back 2 of queue 'm.to'\n"
    assert sorted(node.bodies("m.from")) == ["one", "one", "three", "two"]
    shown = node("message", "show", "m.from", ids[2]).stdout
    assert "kind" in shown
    assert shown.endswith("\nthree\n")


def test_what_destroys_asks_with_the_number_first(node: Node) -> None:
    """Without a yes nothing happens; with nobody to answer it is a wrong command line."""
    ids = node.fill("d.q", "one", "two", "three")
    ended = node("queue", "purge", "d.q", given="n\n", code=1)
    question = "Delete all messages of queue 'd.q', 3 at this moment? [y/N] "
    assert ended.stderr == f"{question}nothing was done\n"
    nobody = node("queue", "purge", "d.q", code=64)
    assert "Nobody answered, so nothing was done: add --yes if that is what you want." in (
        nobody.stderr
    )
    assert len(node.bodies("d.q")) == 3
    ended = node("message", "delete", "d.q", ids[1], given="y\n")
    assert ended.stderr == "Delete 1 message of queue 'd.q'? [y/N] "
    assert ended.stdout == "deleted 1 of queue 'd.q'\n"
    stays = node("queue", "delete", "d.q", code=1)
    assert stays.stderr == (
        "d.q: queue 'd.q' has 2 messages: it is deleted by force only, and then its messages are"
        " gone\n"
    )
    ended = node("queue", "delete", "d.q", "--force", given="n\n", code=1)
    assert ended.stderr == (
        "Delete queue 'd.q' with 2 messages and 0 consumers? [y/N] nothing was done\n"
    )
    assert node("queue", "purge", "d.q", "--yes").stdout == "deleted 2 of queue 'd.q'\n"
    assert node.bodies("d.q") == []


def test_messages_a_consumer_has_are_left_until_it_is_closed(node: Node) -> None:
    """The exit code says so; closing the consumer gives them back."""
    node.fill("c.q", "one", "two")
    with closing(node.consumer("c.q")):
        wait_until(lambda: node.told("queue", "show", "c.q")["delivering"] == 2, what="deliveries")
        ended = node("queue", "purge", "c.q", "--yes", code=1)
        assert ended.stdout == (
            "deleted 0 of queue 'c.q'; left 2 as they are: consumers have them, or nowhere takes"
            " them\n"
        )
        [consumer] = node.told("consumer", "list", "--queue", "c.q")
        own = ("connection", "list", "--search", consumer["connection"])
        assert [one["user"] for one in node.told(*own)] == ["admin"]
        closed = node("consumer", "close", consumer["id"], "--yes")
        assert closed.stdout == f"closed {consumer['id']}\n"
    wait_until(lambda: not node.told(*own), what="the end of the connection")
    gone = node("connection", "close", consumer["connection"], "--yes", code=1)
    assert gone.stderr == (
        f"orthia: there is no connection '{consumer['connection']}': perhaps its client has left by"
        " now\n"
    )
    assert node("queue", "purge", "c.q", "--yes").stdout == "deleted 2 of queue 'c.q'\n"


def test_a_job_is_named_and_watched_later(node: Node) -> None:
    """``--no-wait`` prints the id alone; the job is shown by it."""
    node.fill("j.q", "one")
    number = int(node("queue", "purge", "j.q", "--yes", "--no-wait").stdout)
    shown = node.told("job", "show", number, "--watch")
    assert (shown["kind"], shown["state"], shown["done"]) == ("purge", "done", 1)
    assert number in [one["id"] for one in node.told("job", "list")]
    refused = node("job", "stop", number, code=77)
    assert refused.stderr == f"orthia: job {number} is over: it is done\n"
    refused = node("job", "continue", number, code=77)
    assert refused.stderr == f"orthia: job {number} is done: an interrupted one is continued\n"


def test_an_address(node: Node) -> None:
    """It is created, looked at with its settings, and deleted once it has no queue."""
    node("address", "create", "a.a", "--routing-type", "multicast")
    assert node.told("address", "show", "a.a", "--settings")["settings"]["max-size-bytes"] == -1
    node("queue", "create", "a.q", "--address", "a.a")
    assert node.told("address", "list", "--search", "a.a")[0]["queues"] == ["a.q"]
    refused = node("address", "delete", "a.a", code=77)
    assert refused.stderr == "orthia: address 'a.a' has queue 'a.q': delete these first\n"
    node("address", "pause", "a.a")
    assert node("address", "purge", "a.a", "--yes").stdout == "deleted 0 of address 'a.a'\n"
    node("address", "resume", "a.a")
    node("queue", "delete", "a.q")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["queue", "move", "r.q", "r.q"], "target"),
        (["queue", "move", "r.q", "nowhere"], "orthia: there is no queue 'nowhere'"),
        (["queue", "browse", "r.q", "--selector", "a = = 'b'"], "column"),
        (["message", "delete", "r.q", "1", "--yes"], "nothing was done"),
    ],
)
def test_what_the_node_refuses_is_said_as_the_node_says_it(
    node: Node, words: list[str], said: str
) -> None:
    """And nothing has happened."""
    if not node.told("queue", "list", "--search", "r.q"):
        node.fill("r.q", "one")
    refused = node(*words, code=77)
    assert said in refused.stderr
    assert refused.stdout == ""
    assert node.bodies("r.q") == ["one"]


def test_without_a_login_the_list_is_that_of_the_store(node: Node, run: Run) -> None:
    """What needs the node says how to log in."""
    at = f"http://127.0.0.1:{node.http}"
    listed = run("queue", "list", "--config", node.config)
    assert listed.exit_code == 0
    assert listed.stderr == (
        f"orthia: the live node at {at} asks for a login (--user); shown is what the store has\n"
    )
    refused = run("queue", "list", "--management", at)
    assert refused.exit_code == 77
    assert refused.stderr == (
        f"orthia: the node at {at} asks for a login: add --user NAME; the password is taken from"
        " ORTHIA_PASSWORD, or typed when asked\n"
    )
    wrong = {"ORTHIA_PASSWORD": "no"}
    said = f"orthia: the node at {at} refuses user 'admin': login or passcode is wrong"
    for words in (
        ("job", "list", "--management", at),
        ("queue", "list", "--management", at),
        ("queue", "list", "--config", node.config),
    ):
        refused = run(*words, "--user", "admin", environment=wrong)
        assert refused.exit_code == 77
        assert refused.stderr == f"{said}\n"
    refused = run("queue", "list", "--management", at, "--user", "admin")
    assert refused.stderr == f"{said}; no password was given: set ORTHIA_PASSWORD\n"


def test_of_several_nodes_the_live_one_is_asked(node: Node, run: Run) -> None:
    """The first address refuses connections."""
    nowhere = f"http://127.0.0.1:{free_port()}"
    asked = run(
        *("job", "list", "--json", "--management", nowhere, "--user", "admin"),
        *("--management", f"127.0.0.1:{node.http}"),
        environment=node.environment,
    )
    assert asked.exit_code == 0, asked.output


def test_a_node_that_says_nothing_is_left_for_the_live_one(node: Node) -> None:
    """As a frozen one, which accepts connections: reads and changes go to the other."""
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        addresses = [
            ManagementAddress("127.0.0.1", frozen.getsockname()[1]),
            ManagementAddress("127.0.0.1", node.http),
        ]
        reads = ManagementClient(addresses, "admin", PASSWORD, probe_seconds=3)
        reads.get("queues")
        changes = ManagementClient(addresses, "admin", PASSWORD, probe_seconds=3)
        changes.post("messages", body={"destination": "f.q", "body": ""})
    assert [reads.live, changes.live] == [addresses[1]] * 2


def test_one_node_that_says_nothing_is_not_waited_for_long() -> None:
    """As a frozen one, where no other is known: the error says of which, and why."""
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        address = ManagementAddress("127.0.0.1", frozen.getsockname()[1])
        client = ManagementClient([address], "admin", PASSWORD, probe_seconds=0.2)
        silent = r"within 0\.2 s whether it is live: its process is frozen"
        with pytest.raises(ManagementUnreachable, match=silent):
            client.get("queues")
        with pytest.raises(ManagementUnreachable, match=silent):
            client.delete("queues", "orders")


def test_what_is_scheduled_is_listed_and_cancelled(node: Node, run: Run) -> None:
    """As the node has it; without one, or with --store, as the database has it."""
    client = ManagementClient([ManagementAddress("127.0.0.1", node.http)], "admin", PASSWORD)
    hour_ms = 3_600_000
    for hours in (2, 1):
        due = int(time.time() * 1000) + hours * hour_ms
        client.post(
            "messages", body={"destination": "/queue/later", "body": "", "delivery-ms": due}
        )
    first, second = node.told("scheduled", "list", "later")
    assert first["due-ms"] < second["due-ms"]
    assert first["destination"] == "/queue/later"
    stored = json.loads(
        run("scheduled", "list", "--store", "--json", "--config", node.config).stdout
    )
    assert [one["message"] for one in stored] == [first["id"], second["id"]]
    assert stored[0]["queue"] == "orthia.scheduled.anycast.later"
    asked = run("scheduled", "list", "--json", "--config", node.config)
    assert json.loads(asked.stdout) == stored
    assert "asks for a login (--user); shown is what the store has" in asked.stderr
    asked = node("scheduled", "cancel", first["id"], code=64)
    assert "Delete 1 message that is to be delivered later? [y/N]" in asked.output
    assert node("scheduled", "cancel", first["id"], "--yes").stdout == "cancelled 1 of 1\n"
    gone = node("scheduled", "cancel", first["id"], second["id"], "--yes", code=1)
    assert "cancelled 1 of 2" in gone.stdout
    assert f"message {first['id']} is not to be delivered later" in gone.stderr
    assert node.told("scheduled", "list") == []


def test_transactions_are_listed_and_those_of_clients_left_to_them(node: Node) -> None:
    """Only what is prepared can be committed by an operator."""
    with closing(node.consumer("transacted")) as client:
        client.send("BEGIN", {"transaction": "tx-1", "receipt": "b"}, b"")
        headers = {"destination": "/queue/transacted", "transaction": "tx-1", "receipt": "s2"}
        client.send("SEND", headers, b"x")
        wait_until(
            lambda: any(one.headers.get("receipt-id") == "s2" for one in client.exchange(0.1)),
            what="the node has what was sent",
        )
        (listed,) = node.told("transactions", "list")
        assert (listed["id"], listed["state"], listed["user"]) == ("tx-1", "open", "admin")
        refused = node("transactions", "commit", "tx-1", given="y\n", code=77)
        assert "Is the transaction manager of tx-1 gone for good" in refused.stderr
        assert "tx-1" in refused.stderr.splitlines()[-1]
        assert node("transactions", "rollback", "1:0a:0b", given="n\n", code=1).stdout == ""


def test_the_live_node_is_found_by_its_store(node: Node, run: Run, tmp_path: Path) -> None:
    """By the URL of the database, or a broker.xml that says another port, as of the other node."""
    url = f"sqlite:///{node.config.parents[1] / 'data' / 'orthia.db'}"

    def is_published() -> bool:
        status = json.loads(run("status", "--url", url, "--json").stdout)
        return bool(status["live"]["api_url"] == f"http://127.0.0.1:{node.http}")

    wait_until(is_published, what="the node publishes where its API is")
    by_url = run("job", "list", "--url", url, "--user", "admin", environment=node.environment)
    assert by_url.exit_code == 0, by_url.output
    listed = run("queue", "list", "--url", url, "--user", "admin", environment=node.environment)
    assert (listed.exit_code, listed.stderr) == (0, "")
    assert "delivering" in listed.stdout
    other = tmp_path / "other"
    run(
        *("create", other, "--backup", "--url", url, "--user", "admin"),
        *("--health-port", free_port()),
        environment=node.environment,
    )
    file = other / "etc" / "broker.xml"
    by_file = run("job", "list", "--config", file, "--user", "admin", environment=node.environment)
    assert by_file.exit_code == 0, by_file.output


def test_what_nodes_published_that_are_gone_is_told_as_stale(
    run: Run, sqlite_url: str, tmp_path: Path
) -> None:
    """Nothing is sent there; who has just taken the live lock is found by its backup's row."""
    settings = DatabaseStoreSettings(DatabaseUrl.parse(sqlite_url))
    database = Database.from_settings(settings)
    store = SqlNodeManagerStore(database, settings, database.engine)
    reports = SqlReportStore(database, settings)
    gone = f"http://127.0.0.1:{free_port()}"
    reports.write(Lock.LIVE, "a@host:17", 1, Report(api_url=gone))
    asked = run("job", "list", "--url", sqlite_url)
    assert asked.exit_code == 69
    assert asked.stderr == (
        "orthia: no node of this pair can be asked:\n"
        "orthia: nobody holds the live lock\n"
        f"orthia: {gone} is stale: a@host:17 published it, and is not live any more\n"
    )
    store.try_acquire(Lock.LIVE, "b@host:18", 600_000)
    elsewhere = f"http://127.0.0.2:{free_port()}"
    reports.write(Lock.BACKUP, "b@host:18", 1, Report(api_url=elsewhere))
    asked = run("job", "list", "--url", sqlite_url)
    assert f"b@host:18 serves its API on {elsewhere} of its own host alone" in asked.stderr
    here = HolderId.new("b", crash_detection=False)
    store.release(Lock.LIVE, "b@host:18", 1)
    store.try_acquire(Lock.LIVE, here, 600_000)
    reports.write(Lock.BACKUP, here, 1, Report(api_url=elsewhere))
    asked = run("job", "list", "--url", sqlite_url)
    assert f"orthia:   {elsewhere}: Connection refused\n" in asked.stderr
    database.dispose()


def test_where_no_node_answers_it_says_what_to_do(
    run: Run, sqlite_url: str, tmp_path: Path
) -> None:
    """A list comes from the store all the same."""
    port = free_port()
    refused = run("queue", "purge", "orders", "--management", f"http://127.0.0.1:{port}")
    assert refused.exit_code == 69
    assert refused.stderr == (
        f"orthia: cannot reach the live node at http://127.0.0.1:{port}: is it running?"
        " `orthia status --config broker.xml` says so; --management http://HOST:PORT names another"
        " place\n"
        f"orthia:   http://127.0.0.1:{port}: Connection refused\n"
    )
    listed = run("queue", "list", "--url", sqlite_url)
    assert listed.exit_code == 0
    assert listed.stderr == (
        "orthia: no node of this pair can be asked: nobody holds the live lock; shown is what the"
        " store has\n"
    )
    refused = run("job", "list", "--url", sqlite_url)
    assert refused.exit_code == 69
    assert refused.stderr == (
        "orthia: no node of this pair can be asked:\northia: nobody holds the live lock\n"
    )
    run("create", tmp_path / "n", "--allow-anonymous", "--no-health")
    refused = run("job", "list", "--config", tmp_path / "n" / "etc" / "broker.xml")
    assert refused.exit_code == 78
    assert "has no <health>, so its node serves no HTTP: add <health" in refused.stderr


def test_ctrl_c_leaves_the_job_running(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And says how to stop it."""
    monkeypatch.setattr("sys.argv", ["orthia"])
    where = NodeOptions((), StoreOptions(Path("etc/broker.xml"), {}, None, {}), "admin")
    job = {"id": 7, "total": 10, "looked-at": 3, "state": "running"}

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        watching.watch(where, job, is_shown=False, sleep=interrupt)
    told = capsys.readouterr().err
    assert "job 7 goes on; stop it with" in told
    assert " job stop 7 --config etc/broker.xml --user admin`" in told


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["queue", "stat"], "`orthia queue list` shows them all"),
        (["queue", "scheduled"], "`orthia scheduled list` shows what is to be delivered later"),
        (["browser"], "`orthia queue browse QUEUE` shows its messages"),
        (["queue", "purge", "--name", "x"], "`orthia queue purge NAME`"),
        (["queue", "create", "--anycast", "x"], "Say --routing-type anycast."),
        (["consumer", "--destination", "x"], "`orthia consume` receives messages"),
        (["queue", "show", "x", "--url", "tcp://x"], "--management http://HOST:PORT"),
    ],
)
def test_names_of_other_brokers_are_answered(run: Run, words: list[str], said: str) -> None:
    """With what is typed here."""
    refused = run(*words)
    assert refused.exit_code == 64
    assert said in refused.stderr


@pytest.mark.parametrize("text", ["ftp://x:1", "http://x:1/path", "http://:8161", "x:0", "x:y"])
def test_a_wrong_address_is_a_wrong_command_line(run: Run, text: str) -> None:
    """Before anything is asked."""
    assert run("job", "list", "--management", text).exit_code == 64


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(run: Run, shell: str) -> None:
    """What a shell needs is printed."""
    made = run("completion", shell)
    assert made.exit_code == 0
    assert "_ORTHIA_COMPLETE" in made.stdout
    assert ("compinit" in made.stdout) == (shell == "zsh")


def test_bash_completes_commands_and_options(tmp_path: Path) -> None:
    """As it does when somebody types a tabulator."""
    program = tmp_path / "orthia"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m orthia.broker.cli "$@"\n')
    program.chmod(0o700)
    script = (
        'eval "$(orthia completion bash)"\n'
        "COMP_WORDS=(orthia queue list --lim); COMP_CWORD=3; _orthia_completion orthia\n"
        'COMP_WORDS=(orthia scheduled ""); COMP_CWORD=2; _orthia_completion orthia\n'
        'echo "${COMPREPLY[@]}"\n'
    )
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout.split() == ["--limit", "cancel", "list"]


def test_nothing_is_handed_over_where_no_backup_waits(node: Node) -> None:
    """The node goes on serving."""
    refused = node("failover", "--yes", code=77)
    assert "no backup waits: nobody would serve" in refused.output
    node("queue", "list")
