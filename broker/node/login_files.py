"""The files of all login modules: read before a node asks for its lock, and by ``orthia check``."""

from typing import Final

from orthia.broker.security.users import TakesTokens
from orthia.config.artemis_logins import LOGIN_CONFIG
from orthia.config.certificate_users import read_certificate_users
from orthia.config.login_domains import Answer, LoginModule, who_lets_in
from orthia.config.security_settings import TokenLoginModule
from orthia.config.settings import Settings
from orthia.config.user_files import read_users

_LINE: Final = '<login-modules xmlns="urn:orthia"><properties-login-module/></login-modules>'


def check_login_files(settings: Settings) -> str | None:
    """Return why no client can log in; None if one can.

    Raises ConfigurationError if a file that a login module names cannot be used.
    """
    module, certificates = settings.properties_login_module, settings.certificate_login_module
    users = () if module is None else read_users(module)
    certified = () if certificates is None else read_certificate_users(certificates)
    if settings.token_login_module is not None:
        tokens_of(settings.token_login_module)
    if not settings.security_enabled or settings.users or settings.token_login_module is not None:
        return None
    by_certificate = bool(certified) and settings.asks_for_certificates
    if _lets_in(settings, has_users=bool(users), by_certificate=by_certificate):
        return None
    return f"no client can log in: security is enabled, and {_why(settings)}"


def _lets_in(settings: Settings, *, has_users: bool, by_certificate: bool) -> bool:
    domain = settings.login_domain
    if domain is None:
        return has_users or by_certificate
    if domain.certificates_decide and by_certificate:
        return True
    answers = {
        LoginModule.GUEST: Answer.SUCCEEDED,
        LoginModule.PROPERTIES: Answer.SUCCEEDED if has_users else Answer.FAILED,
    }
    with_certificate = {**answers, LoginModule.CERTIFICATE: Answer.SUCCEEDED}
    return bool(
        who_lets_in(domain.modules, answers)
        or (by_certificate and who_lets_in(domain.modules, with_certificate))
    )


def _why(settings: Settings) -> str:
    """Return what is missing, and the line to add."""
    module, domain = settings.properties_login_module, settings.login_domain
    added = f"a user by `orthia user add NAME --role ROLE --config {settings.source}`"
    if module is not None:
        return f"{module.user} has no user that could; add {added}"
    add = f"add to <core> of {settings.source} the line {_LINE} and {added}"
    if settings.certificate_login_module is not None:
        return (
            "users are known by their certificates alone, of which there is none that an acceptor"
            f" asks for; {add}"
        )
    if domain is not None:
        return f"the domain {domain.name!r} of {domain.file} lets nobody in; {add}"
    beside = "" if settings.source is None else f" beside {settings.source.name}"
    return (
        "there are neither <users> or <login-modules> of urn:orthia nor Artemis'"
        f" {LOGIN_CONFIG} or artemis-users.properties{beside} that say who can; {add}"
    )


def tokens_of(module: TokenLoginModule) -> tuple[TakesTokens]:
    """Return what takes the module's tokens; only nodes that take them load what reads them."""
    from orthia.broker.security.tokens import read_tokens

    return (read_tokens(module),)
