"""A digest of the users of a node, by which two nodes find out that theirs differ."""

import hashlib
import json
import uuid
from pathlib import Path
from typing import Any, Final

from orthia.config.errors import ConfigurationError
from orthia.config.file_states import FileState, state_of
from orthia.config.security_settings import PropertiesLoginModule, User
from orthia.config.settings import Settings
from orthia.config.user_files import read_properties
from orthia.config.values import read_names

_ITERATIONS: Final = 600_000
_DIGEST_BYTES: Final = 16
_MODULES: Final = (
    "properties_login_module",
    "certificate_login_module",
    "token_login_module",
)

Signature = tuple[tuple[User, ...], tuple[FileState | None, ...]]


def signature_of(settings: Settings) -> Signature:
    """Return what tells that the users have changed; looks at the state of files only."""
    files = (path for _, module in _modules(settings) for path in module.files)
    return settings.users, tuple(map(state_of, files))


def users_digest(settings: Settings, pair_id: str) -> str | None:
    """Return 36 characters that are the same on two nodes whose users, passwords and roles are.

    Users are those of ``broker.xml`` and of the files of its login modules, with the passwords as
    they are stored; the order of lines, and comments, do not matter. None where nobody needs to
    log in, or a file cannot be read.

    Whoever may read the database sees it, and must not learn a password from it. Nodes share no
    secret that all of them are certain to have (each may have a database user of its own), so it is
    no HMAC. It is PBKDF2 with SHA-256 over everything together, salted with the id of the pair: to
    try a guess somebody has to know all other passwords and their hashes, and each guess costs
    600,000 rounds, as it would if the passwords were kept as such hashes.
    """
    if not settings.security_enabled:
        return None
    try:
        users = sorted(
            (user.name, user.password.reveal(), sorted(user.roles)) for user in settings.users
        )
        files = [(name, _contents(module)) for name, module in _modules(settings)]
    except (ConfigurationError, OSError):
        return None
    text = json.dumps([users, files]).encode()
    digest = hashlib.pbkdf2_hmac("sha256", text, pair_id.encode(), _ITERATIONS, _DIGEST_BYTES)
    return str(uuid.UUID(bytes=digest))


def _modules(settings: Settings) -> list[tuple[str, Any]]:
    found = ((name, getattr(settings, name)) for name in _MODULES)
    return [(name, module) for name, module in found if module is not None]


def _contents(module: Any) -> list[object]:
    if isinstance(module, PropertiesLoginModule):
        roles = read_properties(module.role).values.items()
        return [
            sorted(read_properties(module.user).values.items()),
            sorted((role, sorted(read_names(names))) for role, names in roles),
        ]
    return [_hash_of(path) for path in module.files]


def _hash_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
