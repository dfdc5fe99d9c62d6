"""An audit finds every fault that is put into a store, on every DBMS, and blames nothing else."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from sqlalchemy import delete, update

from orthia.config.dialects import Dialect
from orthia.pipeline.jobs import audit
from orthia.pipeline.jobs.audit_limits import Fault
from orthia.pipeline.sources.inputs import StoreInputs
from orthia.pipeline.sources.store import StoreReference
from tests.conftest import EVERY_DBMS, Servers
from tests.pipeline.conftest import PASSWORD_VARIABLE
from tests.pipeline.faults import FAULTS, Expected, Injected, Scene, sound
from tests.support.servers import SqliteServer, StoreServer

pytestmark = pytest.mark.extended

LEASE_MS = 60_000


@dataclass
class Audited:
    """What audits of one store said: while it was sound, with each limit set back, and spoiled."""

    sound: Expected
    spoiled: Expected
    expected: dict[str, Expected]
    unneeded: int
    counter_gone: Expected = field(default_factory=set)
    limits_low: Expected = field(default_factory=set)


def _found(spark: SparkSession, scene: Scene, *, history: bool = True) -> tuple[Expected, int]:
    reference, _ = StoreReference.of(scene.store.settings, PASSWORD_VARIABLE)
    one = audit.examined(StoreInputs(spark, reference), history=history)
    assert sum(one.counts.values()) == len(one.listed)
    assert all(fault.detail for fault in one.listed)
    return {_as_expected(fault) for fault in one.listed}, len(one.unneeded)


def _as_expected(fault: Fault) -> tuple[str, str, int | None, int | None]:
    return fault.fault, fault.table, fault.id if fault.seq is None else fault.seq, fault.position


@pytest.fixture(scope="module")
def audited(
    spark: SparkSession, shared_servers: Servers, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Audited]]:
    """Give what the audits of a DBMS said; done once for each."""
    opened: list[tuple[Scene, StoreServer, str]] = []

    @functools.cache
    def of(dbms: str) -> Audited:
        directory: Path = tmp_path_factory.mktemp("audited")
        server: StoreServer = SqliteServer(directory) if dbms == "sqlite" else shared_servers(dbms)
        name = server.create_database()
        scene = sound(server.settings(name, jdbc_lock_expiration=LEASE_MS))
        opened.append((scene, server, name))
        return _audit(spark, scene)

    yield of
    for scene, server, name in opened:
        scene.store.close()
        server.drop_database(name)


def _audit(spark: SparkSession, scene: Scene) -> Audited:
    clean, unneeded = _found(spark, scene)
    limits: list[Expected] = []
    # Of these nothing depends on the DBMS.
    if scene.store.database.dialect is Dialect.SQLITE:
        limits = _with_limits_set_back(spark, scene)
    expected = {one.name: one.inject(scene) for one in FAULTS}
    spoiled, _ = _found(spark, scene)
    return Audited(clean, spoiled, expected, unneeded, *limits)


def _with_limits_set_back(spark: SparkSession, scene: Scene) -> list[Expected]:
    """Return what is found without the counter of ids, and with counter and fence set back."""
    bindings, locks = scene.store.bindings, scene.store.fence
    counter = scene.row(0, "bindings")
    scene.do(delete(bindings).where(bindings.c.seq == 0))
    counter_gone, _ = _found(spark, scene, history=False)
    scene.add("bindings", **(counter | {"id": 15}))
    scene.do(update(locks).where(locks.c.id == 4).values(holder_token=1))
    limits_low, _ = _found(spark, scene, history=False)
    scene.change(0, "bindings", id=counter["id"])
    scene.do(update(locks).where(locks.c.id == 4).values(holder_token=2))
    return [counter_gone, limits_low]


@pytest.mark.parametrize("dbms", EVERY_DBMS)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda one: one.name)
def test_a_fault_is_found_at_its_row(
    audited: Callable[[str], Audited], fault: Injected, dbms: str
) -> None:
    """Each by itself, whatever else is wrong in the store."""
    found = audited(dbms)
    missed = found.expected[fault.name] - found.spoiled
    assert not missed


@pytest.mark.parametrize("dbms", EVERY_DBMS)
def test_nothing_else_is_blamed(audited: Callable[[str], Audited], dbms: str) -> None:
    """No neighbour of a fault, and no row of those that were left alone."""
    found = audited(dbms)
    expected: Expected = set().union(*found.expected.values())
    assert found.spoiled - expected == set()


@pytest.mark.parametrize("dbms", EVERY_DBMS)
def test_a_sound_store_is_sound(audited: Callable[[str], Audited], dbms: str) -> None:
    """What a journal wrote, with a body on its way, of which is told and which is no fault."""
    found = audited(dbms)
    assert found.sound == set()
    assert found.unneeded == 1


def test_a_limit_that_was_set_back_is_the_one_thing_named(
    audited: Callable[[str], Audited],
) -> None:
    """Not the rows that are above it, which all are."""
    found = audited("sqlite")
    assert found.counter_gone == {("missing-counter", "bindings", 0, None)}
    assert found.limits_low == {
        ("low-counter", "bindings", 0, None),
        ("fence-behind", "node_manager", 4, None),
    }
