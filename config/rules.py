"""Rules for a whole configuration, from a file or a command line."""

import re
from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Final

from orthia.config.acceptor_amqp import DEFAULT_LEAST_LARGE
from orthia.config.address_rules import ADDRESS_RULES
from orthia.config.errors import ConfigurationError
from orthia.config.settings import IoErrorPolicy, Role, Settings, asks_for_certificate
from orthia.config.store_rules import STORE_RULES
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.config.violations import Violation, repeated

MINIMUM_TOKEN: Final = 16
"""The length of a secret that is sent with each request and never typed."""


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
    limits = settings.stomp_limits
    most_whole = limits.max_body_bytes + limits.max_header_bytes
    for acceptor in settings.acceptors:
        yield from _port(f"core/acceptors/acceptor[{acceptor.name}]", acceptor.port)
        least_large, most = acceptor.min_large_message_size, settings.stomp_limits.max_body_bytes
        if least_large is not None and least_large > most > 0:
            yield Violation(
                f"core/acceptors/acceptor[{acceptor.name}]",
                f"has stompMinLargeMessageSize={least_large}, more than max-body-bytes {most}: what"
                " lies between would be refused; expected at most that",
            )
        least_large, most = acceptor.amqp.min_large_message_size, most_whole
        if least_large > most > 0 and least_large != DEFAULT_LEAST_LARGE:
            yield Violation(
                f"core/acceptors/acceptor[{acceptor.name}]",
                f"has amqpMinLargeMessageSize={least_large}, more than max-body-bytes and"
                f" max-header-bytes together, {most}: what lies between would be refused; expected"
                " at most that",
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
    module = settings.certificate_login_module
    asks = any(asks_for_certificate(one) for one in settings.tls_listeners)
    # Of login.config it is no error, for Artemis takes it.
    if module is not None and settings.login_domain is None and not asks:
        yield Violation(
            "core/login-modules/certificate-login-module",
            "knows users by their certificates, and no acceptor asks for one; expected an acceptor"
            " with sslEnabled=true, trustStorePath and needClientAuth=true or wantClientAuth=true",
        )


def _users(settings: Settings) -> Iterator[Violation]:
    yield from repeated("core/users/user", (user.name for user in settings.users))
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


def _outbox(settings: Settings) -> Iterator[Violation]:
    outbox = settings.outbox
    if outbox is None:
        return
    if not (settings.persistence_enabled and isinstance(settings.store, DatabaseStoreSettings)):
        yield Violation(
            "core/outbox",
            "takes messages from a table of the store, which is no database; expected a"
            " database-store, with persistence-enabled",
        )
    if settings.security_enabled and outbox.user is None:
        yield Violation(
            "core/outbox",
            "has no user, for whom messages are sent; expected the name of one, as security is"
            " enabled",
        )
    if outbox.poll_period < 1:
        yield Violation(
            "core/outbox/poll-period", f"is {outbox.poll_period} ms; expected 1 or more"
        )


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


_RULES: Final[tuple[Callable[[Settings], Iterator[Violation]], ...]] = (
    *STORE_RULES,
    _io_errors,
    _critical_analyzer,
    _persistence,
    _acceptors,
    _certificates,
    _users,
    *ADDRESS_RULES,
    _outbox,
    _limits,
)
