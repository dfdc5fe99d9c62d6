"""The configured names of Orthia's tables, as the DBMS spells them."""

from dataclasses import dataclass

from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Dialect, fold_table_name


@dataclass(frozen=True)
class TableNames:
    """The name of each table in one database."""

    dialect: Dialect
    node_manager_store: str
    failover_log: str
    messages: str
    bindings: str
    history: str
    large_messages: str
    message_times: str
    outbox: str
    acks: str

    @classmethod
    def from_settings(cls, s: DatabaseStoreSettings) -> "TableNames":
        """Return the configured names; raises ConfigurationError when two are the same."""
        dialect = s.jdbc_connection_url.dialect
        return cls(
            dialect=dialect,
            node_manager_store=fold_table_name(dialect, s.node_manager_store_table_name),
            failover_log=fold_table_name(dialect, s.failover_log_table_name),
            messages=fold_table_name(dialect, s.message_table_name),
            bindings=fold_table_name(dialect, s.bindings_table_name),
            history=fold_table_name(dialect, s.message_history_table_name),
            large_messages=fold_table_name(dialect, s.large_message_table_name),
            message_times=fold_table_name(dialect, s.message_times_table_name),
            outbox=fold_table_name(dialect, s.outbox_table_name),
            acks=fold_table_name(dialect, s.acks_table_name),
        )

    @property
    def ack_routine(self) -> str:
        """The function or procedure that fills the table of acknowledgements.

        ``orthia_ack`` of ``ORTHIA_ACKS``: each broker of one database has its own.
        """
        name = self.acks.lower()
        return name.removesuffix("s") if name.endswith("acks") else f"{name}_ack"

    @property
    def version(self) -> str:
        """The table with the schema's revision, which alembic writes."""
        return self.suffixed(self.node_manager_store, "VERSION")

    def suffixed(self, table: str, suffix: str) -> str:
        """Return the name of an object of a table, such as an index."""
        return fold_table_name(self.dialect, f"{table}_{suffix}")
