"""One life of a pair of real processes, on every store and with every lock."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from orthia.config.store_settings import JournalType
from tests.conftest import EVERY_DBMS, Servers
from tests.process.clients import QUEUE, Producer, receive_all
from tests.process.file_nodes import file_cluster
from tests.process.locker_stores import store
from tests.process.nodes import accepts, cluster
from tests.process.takeover_pairs import Pair, new_database
from tests.support.servers import MYSQL_FAMILY, url_with_password
from tests.support.waiting import wait_until

LOCKERS = [
    ("lease", "postgresql"),
    ("database", "postgresql"),
    *((locker, dbms) for dbms in MYSQL_FAMILY for locker in ("database", "file")),
    ("file", "sqlite"),
    ("lease", "files and postgresql"),
    *(("database", f"files and {dbms}") for dbms in MYSQL_FAMILY),
]
"""A locker, and what it is for: a database, or files whose lock is in that database."""

SMALL_FILES = "<journal-file-size>64K</journal-file-size>"


@pytest.fixture(
    params=[
        *EVERY_DBMS,
        *(pytest.param(place, marks=pytest.mark.extended) for place in (*JournalType, *LOCKERS)),
    ],
    ids=lambda place: f"{place[0]} locker, {place[1]}" if isinstance(place, tuple) else str(place),
)
def pair(request: pytest.FixtureRequest, shared_servers: Servers, tmp_path: Path) -> Iterator[Pair]:
    """Give a live node that serves and its backup."""

    place = request.param
    if isinstance(place, JournalType):
        core = f"<journal-type>{place.value}</journal-type>{SMALL_FILES}"
        with file_cluster(tmp_path, core) as files:
            yield files.pair()
    elif isinstance(place, tuple):
        locker, on = place
        *kept_in_files, dbms = on.split(" and ")
        settings = new_database(dbms, shared_servers, tmp_path)
        core = store(tmp_path, settings, locker, files=bool(kept_in_files))
        with file_cluster(tmp_path, core) as locked:
            yield locked.pair()
    else:
        settings = new_database(place, shared_servers, tmp_path)
        with cluster(url_with_password(settings), tmp_path) as nodes:
            yield nodes.pair(failover_on_shutdown=True)


def test_a_crash_a_failback_and_a_stop_lose_nothing(pair: Pair) -> None:
    """Kill -9 is noticed, the live node that returns takes over, SIGTERM hands over again."""
    live, backup = pair
    with Producer([live.port, backup.port], QUEUE) as producer:
        producer.wait_receipts(200)
        live.kill()
        backup.wait_serving()
        producer.wait_receipts(100)
        live.start().wait_serving()
        wait_until(lambda: not accepts(backup.port), what="the backup is passive again")
        producer.wait_receipts(100)
        assert live.terminate() == 0
        backup.wait_serving()
        producer.wait_receipts(100)
        receipted = producer.finish()
    received = receive_all(backup.port, QUEUE, receipted)
    first_copies = list(dict.fromkeys(received.order))
    assert first_copies == sorted(first_copies), "the order of the one producer is not kept"
    assert backup.is_running
    wait_until(lambda: backup.log.count("AMQ221010") >= 2, what="it tells of its second takeover")
    assert backup.log.count("AMQ221010") == 2
