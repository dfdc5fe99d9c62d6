"""What the report says of outages, against what a client of a real pair saw of them.

Each outage begins and ends within a tenth of a second of the truth, or within the range that is
told. An end by a node's log may be so much later as the machine is slow to run its next line.
"""

import logging
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from orthia.broker.cli.opening import opened
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.nodemanager.events import RenewalNotTriggered, RenewalOverrun
from orthia.pipeline.history.account import Account, account_of
from orthia.pipeline.history.lives import LoggedEvent, life_of
from orthia.pipeline.history.outages import Outage
from orthia.pipeline.sources.failover_chapters import events_in, read_part
from orthia.pipeline.sources.failover_events import LogPart
from orthia.pipeline.sources.failover_parts import NamedStore, ask_all
from orthia.pipeline.sources.store import StoreReference
from tests.conftest import EVERY_DBMS
from tests.pipeline.conftest import PASSWORD_VARIABLE
from tests.pipeline.forging import SECOND
from tests.pipeline.witness import Truth, Witness, seen
from tests.process.nodes import LAPSING, Cluster, cluster
from tests.support.servers import (
    LAPSING_LEASE_MS,
    LEASE_MS,
    PASSWORD,
    ServerProcess,
    url_with_password,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.extended

LOGGER = logging.getLogger(__name__)
TOLERANCE = 0.1
LATE_RENEWALS = (RenewalNotTriggered.code, RenewalOverrun.code)
SLOW = 1.0
"""How late a node may log what it did, on a machine that is busy."""
ON_ONE = pytest.mark.parametrize("server", ["postgresql"], indirect=True)
"""How an outage is told depends on the log; that all DBMS have the same shows a killed node."""


@dataclass
class Pair:
    """A pair, and the client that watches it."""

    nodes: Cluster
    settings: DatabaseStoreSettings

    @contextmanager
    def watched(self, *ports: int) -> Iterator[Witness]:
        """Give a client that is served."""
        witness = Witness(ports)
        witness.start()
        try:
            wait_until(lambda: len(witness.served) > 20, what="the witness is served")
            yield witness
        finally:
            witness.finish()

    def account(self) -> Account:
        """Return what is told of the pair now, from its table, its store and its nodes' files."""
        reference, _ = StoreReference.of(self.settings, PASSWORD_VARIABLE)
        (log,) = ask_all([NamedStore("pair", self.settings, reference)], opened)
        assert log.error is None
        assert log.live_lock is not None
        files = sorted(map(str, self.nodes.directory.rglob("failover-*.jsonl")))
        lives: dict[tuple[str, str], list[LoggedEvent]] = {}
        for part in [*log.parts, LogPart(files=files)]:
            for batch in read_part(part):
                for row in batch.to_pylist():
                    assert row["error"] is None
                    key = (row["holder"], row["node"])
                    lives.setdefault(key, []).extend(events_in(row["events"]))
        of_lives = [life_of(holder, node, said) for (holder, node), said in sorted(lives.items())]
        return account_of(of_lives, log.live_lock, None, log.live_lock.now)

    def wait_told(self, node: str) -> None:
        """Wait until the log tells that ``node`` serves: nodes write it on the side."""
        wait_until(lambda: self.account().serving == node, what=f"the log tells that {node} serves")

    def outages(self) -> Sequence[Outage]:
        """Return the outages that are told, in order of time; a report without doubts."""
        found = self.account()
        # A node whose first reading of the database's clock was slow is corrected by the next one,
        # which looks as if a clock had been set.
        assert [one for one in found.doubts if one.kind != "clock stepped"] == []
        assert [one for one in found.overlaps if one.is_conflict] == []
        least, most = found.availability or (1.0, 1.0)
        assert 0 <= least <= most <= 1
        known = [one for one in found.outages if one.is_known]
        return sorted(known, key=lambda one: one.begin.lo)


@pytest.fixture
def pair(
    store_settings: DatabaseStoreSettings,
    store_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Pair]:
    """Give a pair on a fresh database of each DBMS."""
    monkeypatch.setenv(PASSWORD_VARIABLE, PASSWORD)
    with cluster(store_url, tmp_path) as nodes:
        yield Pair(nodes, store_settings)


def holds(outage: Outage, truth: Truth) -> None:
    """Check that what is told is true."""
    begin = [at / SECOND for at in outage.begin]
    told = f"told {[one / SECOND for one in (*outage.begin, *outage.end)]}, true {truth}"
    LOGGER.info(
        "%s: told %.3f to %.3f s, seen %.3f to %.3f s",
        *(outage.cause, outage.least_us / SECOND, outage.most_us / SECOND),
        *truth.seconds(outage.end.hi / SECOND),
    )
    assert begin[0] <= truth.began[1] + TOLERANCE, told
    assert begin[1] >= truth.began[0] - TOLERANCE, told
    assert outage.is_open == (truth.ended is None), told
    if truth.ended is not None:
        assert outage.end.hi / SECOND >= truth.ended[0] - TOLERANCE, told
        assert outage.end.lo / SECOND <= truth.ended[1] + SLOW, told


def taken_over(witness: Witness, after: float, port: int) -> None:
    """Wait until the node at ``port`` serves the witness."""

    def is_served() -> bool:
        return any(begun > after and at == port for begun, _, at in list(witness.served))

    wait_until(is_served, timeout_seconds=120, what="the witness is served again")


@pytest.mark.parametrize(
    ("server", "crash_detection"),
    [*((dbms, True) for dbms in EVERY_DBMS), ("postgresql", False)],
    indirect=["server"],
)
def test_a_killed_node(pair: Pair, *, crash_detection: bool) -> None:
    """kill -9: from when it was killed to when the backup answers."""
    lease_ms = LEASE_MS if crash_detection else LAPSING_LEASE_MS
    live, backup = pair.nodes.pair(crash_detection=crash_detection, jdbc_lock_expiration=lease_ms)
    with pair.watched(live.port, backup.port) as witness:
        pair.wait_told("live")
        before = time.time()
        live.kill()
        after = time.time()
        taken_over(witness, after, backup.port)
    backup.wait_log("ORT100008")
    pair.wait_told("backup")
    (outage,) = pair.outages()
    assert outage.cause == ("crash detected" if crash_detection else "lease expired")
    holds(outage, seen(witness, before, after))
    # What it stored last is a later proof of life than its last renewal.
    last = max(begun for begun, receipt, port in witness.served if port == live.port)
    assert outage.begin.lo / SECOND >= last - TOLERANCE
    if not crash_detection:
        lasts_long(outage, live.log)


def lasts_long(outage: Outage, log: str) -> None:
    """Assert that an outage lasted for most of a lease; ``log`` is the node's until then."""
    assert outage.most_us > 5 * SECOND
    if not any(code in log for code in LATE_RENEWALS):  # else it may have served on for a while
        assert outage.least_us > 5 * SECOND


@ON_ONE
def test_a_frozen_node(pair: Pair) -> None:
    """SIGSTOP: it was out from then on, though it says later that it has lost its lease."""
    live, backup = pair.nodes.pair(**LAPSING)
    with pair.watched(live.port, backup.port) as witness:
        pair.wait_told("live")
        before = time.time()
        live.signal(signal.SIGSTOP)
        after = time.time()
        taken_over(witness, after, backup.port)
    backup.wait_log("ORT100008")
    log = live.log
    live.signal(signal.SIGCONT)
    live.exit_code()
    pair.wait_told("backup")
    (outage,) = pair.outages()
    assert outage.cause == "lease expired"
    lasts_long(outage, log)
    holds(outage, seen(witness, before, after))


@ON_ONE
def test_an_orderly_stop(pair: Pair) -> None:
    """SIGTERM: from when the acceptor closed to when the backup answers."""
    live, backup = pair.nodes.pair(failover_on_shutdown=True)
    with pair.watched(live.port, backup.port) as witness:
        pair.wait_told("live")
        before = time.time()
        live.terminate()
        taken_over(witness, before, backup.port)
    pair.wait_told("backup")
    (outage,) = pair.outages()
    assert outage.cause == "released"
    holds(outage, seen(witness, before))


def test_a_stopped_database(
    private_server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From when the database stopped to when the backup serves on it."""
    monkeypatch.setenv(PASSWORD_VARIABLE, PASSWORD)
    settings = private_server.settings(private_server.create_database())
    with cluster(url_with_password(settings), tmp_path) as nodes:
        pair = Pair(nodes, settings)
        live, backup = nodes.pair(**LAPSING)
        with pair.watched(live.port, backup.port) as witness:
            pair.wait_told("live")
            before = time.time()
            private_server.kill()
            after = time.time()
            live.exit_code()
            private_server.start()
            taken_over(witness, after, backup.port)
        backup.wait_log("ORT100008")
        pair.wait_told("backup")
        (outage,) = pair.outages()
        holds(outage, seen(witness, before, after))
