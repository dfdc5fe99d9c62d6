"""Rules of the stores: the lease's timers, tables, files, lockers and the history.

The lease's timers, with E = ``jdbc-lock-expiration``, R = ``jdbc-lock-renew-period`` and
N = ``jdbc-network-timeout`` (all milliseconds):

* E > 0, R > 0 and R < E: a lease ends, and is renewed before it does;
* E >= 2 R + 100: two renewals fall into a lease, and a query between them has a bounded time left;
* N >= 100: no call to the database lasts for ever.

The lease's queries are given Q = min(N, E - 2 R). A renewal is triggered R after the last one that
worked, so a call of it that hangs is given up at R + Q <= E - R: one whole period before the lease
ends. To connect anew may take Q once more; what is not over at the deadline the watchdog ends then.
"""

from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Final

from orthia.config.errors import ConfigurationError
from orthia.config.lockers import locker_problems
from orthia.config.names import validate_table_name
from orthia.config.settings import Settings
from orthia.config.store_settings import DatabaseStoreSettings, FileStoreSettings
from orthia.config.violations import Violation

MINIMUM_QUERY_TIMEOUT: Final = 100
"""Milliseconds: below this an ordinary pause of a busy machine passes for a dead database."""

MINIMUM_FILE_SIZE: Final = 65_536
"""Bytes: below this a journal is mostly headers and files."""

MAXIMUM_RETENTION: Final = 36_500 * 86_400
"""Seconds: a hundred years, within what every database can count back."""

_STORE: Final = "core/store/database-store"
_TABLES: Final = (
    "bindings-table-name",
    "message-table-name",
    "large-message-table-name",
    "node-manager-store-table-name",
    "failover-log-table-name",
    "outbox-table-name",
    "acks-table-name",
)


def lease_query_timeout(store: DatabaseStoreSettings) -> int:
    """Return how long, in milliseconds, a query of the lease may take before it has failed.

    The rule is in this module's docstring: a hung call is over one period before the lease is.
    """
    given = getattr(store.locker, "query_timeout", 0) * 1000
    return min(
        store.jdbc_network_timeout,
        store.jdbc_lock_expiration - 2 * store.jdbc_lock_renew_period,
        *([given] if given > 0 else []),
    )


def _timers(settings: Settings) -> Iterator[Violation]:
    store = settings.store
    if not isinstance(store, DatabaseStoreSettings):
        return
    renew, expiration = store.jdbc_lock_renew_period, store.jdbc_lock_expiration
    if store.locker is None:
        for element, value in (
            ("jdbc-lock-expiration", expiration),
            ("jdbc-lock-renew-period", renew),
        ):
            if value <= 0:
                yield Violation(f"{_STORE}/{element}", f"is {value} ms; expected more than 0")
        if renew > 0 and expiration > 0:
            yield from _room_for_renewals(renew, expiration)
    if store.jdbc_network_timeout < MINIMUM_QUERY_TIMEOUT:
        yield Violation(
            f"{_STORE}/jdbc-network-timeout",
            f"is {store.jdbc_network_timeout} ms; expected at least {MINIMUM_QUERY_TIMEOUT} ms:"
            " a call to the database that never ends would hold the node for ever",
        )
    if store.jdbc_lock_acquisition_timeout < -1 or store.jdbc_lock_acquisition_timeout == 0:
        yield Violation(
            f"{_STORE}/jdbc-lock-acquisition-timeout",
            f"is {store.jdbc_lock_acquisition_timeout} ms;"
            " expected more than 0, or -1 to wait for ever",
        )
    if store.jdbc_allowed_time_diff < 0:
        yield Violation(
            f"{_STORE}/jdbc-allowed-time-diff",
            f"is {store.jdbc_allowed_time_diff} ms; expected 0 or more",
        )


def _room_for_renewals(renew: int, expiration: int) -> Iterator[Violation]:
    least = 2 * renew + MINIMUM_QUERY_TIMEOUT
    if renew >= expiration:
        yield Violation(
            f"{_STORE}/jdbc-lock-renew-period",
            f"is {renew} ms, which is not less than jdbc-lock-expiration ({expiration} ms):"
            f" the lease would end before it is renewed; expected less than {expiration} ms",
        )
    elif expiration < least:
        yield Violation(
            f"{_STORE}/jdbc-lock-expiration",
            f"is {expiration} ms, which leaves no room for two renewals every {renew} ms"
            f" (jdbc-lock-renew-period) and a query of {MINIMUM_QUERY_TIMEOUT} ms;"
            f" expected at least 2 x {renew} + {MINIMUM_QUERY_TIMEOUT} = {least} ms",
        )


def _table_names(settings: Settings) -> Iterator[Violation]:
    store = settings.store
    if not isinstance(store, DatabaseStoreSettings):
        return
    names: dict[str, str] = {
        element: getattr(store, element.replace("-", "_")) for element in _TABLES
    }
    for element, name in names.items():
        try:
            validate_table_name(name)
        except ConfigurationError as error:
            yield Violation(f"{_STORE}/{element}", str(error))
    # Alembic keeps the schema's version in a table named after the node manager's.
    names["node-manager-store-table-name (its _VERSION table)"] = (
        f"{store.node_manager_store_table_name}_VERSION"
    )
    names["message-table-name (its _HISTORY table)"] = store.message_history_table_name
    names["message-table-name (its _TIMES table)"] = store.message_times_table_name
    for (first, first_name), (second, second_name) in combinations(names.items(), 2):
        # PostgreSQL folds the case of names, and SQLite and MySQL may ignore it.
        if first_name.lower() == second_name.lower():
            blamed = second if second in _TABLES else first
            yield Violation(
                f"{_STORE}/{blamed}",
                f"{second_name!r} is the name of two tables: {first} and {second};"
                " expected a name of its own for each (case does not count)",
            )


def _file_store(settings: Settings) -> Iterator[Violation]:
    store = settings.store
    if not isinstance(store, FileStoreSettings):
        return
    for name, least, most, expected in (
        ("journal-file-size", MINIMUM_FILE_SIZE, None, f"{MINIMUM_FILE_SIZE} bytes or more"),
        ("journal-min-files", 2, None, "2 or more: one to write, and one to go on in"),
        ("journal-pool-files", -1, None, "-1 (keep all) or more"),
        ("journal-max-io", 1, None, "1 or more"),
        ("journal-buffer-size", 1, None, "1 byte or more"),
        ("journal-compact-min-files", 0, None, "0 (never) or more"),
        ("journal-compact-percentage", 0, 100, "0 to 100"),
        ("journal-lock-acquisition-timeout", -1, None, "-1 (wait for ever) or more"),
    ):
        value: int = getattr(store, name.replace("-", "_"))
        if value < least or (most is not None and value > most):
            yield Violation(f"core/{name}", f"is {value}; expected {expected}")


def _locker(settings: Settings) -> Iterator[Violation]:
    database = isinstance(settings.store, DatabaseStoreSettings)
    path = f"core/store/{'database' if database else 'file'}-store/locker"
    for attribute, text in locker_problems(settings.store, settings.ha_policy.role):
        yield Violation(path, f"{attribute} {text}")


def _retention(settings: Settings) -> Iterator[Violation]:
    store = settings.store
    if not isinstance(store, DatabaseStoreSettings) or store.journal_retention is None:
        return
    element = f"{_STORE}/journal-retention"
    seconds, limit = store.journal_retention.seconds, store.journal_retention.storage_limit
    if seconds is None and limit is None:
        yield Violation(
            element, "keeps messages for ever; expected a period, a storage-limit or both"
        )
    if seconds is not None and not 0 < seconds <= MAXIMUM_RETENTION:
        yield Violation(
            element,
            f"keeps messages for {seconds} s; expected 1 s to {MAXIMUM_RETENTION // 86_400} days",
        )
    if limit is not None and limit < 1:
        yield Violation(
            element,
            f"has a storage-limit of {limit} bytes; expected 1 or more, or no storage-limit",
        )
    if not settings.persistence_enabled:
        yield Violation(
            element,
            "keeps messages that left the journal, and persistence-enabled is false: there is no"
            " journal; expected one of the two",
        )


STORE_RULES: Final[tuple[Callable[[Settings], Iterator[Violation]], ...]] = (
    _timers,
    _table_names,
    _file_store,
    _locker,
    _retention,
)
