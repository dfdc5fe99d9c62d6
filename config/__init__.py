"""What the operator asked for: ``broker.xml`` read into frozen, checked settings."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
        ClientLimits,
        HaPolicy,
        HealthSettings,
        Role,
        Settings,
    )
    from orthia.config.store_settings import DatabaseStoreSettings, FileStoreSettings, JournalType
    from orthia.config.urls import DatabaseUrl, Dialect
else:
    from orthia.config.lazily import names_of

    __getattr__ = names_of(
        __name__,
        {
            "address_settings": "AddressConfiguration AddressSettings QueueSettings RoutingType",
            "addresses": "AddressResolver ResolvedAddressSettings",
            "errors": "ConfigurationError OrthiaError",
            "loader": "load",
            "rendering": "EffectiveSetting render",
            "secrets": "Secret mask",
            "security_settings": "SecuritySetting User",
            "settings": "AcceptorSettings HaPolicy HealthSettings Role Settings ClientLimits",
            "store_settings": "DatabaseStoreSettings FileStoreSettings JournalType",
            "urls": "DatabaseUrl Dialect",
        },
    )

__all__ = [
    "AcceptorSettings",
    "AddressConfiguration",
    "AddressResolver",
    "AddressSettings",
    "ClientLimits",
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
    "User",
    "load",
    "mask",
    "render",
]
