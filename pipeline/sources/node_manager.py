"""``orthia.node_manager``: who holds which lock of a pair now.

Options: ``url`` or ``config`` say where the store is; ``pair`` names it (default: its node id).
"""

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database
from orthia.nodemanager.locks.lease import LockStatus
from orthia.nodemanager.locks.status import DatabaseLocks, Seen
from orthia.pipeline.sources.options import check_options
from orthia.pipeline.sources.schemas import NODE_MANAGER, arrow_schema
from orthia.pipeline.sources.store import OPTIONS, StoreReference


class NodeManagerSource(DataSource):
    """The data source; every worker makes its own from the options."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """Check the options; raises BadOption."""
        check_options(options, {*OPTIONS, "pair"})
        self._store = StoreReference.from_options(options)
        self._pair = options.get("pair")

    @classmethod
    def name(cls) -> str:
        """Return the name for ``spark.read.format``."""
        return "orthia.node_manager"

    def schema(self) -> StructType:
        """Return the columns."""
        return NODE_MANAGER

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - Spark's signature
        """Return the reader."""
        return NodeManagerReader(self._store, self._pair)


class NodeManagerReader(DataSourceReader):
    """Reads NODE_MANAGER_STORE in one statement, and checks a lock whose row has expired."""

    def __init__(self, store: StoreReference, pair: str | None = None) -> None:
        self._store = store
        self._pair = pair

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        """Yield a row for each lock."""
        rows = locks_of(self._store.settings(), self._pair)
        yield pa.RecordBatch.from_pylist(rows, schema=arrow_schema(NODE_MANAGER))


def locks_of(settings: DatabaseStoreSettings, pair: str | None = None) -> list[dict[str, Any]]:
    """Return a row for each lock of a store; raises StoreError."""
    with (
        Database.from_settings(settings) as database,
        DatabaseLocks(database, settings, "orthia-pipeline") as locks,
    ):
        seen = locks.look()
    return [_row(seen, lock, pair) for lock in (seen.status.live, seen.status.backup)]


def _row(seen: Seen, lock: LockStatus, pair: str | None) -> dict[str, Any]:
    status = seen.status
    return {
        "pair": pair or status.node_id,
        "node_id": status.node_id,
        "state": status.state.value,
        "lock": lock.lock.name.lower(),
        "holder_id": lock.holder_id,
        "token": lock.token,
        "expires_at": lock.expiration_time,
        "held": None if lock.lock in seen.unknown else lock.is_held,
        "fence_token": status.fence_token,
        "database_time": status.database_time,
    }
