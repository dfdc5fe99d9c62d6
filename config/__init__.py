"""What the operator asked for: ``broker.xml`` read into frozen, checked settings."""

from orthia.config.addresses import AddressResolver, ResolvedAddressSettings
from orthia.config.errors import ConfigurationError, OrthiaError
from orthia.config.loader import load
from orthia.config.rendering import EffectiveSetting, render
from orthia.config.secrets import Secret, mask
from orthia.config.settings import (
    AcceptorSettings,
    AddressConfiguration,
    AddressSettings,
    DatabaseStoreSettings,
    FileStoreSettings,
    HaPolicy,
    HealthSettings,
    JournalType,
    QueueSettings,
    Role,
    RoutingType,
    SecuritySetting,
    Settings,
    StompLimits,
    User,
)
from orthia.config.urls import DatabaseUrl, Dialect

__all__ = [
    "AcceptorSettings",
    "AddressConfiguration",
    "AddressResolver",
    "AddressSettings",
    "ConfigurationError",
    "DatabaseStoreSettings",
    "DatabaseUrl",
    "Dialect",
    "EffectiveSetting",
    "FileStoreSettings",
    "HaPolicy",
    "HealthSettings",
    "JournalType",
    "OrthiaError",
    "QueueSettings",
    "ResolvedAddressSettings",
    "Role",
    "RoutingType",
    "Secret",
    "SecuritySetting",
    "Settings",
    "StompLimits",
    "User",
    "load",
    "mask",
    "render",
]
