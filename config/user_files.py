"""Artemis' files of users and roles: ``artemis-users.properties``, ``artemis-roles.properties``.

The one has ``USER = PASSWORD``, the other ``ROLE = USER,USER``; names in the second that the first
does not have are nobody. See ``orthia.config.passwords`` for how passwords are written.
"""

import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orthia.config.errors import ConfigurationError
from orthia.config.file_states import refuse_pipe
from orthia.config.passwords import read_stored
from orthia.config.properties import PropertiesFile, decode_properties
from orthia.config.security_settings import PropertiesLoginModule, User
from orthia.config.values import read_names

MOST_BYTES: Final = 16 * 1024 * 1024
"""Of a file: some 100,000 users."""
_SCRAM: Final = ("|SHA256", "|SHA512")
"""What names end with that Artemis keeps for SASL SCRAM, which STOMP does not have."""


def read_users(module: PropertiesLoginModule) -> tuple[User, ...]:
    """Return the users in the files of ``module``; reads them, so not on the event loop.

    Raises ConfigurationError with each problem on a line ``FILE:LINE: ...``.
    """
    users = read_properties(module.user)
    roles = read_properties(module.role)
    held: dict[str, set[str]] = {}
    for role, names in roles.values.items():
        for name in read_names(names):
            held.setdefault(name, set()).add(role)
    found: list[User] = []
    problems: list[str] = []
    for name, stored in users.values.items():
        if name.endswith(_SCRAM):
            continue
        try:
            found.append(User(name, read_stored(stored), frozenset(held.get(name, ()))))
        except ConfigurationError as error:
            problems.append(f"{module.user}:{users.line_of(name)}: {name}: {error}")
    if problems:
        raise ConfigurationError("\n".join(problems))
    return tuple(found)


def read_operators(path: Path) -> tuple[User, ...]:
    """Return the users in a file that has no roles beside it; raises ConfigurationError."""
    found = read_properties(path)
    try:
        return tuple(
            User(name, read_stored(stored), frozenset()) for name, stored in found.values.items()
        )
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None


def write_operators(path: Path, passwords: Mapping[str, str]) -> None:
    """Make such a file anew, for its owner alone, of stored ``passwords`` by user.

    Raises ConfigurationError.
    """
    file = PropertiesFile("")
    for name, stored in passwords.items():
        file.set(name, stored)
    try:
        _write(path, file.render())
        path.chmod(stat.S_IRUSR | stat.S_IWUSR)
    except OSError as error:
        raise ConfigurationError(
            f"{error.filename or path}: cannot be written: {error.strerror or error}"
        ) from None


def read_properties(path: Path) -> PropertiesFile:
    """Return what the file at ``path`` has; raises ConfigurationError if it cannot be read."""
    refuse_pipe(path)
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
        raise ConfigurationError(f"{path}:{error}") from None


@dataclass
class UserFilesEdit:
    """Both files, as ``edit`` lets them be changed."""

    users: PropertiesFile
    roles: PropertiesFile

    def set_roles(self, name: str, wanted: frozenset[str]) -> None:
        """Give ``name`` these roles and no others."""
        for role in wanted | self.roles.values.keys():
            held = read_names(self.roles.values.get(role, ""))
            if (name in held) == (role in wanted):
                continue
            left = held | {name} if role in wanted else held - {name}
            if left:
                self.roles.set(role, ",".join(sorted(left)))
            else:
                self.roles.remove(role)


@contextmanager
def edit(module: PropertiesLoginModule, *, users_first: bool = False) -> Iterator[UserFilesEdit]:
    """Give both files to be changed, and write what changed; a file that is not there is made.

    One process at a time, and each file appears whole; ``users_first`` says in which order. Raises
    ConfigurationError if a file cannot be read or written.
    """
    try:
        with _locked(module.user.parent):
            users, roles = _to_edit(module.user), _to_edit(module.role)
            before = users.render(), roles.render()
            yield UserFilesEdit(users, roles)
            writes = [
                (module.role, roles.render(), before[1]),
                (module.user, users.render(), before[0]),
            ]
            for path, text, was in reversed(writes) if users_first else writes:
                if text != was or not path.exists():
                    _write(path, text)
    except OSError as error:
        raise ConfigurationError(
            f"{error.filename or module.user}: cannot be written: {error.strerror or error}"
        ) from None


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _to_edit(path: Path) -> PropertiesFile:
    return read_properties(path) if path.exists() else PropertiesFile("")


def _write(path: Path, text: str) -> None:
    """Replace the file atomically with ``text``; keep owner and rights, a new file is private."""
    path = path.resolve()  # where a link leads: the link stays
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            with suppress(FileNotFoundError):
                found = path.stat()
                os.fchmod(descriptor, stat.S_IMODE(found.st_mode))
                if (found.st_uid, found.st_gid) != (os.geteuid(), os.getegid()):
                    os.fchown(descriptor, found.st_uid, found.st_gid)
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
