"""What the operator asked for: ``broker.xml`` read into frozen, checked settings."""

from orthia.config.address_settings import (
    AddressConfiguration,
    AddressSettings,
    QueueSettings,
    RoutingType,
)
from orthia.config.addresses import AddressResolver, ResolvedAddressSettings
from orthia.config.errors import ConfigurationError, OrthiaError
from orthia.config.loader import load
from orthia.config.rendering import EffectiveSetting, render
from orthia.config.secrets import Secret, mask
from orthia.config.security_settings import SecuritySetting, User
from orthia.config.settings import (
    AcceptorSettings,
    HaPolicy,
    HealthSettings,
    Role,
    Settings,
    StompLimits,
)
from orthia.config.store_settings import DatabaseStoreSettings, FileStoreSettings, JournalType
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
