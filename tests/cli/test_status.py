"""``status``, ``queue list`` and ``db``: what an operator sees of the store."""

import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import MetaData, insert

from orthia import migrations
from orthia.broker.cli.liveness import Look, Watch, describe
from orthia.broker.cli.rendering import in_words
from orthia.config.address_settings import RoutingType
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.config.urls import DatabaseUrl
from orthia.database import Database, UnreadableTime
from orthia.journal.model.codec import QueueBinding, encode_queue_binding
from orthia.journal.model.records import RecordType, UserRecordType
from orthia.journal.sql.tables import bindings_table
from orthia.nodemanager.locks.holder_id import HolderId, Timers
from orthia.nodemanager.locks.lease import Lock, LockStatus, State
from orthia.nodemanager.locks.reports import OutboxReport, Refusal, Report, SqlReportStore
from orthia.nodemanager.locks.sql_store import SqlNodeManagerStore
from tests.cli.conftest import Run, finished


@pytest.fixture
def store(sqlite_url: str) -> Iterator[SqlNodeManagerStore]:
    """Give the node manager's store, to act as a node in it."""
    settings = DatabaseStoreSettings(DatabaseUrl.parse(sqlite_url))
    database = Database.from_settings(settings)
    yield SqlNodeManagerStore(database, settings, database.engine)
    database.dispose()


API = "https://node-a.example:8161"
LASTING = ("--jdbc-lock-expiration", 600_000, "--jdbc-lock-renew-period", 120_000)
"""A lease that was just taken is not late, however long the machine then stands still."""


def serve(store: SqlNodeManagerStore, expiration_ms: int = 600_000) -> None:
    """Have a node be live."""
    taken = store.try_acquire(Lock.LIVE, "node-a@host:17", expiration_ms)
    assert taken is not None
    assert store.advance_fence("node-a@host:17", taken.token)
    store.write_state(State.LIVE)


def test_status_of_a_pair(run: Run, sqlite_url: str, store: SqlNodeManagerStore) -> None:
    """A person sees who is live, until when, under which token, and that a backup waits."""
    store.create_node_id("6b0c7a31-0000-4000-8000-000000000001")
    serve(store)
    store.try_acquire(Lock.BACKUP, "node-b@host:18", 600_000)
    result = run("status", "--url", sqlite_url, *LASTING)
    assert result.exit_code == 0
    shown = result.stdout
    assert "state     L: a node is live" in shown
    assert "node id   6b0c7a31-0000-4000-8000-000000000001" in shown
    assert "backup    waiting to take over" in shown
    assert re.search(r"^live +node-a@host:17 +1  in (600\.0|5\d\d\.\d) s$", shown, re.MULTILINE)
    assert re.search(r"^backup +node-b@host:18 +1  in (600\.0|5\d\d\.\d) s$", shown, re.MULTILINE)


def test_status_tells_what_the_nodes_report(
    run: Run, sqlite_url: str, store: SqlNodeManagerStore
) -> None:
    """That SENDs are refused and why, until when failback is put off, that users differ."""
    serve(store)
    store.try_acquire(Lock.BACKUP, "node-b@host:18", 600_000)
    reports = SqlReportStore(store._database, DatabaseStoreSettings(DatabaseUrl.parse(sqlite_url)))
    quiet = run("status", "--url", sqlite_url, *LASTING).stdout
    assert not re.search("^(sends|failback|users) ", quiet, re.MULTILINE)
    until = datetime(2999, 1, 2, 3, 4, 5, tzinfo=UTC)
    reports.write(Lock.LIVE, "node-a@host:17", 1, Report("a" * 36, Refusal.DISK, until, API))
    reports.write(Lock.BACKUP, "node-b@host:18", 1, Report("b" * 36))
    shown = run("status", "--url", sqlite_url, *LASTING).stdout
    assert "sends     refused for want of room: a disk of the store is full" in shown
    assert "failback  put off until 2999-01-02 03:04:05 UTC" in shown
    assert "users     differ between the two nodes" in shown
    document = json.loads(run("status", "--url", sqlite_url, *LASTING, "--json").stdout)
    assert document["sends_refused_by"] == "disk"
    assert document["failback_put_off_until"] == until.isoformat()
    assert document["users_differ"] is True
    assert f"console   {API}/console/ (live)" in shown
    assert (document["live"]["api_url"], document["backup"]["api_url"]) == (API, None)


def test_status_tells_what_waits_in_the_outbox(
    run: Run, sqlite_url: str, store: SqlNodeManagerStore
) -> None:
    """How many, since when, how fast they go and what holds them; or that no node sends them."""
    settings = DatabaseStoreSettings(DatabaseUrl.parse(sqlite_url))

    def shown() -> tuple[str, Any]:
        text = run("status", "--url", sqlite_url, *LASTING).stdout
        found = run("status", "--url", sqlite_url, *LASTING, "--json").stdout
        (line,) = re.findall("^outbox +(.*)$", text, re.MULTILINE) or [""]
        return line, json.loads(found)["outbox"]

    assert shown() == ("", None)
    with store._database.engine.begin() as connection:
        for _ in range(2):
            connection.exec_driver_sql(
                "INSERT INTO orthia_outbox (destination, body) VALUES ('q', 'b')"
            )
    line, found = shown()
    assert re.fullmatch(r"2 rows wait, the oldest for \d+ s: no live node sends them", line)
    assert found["waiting"] == 2
    serve(store)
    assert shown() == ("", None)
    held = "address 'q' is full: " + "x" * 200
    report = OutboxReport(5, datetime.now(UTC), 12.5, held)
    reports = SqlReportStore(store._database, settings)
    reports.write(Lock.LIVE, "node-a@host:17", 1, Report(outbox=report))
    line, found = shown()
    assert re.match(
        r"5 rows wait, the oldest for \d+ s; 12.5 a second are sent; held: address 'q' is", line
    )
    assert {**found, "oldest": None} == {
        "waiting": 5,
        "oldest": None,
        "per_second": 12.5,
        "held": held[:128],
    }
    reports.write(Lock.LIVE, "node-a@host:17", 1, Report(outbox=OutboxReport(0, None, 0.0, None)))
    assert shown()[0] == "no row waits; 0 a second are sent"


def test_status_does_not_tell_what_is_over(
    run: Run, sqlite_url: str, store: SqlNodeManagerStore
) -> None:
    """A time that has come, a holder that is gone, users that are the same or not known."""
    serve(store)
    reports = SqlReportStore(store._database, DatabaseStoreSettings(DatabaseUrl.parse(sqlite_url)))
    past = datetime(2001, 1, 1, tzinfo=UTC)
    reports.write(Lock.LIVE, "node-a@host:17", 1, Report("a" * 36, None, past))
    reports.write(Lock.BACKUP, "node-c@host:1", 1, Report("b" * 36, Refusal.DISK))

    def told() -> list[object]:
        document = json.loads(run("status", "--url", sqlite_url, *LASTING, "--json").stdout)
        names = ("sends_refused_by", "failback_put_off_until", "users_differ")
        return [document[name] for name in names]

    assert told() == [None, None, None]
    store.try_acquire(Lock.BACKUP, "node-b@host:18", 600_000)
    reports.write(Lock.BACKUP, "node-b@host:18", 1, Report("a" * 36))
    assert told() == [None, None, False]


def test_status_of_an_expired_lease(run: Run, sqlite_url: str, store: SqlNodeManagerStore) -> None:
    """An expired lease is said to be so, by the database's clock; a script learns it too."""
    store.try_acquire(Lock.LIVE, "node-a", -5_000)
    store.write_state(State.LIVE)
    result = run("status", "--url", sqlite_url)
    assert re.search(r"^live +node-a +1  expired \d+\.\d s ago$", result.stdout, re.MULTILINE)
    assert "the live node is gone and no backup waits" in result.stdout
    assert result.exit_code == 3


def test_a_dead_pair_is_not_called_live_until_its_leases_end(
    run: Run, sqlite_url: str, store: SqlNodeManagerStore
) -> None:
    """Neither node renews: what the table says is what was, and for how long that is shown."""
    serve(store, 500_000)
    store.try_acquire(Lock.BACKUP, "node-b@host:18", 500_000)
    # With the renew period there is by default: by that of LASTING nobody would be late yet.
    lasting = LASTING[:2]
    result = run("status", "--url", sqlite_url, *lasting)
    assert result.exit_code == 3
    assert re.search(
        r"^live +node-a@host:17 +1 .*no renewal for 1\d\d\.\d s$", result.stdout, re.MULTILINE
    )
    assert "no backup waits; start a node" in result.stdout
    assert "backup    none waiting" in result.stdout
    document = json.loads(run("status", "--url", sqlite_url, *lasting, "--json").stdout)
    assert (document["serving"], document["backup_waiting"]) == (False, False)
    assert document["live"]["no_renewal_for_seconds"] > 100


def test_a_node_with_timers_of_its_own_is_seen_to_be_alive(store: SqlNodeManagerStore) -> None:
    """What the settings suggest is watched before it is said: the next renewal settles it."""
    serve(store, 300_000)
    settings = DatabaseStoreSettings(
        DatabaseUrl.parse("sqlite:////x"), jdbc_lock_expiration=600_000
    )
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            store.renew(Lock.LIVE, "node-a@host:17", 1, 300_000)

    look = Watch(settings, clock=lambda: sum(waits), sleep=sleep).look(store.status)
    assert look.is_serving
    assert len(waits) == 3


def test_the_timers_a_holder_publishes_are_its_own(store: SqlNodeManagerStore) -> None:
    """With them nothing has to be watched, whatever the command was told of the store."""
    settings = DatabaseStoreSettings(DatabaseUrl.parse("sqlite:////x"))
    holder = HolderId.new("node-a", crash_detection=True, timers=Timers(90_000, 600_000))
    assert store.try_acquire(Lock.LIVE, holder, 550_000) is not None

    def sleep(_seconds: float) -> None:
        raise AssertionError("a renewal 50 s ago is none that is late")

    assert Watch(settings, sleep=sleep).look(store.status).silent_seconds == {}


def test_a_node_that_serves_is_told_from_one_that_only_asks(store: SqlNodeManagerStore) -> None:
    """State F is written by whoever wants to be live, while another may serve."""
    serve(store)
    store.write_state(State.FAILING_BACK)
    look = Look(store.status())
    assert look.is_serving
    assert describe(look).startswith("a node serves")
    store.release(Lock.LIVE, "node-a@host:17", 1)
    assert not Look(store.status()).is_serving


def test_a_node_that_has_not_fenced_the_journal_does_not_serve(
    run: Run, sqlite_url: str, store: SqlNodeManagerStore
) -> None:
    """It has the live lock, and may wait for the fence for long: no client is served."""
    taken = store.try_acquire(Lock.LIVE, "node-a@host:17", 600_000)
    assert taken is not None
    store.write_state(State.LIVE)
    result = run("status", "--url", sqlite_url, *LASTING)
    assert result.exit_code == 3
    assert "has taken the live lock and is about to serve" in result.stdout
    assert store.advance_fence("node-a@host:17", taken.token)
    assert run("status", "--url", sqlite_url, *LASTING).exit_code == 0


def test_a_node_that_is_being_stopped_does_not_serve(
    run: Run, sqlite_url: str, store: SqlNodeManagerStore
) -> None:
    """It has said so, and gives its lock back next."""
    serve(store)
    store.write_state(State.PAUSED)
    result = run("status", "--url", sqlite_url, *LASTING)
    assert result.exit_code == 3
    assert "stopped on purpose" in result.stdout


def test_status_as_json(run: Run, sqlite_url: str, store: SqlNodeManagerStore) -> None:
    """The JSON has these names, which programs rely on."""
    store.try_acquire(Lock.LIVE, "node-a", 600_000)
    shown = json.loads(run("status", "--url", sqlite_url, "--json", *LASTING).stdout)
    assert shown.keys() == {
        "database_time",
        "node_id",
        "state",
        "state_text",
        "serving",
        "live",
        "backup",
        "backup_waiting",
        "fence_token",
        "sends_refused_by",
        "failback_put_off_until",
        "users_differ",
        "outbox",
        "certificates",
    }
    lock = {
        "holder_id": None,
        "held": False,
        "token": 0,
        "expires_in_seconds": None,
        "no_renewal_for_seconds": None,
        "api_url": None,
    }
    assert shown["backup"] == lock
    assert shown["live"]["expires_in_seconds"] > 500
    assert {**shown["live"], "expires_in_seconds": None} == {
        **lock,
        "holder_id": "node-a",
        "held": True,
        "token": 1,
    }


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize("backup", [True, False])
def test_every_state_has_its_words(
    store: SqlNodeManagerStore, state: State, live: bool, backup: bool
) -> None:
    """Whatever the table says, a person is told what it means."""
    if live:
        store.try_acquire(Lock.LIVE, "a", 600_000)
    if backup:
        store.try_acquire(Lock.BACKUP, "b", 600_000)
    store.write_state(state)
    look = Look(store.status())
    assert describe(look)
    if state is State.LIVE and not live:
        assert "gone" in describe(look)


@pytest.mark.parametrize(
    ("seconds", "text"), [(12.34, "in 12.3 s"), (-3.14, "expired 3.1 s ago"), (None, "")]
)
def test_an_expiry_in_words(seconds: float | None, text: str) -> None:
    """Expiries are relative: nobody compares two clocks in the head."""
    assert in_words(seconds) == text
    assert LockStatus(Lock.LIVE, HolderId("x"), 1, seconds).is_held is bool(seconds and seconds > 0)


@pytest.mark.parametrize(
    "command", [["status"], ["queue", "list"], ["queue", "history"], ["failover-log"]]
)
@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("sqlite:///none.db", "there is no database"),
        ("sqlite:///empty.db", "orthia db upgrade"),
        ("postgresql://orthia:hunter2@127.0.0.1:1/orthia", "not reachable"),
    ],
)
def test_a_database_that_cannot_be_read_is_one_line(
    run: Run, tmp_path: Path, command: list[str], url: str, told: str
) -> None:
    """Not there, which does not make one; without tables; a server that does not answer."""
    (tmp_path / "empty.db").touch()
    result = run(*command, "--url", url, "--jdbc-network-timeout", 2000)
    assert result.exit_code == 69
    assert told in result.stderr
    lines = [line for line in result.stderr.splitlines() if "shows a password" not in line]
    assert len(lines) == 1
    assert "hunter2" not in result.output
    assert not (tmp_path / "none.db").exists()


def test_an_empty_store_has_no_queues(run: Run, sqlite_url: str) -> None:
    """No queues are an empty list, not an error."""
    assert json.loads(run("queue", "list", "--url", sqlite_url, "--json").stdout) == []


def test_db_upgrade_and_current(run: Run, tmp_path: Path) -> None:
    """``current`` is exit code 1 until ``upgrade`` was run, which may be run again."""
    url = f"sqlite:///{tmp_path}/new.db"
    before = run("db", "current", "--url", url, "--json")
    assert before.exit_code == 1
    assert json.loads(before.stdout)["revision"] is None
    assert not (tmp_path / "new.db").exists()
    assert "empty -> revision" in run("db", "upgrade", "--url", url).stdout
    assert "up to date" in run("db", "upgrade", "--url", url).stdout
    after = json.loads(run("db", "current", "--url", url, "--json").stdout)
    known = after["known"]
    assert after == {"revision": known, "known": known, "up_to_date": True, "damage": []}


def test_an_older_schema_lacks_nothing_and_is_upgraded(
    run: Run, tmp_path: Path, sqlite_url: str
) -> None:
    """A table that a newer version adds is no loss: nobody is to think of a restore."""
    with closing(sqlite3.connect(tmp_path / "orthia.db")) as connection:
        connection.execute("DROP TABLE LARGE_MESSAGES")
        connection.execute("UPDATE NODE_MANAGER_STORE_VERSION SET version_num = '0002'")
        connection.commit()
    current = run("db", "current", "--url", sqlite_url)
    assert (current.exit_code, "missing" in current.stdout) == (1, False), current.stdout
    upgraded = run("db", "upgrade", "--url", sqlite_url)
    assert "0002 -> revision" in upgraded.stdout
    assert "repaired" not in upgraded.stdout
    assert run("db", "current", "--url", sqlite_url).exit_code == 0


def test_a_store_without_a_row_is_named_by_every_command_and_repaired(
    run: Run, tmp_path: Path, sqlite_url: str
) -> None:
    """``status``, ``db current`` and others say the same; ``db upgrade`` does what they advise."""
    with closing(sqlite3.connect(tmp_path / "orthia.db")) as connection:
        connection.execute("DELETE FROM NODE_MANAGER_STORE WHERE id = 1")
        connection.execute("DROP TABLE MESSAGES")
        connection.commit()
    shown = run("status", "--url", sqlite_url)
    assert shown.exit_code == 78
    assert len(shown.stderr.splitlines()) == 1
    current = run("db", "current", "--url", sqlite_url)
    assert current.exit_code == 1
    queues = run("queue", "list", "--url", sqlite_url)
    upgraded = run("db", "upgrade", "--url", sqlite_url)
    assert upgraded.exit_code == 0
    for text in (shown.stderr, current.stdout, queues.stderr, upgraded.stdout):
        assert "table MESSAGES is missing" in text
        assert "row 1 of NODE_MANAGER_STORE (the live lock) is missing" in text
    assert run("db", "current", "--url", sqlite_url).exit_code == 0
    assert run("status", "--url", sqlite_url).exit_code == 3


def test_a_live_lock_that_was_put_back_is_told_as_that(
    run: Run, tmp_path: Path, sqlite_url: str, store: SqlNodeManagerStore
) -> None:
    """Nobody is about to serve under it."""
    serve(store)
    with closing(sqlite3.connect(tmp_path / "orthia.db")) as connection:
        connection.execute("DELETE FROM NODE_MANAGER_STORE WHERE id = 1")
        connection.commit()
    assert run("db", "upgrade", "--url", sqlite_url, *LASTING).exit_code == 0
    result = run("status", "--url", sqlite_url, *LASTING)
    assert result.exit_code == 3
    assert "put back by a repair" in result.stdout


@pytest.mark.parametrize("scheme", ["postgresql", "mysql"])
def test_db_ddl_needs_no_server(run: Run, scheme: str) -> None:
    """A DBA gets the SQL with the configured table names, and nothing is connected to."""
    result = run(
        "db", "ddl", "--url", f"{scheme}://127.0.0.1:1/x", "--message-table-name", "MY_MESSAGES"
    )
    assert result.exit_code == 0
    assert "create table my_messages" in result.stdout.lower().replace('"', "").replace("`", "")
    upgrade = run("db", "ddl", "--url", f"{scheme}://127.0.0.1:1/x", "--from", "0003")
    assert (upgrade.exit_code, upgrade.stdout.lower().count("create table")) == (0, 3)
    nothing = run("db", "ddl", "--url", f"{scheme}://127.0.0.1:1/x", "--from", migrations.head())
    assert (nothing.exit_code, nothing.stdout[:3]) == (0, "-- ")
    unknown = run("db", "ddl", "--url", f"{scheme}://127.0.0.1:1/x", "--from", "9999")
    assert (unknown.exit_code, "9999 is not known" in unknown.stderr) == (64, True)


def test_a_time_that_a_person_wrote_is_refused_by_name(
    run: Run, sqlite_url: str, store: SqlNodeManagerStore, tmp_path: Path
) -> None:
    """Row, column, value and the form expected are told; no lease is judged by such a time."""
    serve(store)
    with closing(sqlite3.connect(tmp_path / "orthia.db")) as database, database:
        database.execute(
            "UPDATE NODE_MANAGER_STORE SET HOLDER_EXPIRATION_TIME = '2099-01-01 12:00' WHERE ID = 1"
        )
    result = run("status", "--url", sqlite_url)
    assert result.exit_code == 78
    for told in (
        *("NODE_MANAGER_STORE, row 1 (the live lock), column holder_expiration_time",),
        *("'2099-01-01 12:00'", "'2000-01-31T12:00:00.000000Z'"),
    ):
        assert told in result.stderr
    with pytest.raises(UnreadableTime, match="row 1"):
        store.try_acquire(Lock.LIVE, "node-b@host:18", 600_000)
    assert store.renew(Lock.LIVE, "node-a@host:17", 1, 600_000) is not None
    assert run("status", "--url", sqlite_url, *LASTING).exit_code == 0


@pytest.mark.parametrize(
    ("encoding", "written_in", "shown"),
    [
        ("iso-8859-1", "iso-8859-1", "\\u8ba2\\u5355-\xe9-\\U0001f600"),
        # What says that it takes ASCII alone, as in the locale C, is given UTF-8, by click.
        ("ascii", "utf-8", "\u8ba2\u5355-\xe9-\U0001f600"),
    ],
)
def test_a_name_that_the_output_cannot_show_is_escaped(
    sqlite_url: str, encoding: str, written_in: str, shown: str
) -> None:
    """A queue may be called anything; the list of queues goes on behind it, and JSON stays JSON."""
    name = "\u8ba2\u5355-\xe9-\U0001f600"
    database = Database.from_settings(DatabaseStoreSettings(DatabaseUrl.parse(sqlite_url)))
    table = bindings_table(MetaData(), "BINDINGS", database.dialect)
    with database.engine.begin() as connection:
        connection.execute(
            insert(table).values(
                seq=1,
                id=1,
                record_type=int(RecordType.ADD_RECORD),
                user_record_type=int(UserRecordType.QUEUE_BINDING),
                epoch=1,
                record=encode_queue_binding(QueueBinding(1, name, name, RoutingType.ANYCAST)),
            )
        )
    database.dispose()

    def printed(*arguments: str) -> str:
        command = ("queue", "list", "--url", sqlite_url, *arguments)
        return finished(*command, PYTHONIOENCODING=encoding).stdout.decode(written_in)

    assert shown in printed()
    assert json.loads(printed("--json"))[0]["name"] == name
