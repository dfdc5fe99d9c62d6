"""An audit beside a journal that is written finds nothing: what went on meanwhile is no fault."""

import threading

import pytest
from pyspark.sql import DataFrame, SparkSession
from typing_extensions import override

from orthia.config.address_settings import RoutingType
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.journal import MessageJournal, MessageLocation, QueueBinding, Unit, encode_message
from orthia.pipeline.jobs import audit
from orthia.pipeline.sources.inputs import StoreInputs
from orthia.pipeline.sources.store import StoreReference
from tests.journal.keeping import KeepingStore
from tests.journal.large_support import bodies_of, upload
from tests.journal.support import SqlJournalStore, record
from tests.pipeline.conftest import reference_to
from tests.support.waiting import wait_until

pytestmark = pytest.mark.extended

FIRST, SECOND = 7, 8
KEPT = 8
"""Rounds of which everything is there when the messages are read."""


class Worker(threading.Thread):
    """Sends to queues, large bodies too, and takes it all again, with the queues, when told to."""

    def __init__(self, store: SqlJournalStore) -> None:
        super().__init__(name="worker", daemon=True)
        self.store = store
        self.stopping = threading.Event()
        self.takes = threading.Event()
        """Whether all that is sent is taken at once; else some rounds' messages are kept."""
        self.rounds = 0
        self._kept: list[tuple[int, list[MessageLocation]]] = []

    def run(self) -> None:
        """Work until it is told to stop."""
        journal = self.store.open()
        for queue_id, name in ((FIRST, "first"), (SECOND, "second")):
            journal.add_binding(QueueBinding(queue_id, name, "orders", RoutingType.MULTICAST))
        while not self.stopping.is_set():
            if len(self._kept) < KEPT or self.takes.is_set():
                self._kept.append(self._send(journal))
                self.rounds += 1
            while len(self._kept) > (0 if self.takes.is_set() else KEPT):
                self._take(journal, *self._kept.pop(0))
            self.takes.wait(0.01)

    def _send(self, journal: MessageJournal) -> tuple[int, list[MessageLocation]]:
        plain = encode_message(record("plain"))
        body = upload(self.store, journal)
        large = encode_message(record("")._replace(large=body))
        queue_id = journal.next_id()
        binding = QueueBinding(queue_id, f"queue-{queue_id}", "orders", RoutingType.MULTICAST)
        journal.add_binding(binding)
        unit = Unit()
        for queues, payload in (([FIRST, SECOND], plain), ([FIRST, SECOND], large)):
            unit.add_message(queues, payload)
        for payload in (plain, large):
            unit.add_message([queue_id], payload)
        places = journal.append_unit(unit)
        self.store.settle(journal)
        bodies_of(journal).unpin(body.id)
        return queue_id, places

    def _take(self, journal: MessageJournal, queue_id: int, places: list[MessageLocation]) -> None:
        journal.delete(places)
        journal.delete_binding(queue_id)
        self.store.settle(journal)


class Slow(StoreInputs):
    """Inputs of which each is read when what the one before it showed is gone."""

    def __init__(self, spark: SparkSession, reference: StoreReference, worker: Worker) -> None:
        super().__init__(spark, reference)
        self._worker = worker

    @override
    def audited(self, table: str, *, content: bool = True) -> DataFrame:
        if table in ("pieces", "bindings"):
            self._worker.takes.set()
        until = self._worker.rounds + KEPT
        if self._worker.takes.is_set():
            wait_until(lambda: self._worker.rounds >= until, what="the journal goes on")
        return super().audited(table, content=content)


@pytest.mark.parametrize(
    ("server", "history"),
    [("postgresql", True), ("mariadb", True), ("sqlite", True), ("sqlite", False)],
    indirect=["server"],
)
def test_nothing_is_wrong_because_it_goes_on(
    spark: SparkSession,
    store_settings: DatabaseStoreSettings,
    monkeypatch: pytest.MonkeyPatch,
    *,
    history: bool,
) -> None:
    """On every DBMS: messages, bodies and queues come and go between one table and the next."""
    kind = KeepingStore if history else SqlJournalStore
    worker = Worker(kind(store_settings))
    reference = reference_to(worker.store.settings, monkeypatch)
    worker.start()
    try:
        wait_until(lambda: worker.rounds >= KEPT, what="the journal is at work")
        found = audit.examined(Slow(spark, reference, worker), history=history)
        assert found.listed == []
        # It was there when the messages were read.
        assert sum(epoch["rows"] for epoch in found.epochs) >= 6 * KEPT
        assert worker.is_alive()
    finally:
        worker.stopping.set()
        worker.join(240)
        worker.store.close()
