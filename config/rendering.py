"""The settings in effect, as a list a person can read: what ``orthia check`` prints."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Final, TypeAlias

from orthia.config.acceptors import SERVED_PROTOCOLS
from orthia.config.address_settings import AddressSettings
from orthia.config.addresses import ResolvedAddressSettings
from orthia.config.login_domains import LoginDomain, LoginModule
from orthia.config.secrets import HIDDEN, is_secret, without_passwords
from orthia.config.security_settings import PropertiesLoginModule, TokenLoginModule
from orthia.config.settings import (
    AcceptorSettings,
    ClientLimits,
    HaPolicy,
    HealthSettings,
    OutboxSettings,
    Role,
    Settings,
)
from orthia.config.store_reading import LOCKERS
from orthia.config.store_settings import (
    DatabaseStoreSettings,
    FileStoreSettings,
    LockerSettings,
    RetentionSettings,
)
from orthia.config.vocabulary import configuration, find, snake_case, value_kinds
from orthia.config.wildcards import WildcardAddresses

UNITS: Final = {"milliseconds": "ms", "bytes": "bytes"}
"""Kinds of values that have a unit."""

SPOKEN_DEFAULTS: Final = {
    "core/stomp-limits/max-connections-per-user": "seven eighths of max-connections",
    "core/stomp-limits/max-connections-per-address": "seven eighths of max-connections",
}
"""What is in effect where nothing is set, for settings whose default depends on another."""

_STORE: Final = "core/store/database-store"
_Holder: TypeAlias = (
    Settings
    | DatabaseStoreSettings
    | FileStoreSettings
    | HaPolicy
    | HealthSettings
    | OutboxSettings
    | ClientLimits
    | WildcardAddresses
)


@dataclass(frozen=True)
class EffectiveSetting:
    """A setting in effect."""

    path: str
    """Of the element, as ``core/store/database-store/jdbc-network-timeout``."""
    value: str
    """As it would be written in the file; passwords are hidden."""
    unit: str = ""
    """``ms``, ``bytes`` or nothing."""
    is_default: bool = False
    """Whether it is what it would be if the file said nothing."""


def render(settings: Settings) -> list[EffectiveSetting]:
    """Return every setting in effect, in the order of the file, passwords hidden."""
    return list(_core(settings))


def written(value: object) -> str:
    """Return ``value`` as it would be written in the file."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Enum):
        return str(value.value)
    if value is None:
        return "(none)"
    return str(value)


def _core(settings: Settings) -> Iterator[EffectiveSetting]:
    for name in (
        "name",
        "security_enabled",
        "populate_validated_user",
        "management_message_rbac",
        "management_rbac_prefix",
        "view_permission_method_match_pattern",
        "authentication_cache_size",
        "security_invalidation_interval",
        "address_queue_scan_period",
        "message_expiry_scan_period",
        "configuration_file_refresh_period",
        "global_max_size",
    ):
        yield _field("core", settings, name)
    # What is in effect where nothing is set depends on the store.
    limit = _field("core", settings, "max_store_bytes")
    yield replace(limit, value=written(settings.store_limit))
    for name in (
        "max_disk_usage",
        "min_disk_free",
        "disk_scan_period",
        "id_cache_size",
        "failover_log_directory",
        "audit_log_directory",
        "persistence_enabled",
        "io_error_policy",
        "resume_check_sleep_period",
        "critical_analyzer",
        "critical_analyzer_timeout",
        "critical_analyzer_check_period",
        "critical_analyzer_policy",
    ):
        yield _field("core", settings, name)
    if isinstance(settings.store, FileStoreSettings):
        for one in fields(FileStoreSettings):
            if one.name != "locker":
                yield _field("core", settings.store, one.name)
    else:
        yield from _all(_STORE, settings.store)
        for name, value in settings.store.data_source_properties.items():
            shown = HIDDEN if is_secret(name) else without_passwords(value)
            yield EffectiveSetting(f"{_STORE}/data-source-properties/{name}", shown)
        if settings.store.journal_retention is not None:
            yield from _attributes(f"{_STORE}/journal-retention", settings.store.journal_retention)
    yield from _locker(settings.store)
    yield from _ha_policy(settings.ha_policy)
    for acceptor in settings.acceptors:
        yield from _acceptor(acceptor)
    yield from _all("core/wildcard-addresses", settings.wildcard_addresses)
    yield from _addresses(settings)
    yield from _diverts(settings)
    for setting in settings.address_settings:
        yield from _address_setting(setting)
    for security in settings.security_settings:
        for permission, roles in security.permissions.items():
            path = f"core/security-settings/security-setting[{security.match}]/{permission}"
            yield EffectiveSetting(path, ",".join(sorted(roles)))
    for mapping in settings.role_mappings:
        path = f"core/security-settings/role-mapping[{mapping.from_role}]"
        yield EffectiveSetting(path, ",".join(sorted(mapping.to)))
    for user in settings.users:
        roles_text = ",".join(sorted(user.roles)) or "(none)"
        yield EffectiveSetting(
            f"core/users/user[{user.name}]", f"password {user.password}, roles {roles_text}"
        )
    if settings.login_domain is not None:
        yield from _login_domain(settings.login_domain)
    if settings.properties_login_module is not None:
        yield from _attributes(
            "core/login-modules/properties-login-module", settings.properties_login_module
        )
    if settings.certificate_login_module is not None:
        yield from _attributes(
            "core/login-modules/certificate-login-module", settings.certificate_login_module
        )
    if settings.token_login_module is not None:
        yield from _attributes("core/login-modules/token-login-module", settings.token_login_module)
    for limits in settings.resource_limit_settings:
        path = f"core/resource-limit-settings/resource-limit-setting[{limits.match}]"
        if limits.max_sessions is not None:
            yield EffectiveSetting(f"{path}/max-sessions", written(limits.max_sessions))
        if limits.max_queues is not None:
            yield EffectiveSetting(f"{path}/max-queues", written(limits.max_queues))
    if settings.health is not None:
        yield from _health(settings.health)
    if settings.outbox is not None:
        yield from _all("core/outbox", settings.outbox)
    yield from _all("core/stomp-limits", settings.stomp_limits)


def _health(health: HealthSettings) -> Iterator[EffectiveSetting]:
    path = "core/health"
    for name in _names_in(path):
        if name != "tls":
            yield _field(path, health, name)
    if health.tls is not None:
        for name, value in health.tls.parameters().items():
            yield EffectiveSetting(f"{path}/tls/{name}", value)


def _login_domain(domain: LoginDomain) -> Iterator[EffectiveSetting]:
    path = f"{domain.file.name}/{domain.name}"
    for module, flag in domain.modules:
        yield EffectiveSetting(f"{path}/{module.value}", flag.value)
        if module is LoginModule.GUEST:
            guest = domain.guest
            yield EffectiveSetting(f"{path}/{module.value}/user", guest.user)
            yield EffectiveSetting(f"{path}/{module.value}/role", guest.role)
            invalidate = written(guest.credentials_invalidate)
            yield EffectiveSetting(f"{path}/{module.value}/credentialsInvalidate", invalidate)


def _locker(store: DatabaseStoreSettings | FileStoreSettings) -> Iterator[EffectiveSetting]:
    locker = store.locker
    if locker is None:
        return
    kind = next(name for name, read_into in LOCKERS.items() if type(locker) is read_into)
    database = isinstance(store, DatabaseStoreSettings)
    path = f"core/store/{'database' if database else 'file'}-store/locker/{kind}"
    yield from _attributes(path, locker)
    for name, value in getattr(locker, "properties", {}).items():
        shown = HIDDEN if is_secret(name) else without_passwords(value)
        yield EffectiveSetting(f"{path}/property[{name}]", shown)


def _ha_policy(policy: HaPolicy) -> Iterator[EffectiveSetting]:
    role = "primary" if policy.role is Role.LIVE else "backup"
    yield EffectiveSetting("core/ha-policy/shared-store", role, is_default=role == "primary")
    path = f"core/ha-policy/shared-store/{role}"
    for name in _names_in(path):
        yield _field(path, policy, name)


def _acceptor(acceptor: AcceptorSettings) -> Iterator[EffectiveSetting]:
    path = f"core/acceptors/acceptor[{acceptor.name}]"
    host = f"[{acceptor.host}]" if ":" in acceptor.host else acceptor.host
    yield EffectiveSetting(path, f"tcp://{host}:{acceptor.port}")
    served = [one for one in acceptor.protocols if one in SERVED_PROTOCOLS]
    is_default = served == list(SERVED_PROTOCOLS)
    yield EffectiveSetting(f"{path}/protocols", ",".join(served), is_default=is_default)
    for name, value, default in (
        ("connectionsAllowed", acceptor.connections_allowed, -1),
        ("handshake-timeout", acceptor.handshake_timeout, None),
        ("connectionTtl", acceptor.connection_ttl, -1),
        ("heartBeatToConnectionTtlModifier", acceptor.heart_beat_to_connection_ttl_modifier, 2.0),
        ("stompMinLargeMessageSize", acceptor.min_large_message_size, None),
        ("anycastPrefix", ",".join(acceptor.anycast_prefixes) or None, None),
        ("multicastPrefix", ",".join(acceptor.multicast_prefixes) or None, None),
        ("virtualTopicConsumerWildcards", _virtual_topics(acceptor) or None, None),
    ):
        if value != default:
            yield EffectiveSetting(f"{path}/{name}", written(value))
    if "AMQP" in served:
        for name, value in acceptor.amqp.parameters().items():
            yield EffectiveSetting(f"{path}/{name}", value)
    if acceptor.tls is not None:
        for name, value in acceptor.tls.parameters().items():
            yield EffectiveSetting(f"{path}/{name}", value)


def _virtual_topics(acceptor: AcceptorSettings) -> str:
    consumers = acceptor.virtual_topic_consumers
    return ",".join(f"{one.pattern};{one.consumer_words}" for one in consumers)


def _diverts(settings: Settings) -> Iterator[EffectiveSetting]:
    for divert in settings.diverts:
        path = f"core/diverts/divert[{divert.name}]"
        for one in fields(divert)[1:]:
            value = getattr(divert, one.name)
            if value is not None:
                element = one.name.replace("_", "-")
                is_default = value == one.default
                yield EffectiveSetting(f"{path}/{element}", written(value), "", is_default)


def _addresses(settings: Settings) -> Iterator[EffectiveSetting]:
    for address in settings.addresses:
        path = f"core/addresses/address[{address.name}]"
        types = ", ".join(sorted(one.value for one in address.routing_types))
        yield EffectiveSetting(path, types)
        for queue in address.queues:
            yield EffectiveSetting(
                f"{path}/{queue.routing_type.value.lower()}/queue[{queue.name}]/@max-consumers",
                str(queue.max_consumers),
                is_default=queue.max_consumers == -1,
            )


def _address_setting(setting: AddressSettings) -> Iterator[EffectiveSetting]:
    path = "core/address-settings/address-setting"
    for one in fields(ResolvedAddressSettings):
        value = getattr(setting, one.name)
        if value is not None:
            element = one.name.replace("_", "-")
            yield EffectiveSetting(
                f"{path}[{setting.match}]/{element}",
                written(value),
                _unit(f"{path}/{element}"),
                is_default=value == one.default,
            )


def _attributes(
    path: str,
    holder: LockerSettings | PropertiesLoginModule | RetentionSettings | TokenLoginModule,
) -> Iterator[EffectiveSetting]:
    by_name = {one.name: one for one in fields(holder)}
    for attribute in find(path).attributes.values():
        if attribute.is_refused:
            continue
        one = by_name[snake_case(attribute.name)]
        value = getattr(holder, one.name)
        yield EffectiveSetting(
            f"{path}/@{attribute.name}",
            written(value),
            UNITS.get(attribute.kind.name, ""),
            is_default=value == one.default,
        )


def _all(path: str, holder: _Holder) -> Iterator[EffectiveSetting]:
    for name in _names_in(path):
        yield _field(path, holder, name)


def _names_in(path: str) -> list[str]:
    """Return the simple elements at ``path``, as the fields they are read into."""
    element = configuration()
    for name in path.split("/"):
        element = element.child(name)
    return [
        child.name.replace("-", "_")
        for child in element.children.values()
        if child.kind is not None and not child.is_ignored
    ]


def _field(path: str, holder: _Holder, name: str) -> EffectiveSetting:
    value = getattr(holder, name)
    setting = next(one for one in fields(holder) if one.name == name)
    element = name.replace("_", "-")
    spoken = SPOKEN_DEFAULTS.get(f"{path}/{element}")
    return EffectiveSetting(
        f"{path}/{element}",
        spoken if value is None and spoken is not None else written(value),
        _unit(f"{path}/{element}"),
        is_default=value == setting.default,
    )


def _unit(path: str) -> str:
    return UNITS.get(value_kinds()[path], "")
