"""What the operator asked for: ``broker.xml`` read into frozen, checked settings."""

from config.addresses import AddressResolver, ResolvedAddressSettings
from config.errors import ConfigurationError, OrthiaError
from config.loader import load
from config.rendering import EffectiveSetting, render
from config.secrets import Secret, mask
from config.settings import (
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
from config.urls import DatabaseUrl, Dialect

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
