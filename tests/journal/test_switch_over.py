"""The address leads to another primary, and connections to the former one stay open.

So do DNS, a virtual address and a proxy. The former primary answers, and takes no writes of
ordinary users any more; of a user with the right it does, on MySQL and MariaDB.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, event, select, text

import orthia.journal.sql.mysql
from orthia.config.secrets import Secret
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import (
    Database,
    StoreError,
    StoreUnavailable,
    translate_errors,
    write_transaction,
)
from orthia.database.read_only import refuse_read_only_mysql
from orthia.database.sessions import FENCED_PURPOSES, JOURNAL_PURPOSE
from orthia.journal.model.unit import Unit
from orthia.journal.sql.fence import fenced_engine
from orthia.journal.sql.mysql import MysqlStore
from orthia.nodemanager import Lock
from orthia.nodemanager.locks.holder_id import HolderId
from orthia.nodemanager.locks.sql_store import SqlNodeManagerStore
from tests.journal.support import QUEUE, count_connects, payload
from tests.journal.test_lost_connections import ProxiedStore
from tests.support.servers import MYSQL_FAMILY, SERVER_NAMES, PostgresqlServer, ServerProcess
from tests.support.waiting import wait_until

PLAIN, PASSWORD = "plain", "plainly"
LEASE_MS = 3_600_000


class SwitchOver:
    """A store that is reached by an address, and two primaries that it may lead to."""

    def __init__(self, former: ServerProcess, user: str) -> None:
        self.former = former
        self.name = former.create_database()
        self.store = ProxiedStore(former, self.name)
        self._present: ServerProcess | None = None
        if user == PLAIN:
            former.execute(f"CREATE USER {PLAIN}@'127.0.0.1' IDENTIFIED BY '{PASSWORD}'")
            former.execute(f"GRANT ALL ON {self.name}.* TO {PLAIN}@'127.0.0.1'")
            store = self.store
            store.through_proxy = replace(
                store.through_proxy, jdbc_user=PLAIN, jdbc_password=Secret(PASSWORD)
            )
            store.proxied = Database.from_settings(store.through_proxy)

    @property
    def present(self) -> ServerProcess:
        """The primary that has all that the former one had when it was made."""
        assert self._present is not None
        return self._present

    def copy(self) -> None:
        """Make the present primary of what the former one has; that crashes for it."""
        self.former.kill()
        self._present = type(self.former)(template=self.former)
        self.former.start()
        self.present.start()

    def switch(self) -> None:
        """Have the former take no writes, and the address lead to the present one."""
        self.demote()
        self.store.proxy.lead_to(self.present.port)

    def demote(self, *, undo: bool = False) -> None:
        """Have the former take no writes; sessions stay."""
        if isinstance(self.former, PostgresqlServer):
            value = "off" if undo else "on"
            self.former.execute(f"ALTER SYSTEM SET default_transaction_read_only = {value}")
            self.former.execute("SELECT pg_reload_conf()")
            # Once new sessions have it, the others were told: they have it at their next statement.
            show = "SHOW default_transaction_read_only"
            wait_until(lambda: self.former.execute(show) == [(value,)], what=f"{show}: {value}")
        else:
            self.former.execute(f"SET GLOBAL read_only = {not undo:d}")

    def seqs_on(self, server: ServerProcess) -> set[int]:
        """Return what messages a server has."""
        database = Database.from_settings(server.settings(self.name))
        messages = self.store.messages.c
        ask = select(messages.seq).where(messages.queue_id == QUEUE)
        with database.engine.connect() as connection:
            found = set(connection.execute(ask).scalars())
        database.dispose()
        return found

    def close(self) -> None:
        """Close the store and end the second server; the first is the fixture's."""
        self.store.close()
        if self._present is not None:
            self._present.discard()


USERS = [
    pytest.param("postgresql", "all rights"),
    *(pytest.param(dbms, user) for dbms in MYSQL_FAMILY for user in ("all rights", PLAIN)),
]


@pytest.fixture
def switch_over(private_server: ServerProcess, user: str) -> Iterator[SwitchOver]:
    """Give a store on one primary."""
    made = SwitchOver(private_server, user)
    yield made
    made.close()


def session_of(engine: Engine) -> object:
    """Return which session of its server an engine's connection is."""
    with engine.connect() as connection:
        postgresql = connection.dialect.name == "postgresql"
        ask = "SELECT pg_backend_pid()" if postgresql else "SELECT CONNECTION_ID()"
        return connection.execute(text(ask)).scalar()


@pytest.mark.parametrize(("private_server", "user"), USERS, indirect=["private_server"])
@pytest.mark.parametrize("alone", [True, False])
def test_the_journal_goes_on_with_the_present_primary(
    switch_over: SwitchOver, *, alone: bool
) -> None:
    """What is receipted is there, and no reader passes it by that still asks the former one."""
    store = switch_over.store
    journal = store.open_proxied()
    (before,) = store.append(journal, "before")
    switch_over.copy()
    store.settle(journal)
    assert store.bodies(journal) == ["before"]  # both are connected to the former by now
    switch_over.switch()
    if alone:
        (after,) = store.append(journal, "after")
    else:
        done: list[int] = []
        unit = Unit(lambda: done.append(1))
        unit.delete(store.window(journal).messages[0].location)
        journal.append_unit(unit)
        (after,) = store.append(journal, "after")
        assert done
    assert store.bodies(journal) == (["before", "after"] if alone else ["after"])
    assert switch_over.seqs_on(switch_over.former) == {before}
    assert switch_over.seqs_on(switch_over.present) == ({before, after} if alone else {after})
    assert store.failures == []


@pytest.mark.parametrize(("private_server", "user"), USERS, indirect=["private_server"])
def test_a_lease_is_renewed_where_the_address_leads(switch_over: SwitchOver) -> None:
    """The former primary would renew it for a user with the right, and nobody else would know."""
    store = switch_over.store
    holder = HolderId.new("live", crash_detection=False)
    engine = store.proxied.dedicated_engine("live-lock", query_timeout_ms=120_000)
    through = SqlNodeManagerStore(store.proxied, store.through_proxy, engine)
    taken = through.try_acquire(Lock.LIVE, holder, LEASE_MS)
    assert taken is not None
    switch_over.copy()
    assert through.renew(Lock.LIVE, holder, taken.token, LEASE_MS)
    switch_over.switch()

    def expiry_on(server: ServerProcess) -> object:
        settings = server.settings(switch_over.name)
        database = Database.from_settings(settings)
        found = SqlNodeManagerStore(database, settings, database.engine).status()
        database.dispose()
        return found.live.expiration_time

    before = expiry_on(switch_over.former), expiry_on(switch_over.present)
    refused: list[StoreError] = []

    def is_renewed() -> bool:
        try:
            return through.renew(Lock.LIVE, holder, taken.token, LEASE_MS) is not None
        except StoreError as error:
            refused.append(error)
            return False

    wait_until(is_renewed, what="a renewal")
    assert len(refused) <= 1
    assert all(isinstance(one, StoreUnavailable) for one in refused)
    assert expiry_on(switch_over.former) == before[0]
    assert expiry_on(switch_over.present) != before[1]


@pytest.mark.parametrize(("private_server", "user"), USERS, indirect=["private_server"])
def test_a_server_that_was_read_only_for_a_while_fences_nobody(switch_over: SwitchOver) -> None:
    """It is waited for, in new sessions; nothing is stored meanwhile."""
    store = switch_over.store
    journal = store.open_proxied()
    (before,) = store.append(journal, "before")
    engine = store.proxied.dedicated_engine("test", query_timeout_ms=120_000)
    session = session_of(engine)
    attempts = count_connects(journal)
    switch_over.demote()
    done: list[int] = []
    after = journal.append_message(QUEUE, payload("after"), lambda: done.append(1))
    wait_until(lambda: len(attempts) > 2, what="several attempts")
    assert switch_over.seqs_on(switch_over.former) == {before}
    with pytest.raises(StoreUnavailable), write_transaction(engine, "write") as connection:
        connection.execute(text("CREATE TABLE orthia_test (n INT)"))
    switch_over.demote(undo=True)
    store.loop.run_until(lambda: done, "the receipt")
    assert switch_over.seqs_on(switch_over.former) == {before, after}
    assert session_of(engine) != session
    assert store.failures == []


@pytest.mark.parametrize("server", SERVER_NAMES, indirect=True)
def test_a_reader_that_connects_while_writers_do_is_asked_again(database: Database) -> None:
    """Its new connection is older than the writer's by then, and so may the next one be."""
    writers = [
        database.dedicated_engine(purpose, query_timeout_ms=120_000, mark=purpose, leads=True)
        for purpose in FENCED_PURPOSES
    ]
    reader = database.reading_engine("reader", query_timeout_ms=120_000)
    session_of(reader)
    left = list(writers)

    def meanwhile(_connection: object, _record: object) -> None:
        if left:
            session_of(left.pop())

    event.listen(reader, "connect", meanwhile)
    session_of(left.pop())
    with pytest.raises(StoreUnavailable), translate_errors("read"):
        session_of(reader)
    assert session_of(reader) is not None


@pytest.mark.parametrize("server", SERVER_NAMES, indirect=True)
def test_a_reader_goes_on_when_none_but_the_journal_connects_anew(
    database: Database, store_settings: DatabaseStoreSettings
) -> None:
    """On MySQL the sessions of large messages and of the history end whenever they are idle."""
    writers = {
        purpose: fenced_engine(database, store_settings, purpose, token=1)
        for purpose in FENCED_PURPOSES
    }
    reader = database.reading_engine("reader", query_timeout_ms=120_000)
    sessions = {purpose: session_of(engine) for purpose, engine in writers.items()}
    before = session_of(reader)
    for purpose, engine in writers.items():
        engine.dispose()
        assert session_of(engine) != sessions[purpose]
        after = session_of(reader)
        assert (after != before) is (purpose == JOURNAL_PURPOSE)
        before = after


@pytest.mark.parametrize(
    ("private_server", "user"),
    [(dbms, "all rights") for dbms in MYSQL_FAMILY],
    indirect=["private_server"],
)
def test_a_server_that_was_read_only_for_a_moment_fences_nobody(
    switch_over: SwitchOver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was when the fence was read, and is not when it is asked why it was not there."""
    store = switch_over.store
    journal = store.open_proxied()
    (before,) = store.append(journal, "before")
    begin = MysqlStore._begin
    refuse = refuse_read_only_mysql
    left = [True]

    def demote_and_begin(batches: MysqlStore) -> None:
        if left:
            left.pop()
            switch_over.demote()
        begin(batches)

    def undo_and_ask(cursor: Any) -> None:
        switch_over.demote(undo=True)
        refuse(cursor)

    monkeypatch.setattr(MysqlStore, "_begin", demote_and_begin)
    monkeypatch.setattr(orthia.journal.sql.mysql, "refuse_read_only_mysql", undo_and_ask)
    done: list[int] = []
    unit = Unit(lambda: done.append(1))
    unit.delete(store.window(journal).messages[0].location)
    journal.append_unit(unit)
    (after,) = store.append(journal, "after")
    assert (done, left) == ([1], [])
    assert switch_over.seqs_on(switch_over.former) == {after}
    assert after != before
    assert store.failures == []
