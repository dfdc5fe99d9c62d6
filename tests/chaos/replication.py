"""A PostgreSQL with a standby that follows it by streaming replication and can take its place."""

import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from typing_extensions import override

from tests.chaos.network import Link
from tests.support.servers import PASSWORD, USER, PostgresqlServer, StoreServer, _postgresql_binary
from tests.support.waiting import wait_until

_OPTIONS = {
    "max_wal_size": "128MB",
    "min_wal_size": "32MB",
    "wal_keep_size": "64MB",
    "hot_standby": "on",
    "wal_receiver_timeout": "3s",
    "wal_retrieve_retry_interval": "200ms",
}


class _Member(PostgresqlServer):
    """One of the two; made from a base backup of the other unless it is the first."""

    def __init__(self, source_port: int | None) -> None:
        self._source_port = source_port
        super().__init__()
        self.options += [f"--{name.replace('_', '-')}={value}" for name, value in _OPTIONS.items()]

    def _initialise(self) -> None:
        if self._source_port is None:
            super()._initialise()
            return
        source = f"host=127.0.0.1 port={self._source_port} user={USER} password='{PASSWORD}'"
        command = [_postgresql_binary("pg_basebackup"), "-d", source, "-D", str(self.data)]
        self._run([*command, "-R", "-X", "stream", "-c", "fast", "--no-sync"])

    def ask(self, statement: str) -> Any:
        """Return the one value that a statement of the administrator gives."""
        return self._administrate(statement)[0][0]


class ReplicatedServer(StoreServer):
    """A primary and its standby. ``fail_over`` makes the standby the primary."""

    def __init__(self, directory: Path, *, synchronous: bool) -> None:
        """Keep data below ``directory``; ``synchronous`` has each commit wait for the standby."""
        self._directory = directory
        self.is_synchronous = synchronous
        self.primary = _Member(None)
        self.standby: _Member | None = None
        self.replication: Link | None = None
        """What the standby's packets go through, once there is a network."""

    @property
    def port(self) -> int:
        """The primary's."""
        return self.primary.port

    def __enter__(self) -> Self:
        self.primary.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.primary.discard()
        if self.standby is not None:
            self.standby.discard()

    @override
    def url(self, database: str) -> str:
        return self.primary.url(database)

    @override
    def create_database(self) -> str:
        return self.primary.create_database()

    @override
    def drop_database(self, database: str) -> None:
        self.primary.drop_database(database)

    @override
    def connections(self, database: str) -> list[str]:
        return self.primary.connections(database)

    def follow(self, link: Link) -> None:
        """Make a standby that reaches the primary through ``link``, and wait until it has all."""
        self.replication = link
        link.lead_to(self.primary.port)
        before, tempfile.tempdir = tempfile.tempdir, str(self._directory)
        try:
            self.standby = _Member(link.port)
        finally:
            tempfile.tempdir = before
        self.standby.start()
        wait_until(lambda: self.lag_bytes() == 0, 60, what="the standby follows")
        names = "'*'" if self.is_synchronous else "''"
        self.primary.execute(f"ALTER SYSTEM SET synchronous_standby_names = {names}")
        self.primary.execute("SELECT pg_reload_conf()")

    def lag_bytes(self) -> int | None:
        """Return how much of what the primary has written its standby lacks; None: no standby."""
        rows = self.primary.execute(
            "SELECT pg_wal_lsn_diff(pg_current_wal_flush_lsn(), flush_lsn)::bigint"
            " FROM pg_stat_replication WHERE state = 'streaming'"
        )
        return int(rows[0][0]) if rows and rows[0][0] is not None else None

    def fail_over(self) -> _Member:
        """Make the standby the primary and return the primary of before, which must not run."""
        assert self.standby is not None
        before, self.primary, self.standby = self.primary, self.standby, None
        self.primary.execute("SELECT pg_promote(wait => true, wait_seconds => 60)")
        return before

    def kill(self) -> None:
        """SIGKILL the primary with all its children."""
        self.primary.kill()

    def start(self) -> None:
        """Start it again."""
        self.primary.start()

    def restart(self) -> None:
        """Stop it in order and start it again."""
        self.primary.restart()

    def pause(self) -> None:
        """SIGSTOP it."""
        self.primary.pause()

    def resume(self) -> None:
        """SIGCONT it."""
        self.primary.resume()
