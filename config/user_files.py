"""Artemis' files of users and roles: ``artemis-users.properties``, ``artemis-roles.properties``.

The one has ``USER = PASSWORD``, the other ``ROLE = USER,USER``; names in the second that the first
does not have are nobody. See ``orthia.config.passwords`` for how passwords are written.
"""

from pathlib import Path

from orthia.config.errors import ConfigurationError
from orthia.config.passwords import read_stored
from orthia.config.properties import PropertiesFile, decode_properties
from orthia.config.settings import PropertiesLoginModule, User

MOST_BYTES = 16 * 1024 * 1024
"""Of a file: some 100,000 users."""


def read_users(module: PropertiesLoginModule) -> tuple[User, ...]:
    """Return the users in the files of ``module``; reads them, so not on the event loop.

    Raises ConfigurationError with each problem on a line ``FILE:LINE: ...``.
    """
    users = read_properties(module.user)
    roles = read_properties(module.role)
    held: dict[str, set[str]] = {}
    for role, names in roles.values.items():
        for name in names.split(","):
            held.setdefault(name.strip(), set()).add(role)
    found: list[User] = []
    problems: list[str] = []
    for name, stored in users.values.items():
        try:
            found.append(User(name, read_stored(stored), frozenset(held.get(name, ()))))
        except ConfigurationError as error:
            problems.append(f"{module.user}:{users.line_of(name)}: {name}: {error}")
    if problems:
        raise ConfigurationError("\n".join(problems))
    return tuple(found)


def read_properties(path: Path) -> PropertiesFile:
    """Return what the file at ``path`` has; raises ConfigurationError if it cannot be read."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(
            f"{path}: cannot be read: {error.strerror or error}; `orthia user add` makes it"
        ) from None
    if len(data) > MOST_BYTES:
        raise ConfigurationError(f"{path}: has more than {MOST_BYTES} bytes")
    try:
        return PropertiesFile(decode_properties(data))
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None
