"""The files of all login modules: read before a node asks for its lock, and by ``orthia check``."""

from orthia.broker.security.users import TakesTokens
from orthia.config.certificate_users import read_certificate_users
from orthia.config.security_settings import TokenLoginModule
from orthia.config.settings import Settings
from orthia.config.user_files import read_users


def check_login_files(settings: Settings) -> None:
    """Raise ConfigurationError if a file that a login module names cannot be used."""
    if settings.properties_login_module is not None:
        read_users(settings.properties_login_module)
    if settings.certificate_login_module is not None:
        read_certificate_users(settings.certificate_login_module)
    if settings.token_login_module is not None:
        tokens_of(settings.token_login_module)


def tokens_of(module: TokenLoginModule) -> tuple[TakesTokens]:
    """Return what takes the module's tokens; only nodes that take them load what reads them."""
    from orthia.broker.security.tokens import read_tokens

    return (read_tokens(module),)
