"""Rules a whole configuration must keep, whoever wrote it: a file or a command line.

The lease's timers, with E = ``jdbc-lock-expiration``, R = ``jdbc-lock-renew-period`` and
N = ``jdbc-network-timeout`` (all milliseconds):

* E > 0, R > 0 and R < E: a lease ends, and is renewed before it does;
* E >= 2 R + 100: two renewals fall into a lease, and a query between them has a bounded time left;
* N >= 100: no call to the database lasts for ever.

The lease's queries are given Q = min(N, E - 2 R). A renewal is triggered R after the last one that
worked, so one that hangs is given up at R + Q <= E - R: one whole period before the lease ends.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from orthia.config.acceptor_tls import ClientCertificate
from orthia.config.errors import ConfigurationError
from orthia.config.lockers import locker_problems
from orthia.config.names import validate_table_name
from orthia.config.queue_rules import conflicts, conflicts_of_defaults, problems_of_names
from orthia.config.settings import IoErrorPolicy, Role, Settings
from orthia.config.store_settings import DatabaseStoreSettings, FileStoreSettings

MINIMUM_QUERY_TIMEOUT: Final = 100
"""Milliseconds: below this an ordinary pause of a busy machine passes for a dead database."""

MINIMUM_TOKEN: Final = 16
"""Characters of a secret that is sent with each request, and that nobody has to type."""

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
)


@dataclass(frozen=True)
class Violation:
    """A rule that is broken."""

    element: str
    """Path of the element to change, as ``core/acceptors/acceptor[stomp]``."""
    message: str
    """What is wrong, with the numbers, and what was expected."""

    @property
    def name(self) -> str:
        """The element's own name, without those around it."""
        return self.element.rpartition("/")[2]


def lease_query_timeout(store: DatabaseStoreSettings) -> int:
    """Return how long, in milliseconds, a query of the lease may take before it has failed.

    The rule is in this module's docstring: a hung renewal is over one period before the lease is.
    """
    given = getattr(store.locker, "query_timeout", 0) * 1000
    return min(
        store.jdbc_network_timeout,
        store.jdbc_lock_expiration - 2 * store.jdbc_lock_renew_period,
        *([given] if given > 0 else []),
    )


def check(settings: Settings) -> None:
    """Raise ConfigurationError naming every rule that ``settings`` break, one a line."""
    found = violations(settings)
    if found:
        where = f"{settings.source}: " if settings.source else ""
        raise ConfigurationError(
            "\n".join(f"{where}<{violation.name}>: {violation.message}" for violation in found)
        )


def violations(settings: Settings) -> list[Violation]:
    """Return every rule that ``settings`` break."""
    return [violation for rule in _RULES for violation in rule(settings)]


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


def _io_errors(settings: Settings) -> Iterator[Violation]:
    if settings.resume_check_sleep_period < 1:
        yield Violation(
            "core/resume-check-sleep-period",
            f"is {settings.resume_check_sleep_period} ms; expected 1 or more",
        )
    locker = settings.store.locker
    restarts = settings.io_error_policy is IoErrorPolicy.RESTART_AS_BACKUP
    if restarts and locker is not None and not locker.use_lock:
        yield Violation(
            "core/io-error-policy",
            "is restart-as-backup, and useLock of the locker is false: a backup without a lock is"
            " live at once; expected another policy, or a lock",
        )


def _critical_analyzer(settings: Settings) -> Iterator[Violation]:
    for name, least in (("timeout", 1), ("check-period", 0)):
        element = f"critical-analyzer-{name}"
        value: int = getattr(settings, element.replace("-", "_"))
        if value < least:
            yield Violation(f"core/{element}", f"is {value} ms; expected {least} or more")


def _persistence(settings: Settings) -> Iterator[Violation]:
    if not settings.persistence_enabled and settings.ha_policy.role is Role.BACKUP:
        yield Violation(
            "core/persistence-enabled",
            "is false for a backup, which would have nothing to take over; expected true, or a"
            " node without <backup>",
        )


def _acceptors(settings: Settings) -> Iterator[Violation]:
    for acceptor in settings.acceptors:
        yield from _port(f"core/acceptors/acceptor[{acceptor.name}]", acceptor.port)
        least_large, most = acceptor.min_large_message_size, settings.stomp_limits.max_body_bytes
        if least_large is not None and least_large > most > 0:
            yield Violation(
                f"core/acceptors/acceptor[{acceptor.name}]",
                f"has stompMinLargeMessageSize={least_large}, more than max-body-bytes {most}: what"
                " lies between would be refused; expected at most that",
            )
    for first, second in combinations(settings.acceptors, 2):
        element = f"core/acceptors/acceptor[{second.name}]"
        if first.name == second.name:
            yield Violation(element, "is named twice; expected a name of its own for each acceptor")
        if first.port and (first.host, first.port) == (second.host, second.port):
            yield Violation(
                element,
                f"listens on {second.host}:{second.port}, and so does acceptor {first.name!r};"
                " expected a port of its own",
            )
    if settings.health is not None:
        yield from _port("core/health", settings.health.port)
        token = settings.health.token
        if token is not None and len(token.reveal()) < MINIMUM_TOKEN:
            yield Violation(
                "core/health/token",
                f"has fewer than {MINIMUM_TOKEN} characters; expected a long one that a machine"
                " drew, as `openssl rand -hex 24` prints it",
            )
        for acceptor in settings.acceptors:
            if settings.health.port and settings.health.port == acceptor.port:
                yield Violation(
                    "core/health",
                    f"port {settings.health.port} belongs to acceptor {acceptor.name!r};"
                    " expected a port of its own",
                )


def _port(element: str, port: int) -> Iterator[Violation]:
    if not 0 <= port <= 65_535:
        yield Violation(
            element, f"port {port} does not exist; expected 1 to 65535, or 0 for any free one"
        )


def _certificates(settings: Settings) -> Iterator[Violation]:
    if settings.certificate_login_module is not None and not any(
        one.tls is not None and one.tls.client_certificate is not ClientCertificate.IGNORED
        for one in settings.acceptors
    ):
        yield Violation(
            "core/login-modules/certificate-login-module",
            "knows users by their certificates, and no acceptor asks for one; expected an acceptor"
            " with sslEnabled=true, trustStorePath and needClientAuth=true or wantClientAuth=true",
        )


def _users(settings: Settings) -> Iterator[Violation]:
    yield from _repeated("core/users/user", (user.name for user in settings.users))
    try:
        re.compile(settings.view_permission_method_match_pattern)
    except re.error as error:
        yield Violation(
            "core/view-permission-method-match-pattern",
            f"is no regular expression: {error}; expected one, as ^(get|list).*$",
        )
    for name in ("authentication_cache_size", "security_invalidation_interval"):
        if getattr(settings, name) < 0:
            yield Violation(
                f"core/{name.replace('_', '-')}", "is negative; expected 0, for none, or more"
            )


def _wildcards(settings: Settings) -> Iterator[Violation]:
    words = settings.wildcard_addresses
    given = {
        "delimiter": words.delimiter,
        "any-words": words.any_words,
        "single-word": words.single_word,
    }
    for name, value in given.items():
        if list(given.values()).count(value) > 1:
            yield Violation(
                f"core/wildcard-addresses/{name}",
                f"is {value!r}, and so is another of them; expected three that differ",
            )


def _addresses(settings: Settings) -> Iterator[Violation]:
    yield from _repeated("core/addresses/address", (address.name for address in settings.addresses))
    owners: dict[str, str] = {}
    for address in settings.addresses:
        for queue in address.queues:
            element = f"core/addresses/address[{address.name}]/queue[{queue.name}]"
            if queue.name in owners:
                yield Violation(
                    element,
                    f"the queue {queue.name!r} is also declared under address"
                    f" {owners[queue.name]!r}; expected a name of its own",
                )
            owners.setdefault(queue.name, address.name)
            if queue.routing_type not in address.routing_types:
                yield Violation(
                    element,
                    f"is {queue.routing_type.value} under an address that is not;"
                    f" expected it under <{queue.routing_type.value.lower()}>",
                )
            if queue.max_consumers < -1:
                yield Violation(
                    element, f"max-consumers is {queue.max_consumers}; expected -1 (any) or more"
                )

    for name, queue, conflict in conflicts(settings):
        yield Violation(f"core/addresses/address[{name}]/queue[{queue.name}]", conflict)


def _address_settings(settings: Settings) -> Iterator[Violation]:
    for match, conflict in conflicts_of_defaults(settings):
        element = f"core/address-settings/address-setting[{match}]"
        yield Violation(element, f"a queue that is created there {conflict}")
    yield from _repeated(
        "core/address-settings/address-setting", (one.match for one in settings.address_settings)
    )
    for one in settings.address_settings:
        element = f"core/address-settings/address-setting[{one.match}]"
        numbers: tuple[tuple[str, float | None, float, str], ...] = (
            ("max-delivery-attempts", one.max_delivery_attempts, -1, "-1 (no limit) or more than"),
            ("redelivery-delay", one.redelivery_delay, 0, "0 or more"),
            ("redelivery-delay-multiplier", one.redelivery_delay_multiplier, 0, "0 or more"),
            (
                "redelivery-collision-avoidance-factor",
                one.redelivery_collision_avoidance_factor,
                0,
                "0 to 1",
            ),
            ("max-redelivery-delay", one.max_redelivery_delay, -1, "-1 or more"),
            ("expiry-delay", one.expiry_delay, -1, "-1 or more"),
            ("min-expiry-delay", one.min_expiry_delay, -1, "-1 or more"),
            ("max-expiry-delay", one.max_expiry_delay, -1, "-1 or more"),
            ("max-size-bytes", one.max_size_bytes, -1, "-1 (no limit) or more"),
            ("max-size-messages", one.max_size_messages, -1, "-1 (no limit) or more"),
            ("page-size-bytes", one.page_size_bytes, 1, "1 or more"),
            ("page-limit-bytes", one.page_limit_bytes, -1, "-1 (no limit) or more"),
            ("page-limit-messages", one.page_limit_messages, -1, "-1 (no limit) or more"),
            ("id-cache-size", one.id_cache_size, 0, "0 or more"),
        )
        for name, value, least, expected in numbers:
            if value is not None and (value < least or (name, value) == _NO_ATTEMPT):
                shown = f"{expected} 0" if expected.endswith("than") else expected
                yield Violation(f"{element}/{name}", f"is {value}; expected {shown}")
        if (one.redelivery_collision_avoidance_factor or 0) > 1:
            yield Violation(
                f"{element}/redelivery-collision-avoidance-factor",
                f"is {one.redelivery_collision_avoidance_factor}; expected 0 to 1",
            )
        if one.slow_consumer_check_period is not None and one.slow_consumer_check_period < 1:
            yield Violation(
                f"{element}/slow-consumer-check-period",
                f"is {one.slow_consumer_check_period} s; expected 1 or more",
            )
        for name, target in (
            ("dead-letter-address", one.dead_letter_address),
            ("expiry-address", one.expiry_address),
        ):
            if target is not None and any(sign in target for sign in "*#"):
                yield Violation(
                    f"{element}/{name}",
                    f"{target!r} has a wildcard; expected the name of one address",
                )
    for match, name, problem in problems_of_names(settings.address_settings):
        yield Violation(f"core/address-settings/address-setting[{match}]/{name}", problem)


_NO_ATTEMPT: Final = ("max-delivery-attempts", 0)


def _limits(settings: Settings) -> Iterator[Violation]:
    for name, value in vars(settings.stomp_limits).items():
        if value is None or (value == -1 and name == "min_large_message_size"):
            continue
        if value < 1:
            yield Violation(
                f"core/stomp-limits/{name.replace('_', '-')}", f"is {value}; expected 1 or more"
            )
    limits = settings.stomp_limits
    if limits.min_large_message_size > limits.max_body_bytes > 0:
        yield Violation(
            "core/stomp-limits/min-large-message-size",
            f"is {limits.min_large_message_size} bytes, more than max-body-bytes"
            f" {limits.max_body_bytes}: what lies between would be refused; expected at most that",
        )
    if 0 < limits.max_client_bytes < limits.max_body_bytes:
        yield Violation(
            "core/stomp-limits/max-client-bytes",
            f"is {limits.max_client_bytes} bytes, less than a single frame may have"
            f" (max-body-bytes {limits.max_body_bytes}); expected at least that",
        )
    for name, least, most, expected in (
        ("max-store-bytes", -1, None, "-1 (no limit) or more"),
        ("max-disk-usage", -1, 100, "0 to 100 per cent, or -1 (no limit)"),
        ("min-disk-free", -1, None, "-1 (no limit) or more"),
        ("disk-scan-period", 1, None, "1 or more"),
        ("id-cache-size", 0, None, "0 or more"),
    ):
        value = getattr(settings, name.replace("-", "_"))
        if value is not None and (value < least or (most is not None and value > most)):
            yield Violation(f"core/{name}", f"is {value}; expected {expected}")
    if settings.global_max_size < 1:
        yield Violation(
            "core/global-max-size",
            f"is {settings.global_max_size} bytes; expected 1 or more, or -1 for the default",
        )


def _repeated(element: str, names: Iterable[str]) -> Iterator[Violation]:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            yield Violation(f"{element}[{name}]", "is there twice; expected it once")
        seen.add(name)


_RULES: Final[tuple[Callable[[Settings], Iterator[Violation]], ...]] = (
    _timers,
    _table_names,
    _file_store,
    _locker,
    _retention,
    _io_errors,
    _critical_analyzer,
    _persistence,
    _acceptors,
    _certificates,
    _users,
    _wildcards,
    _addresses,
    _address_settings,
    _limits,
)
