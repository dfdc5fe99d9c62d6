"""Options made from the settings' own fields, so that the two cannot drift apart.

Every element of ``database-store`` and of the HA policy is an option of its element's name, as
``--jdbc-lock-renew-period 500`` or ``--no-allow-failback``.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, replace
from functools import wraps
from pathlib import Path
from typing import Any, Final, TypeVar, get_type_hints

import click

from orthia.broker.cli.privacy import seen_on_command_line, warn_of_command_line
from orthia.config.errors import ConfigurationError
from orthia.config.lockers import lock_database
from orthia.config.parts import Part
from orthia.config.secrets import Secret, codec_key, read_secret
from orthia.config.settings import HaPolicy, Role, Settings
from orthia.config.store_settings import (
    DatabaseStoreSettings,
    FileStoreSettings,
    InDatabaseLockerSettings,
)
from orthia.config.urls import DatabaseUrl
from orthia.config.violations import Violation

DATABASE_FILE: Final = "orthia.db"
"""The embedded store in a data directory."""

PASSWORD_VARIABLE: Final = "ORTHIA_JDBC_PASSWORD"  # noqa: S105 - the name of a variable
TARGET_PASSWORD_VARIABLE: Final = f"{PASSWORD_VARIABLE}_TARGET"
"""For the database that something is copied to."""
ASK_PASSWORD: Final = f"read -rs {PASSWORD_VARIABLE} && export {PASSWORD_VARIABLE}"
"""What a person types in a shell to give a password that nobody sees."""
_Command = TypeVar("_Command", bound=Callable[..., Any])


@dataclass(frozen=True)
class StoreOptions:
    """Where the store is, as the command line says it."""

    config_file: Path | None
    system_properties: Mapping[str, str]
    url: DatabaseUrl | None
    overrides: Mapping[str, object]
    """Fields of DatabaseStoreSettings that were given as options."""

    @property
    def is_given(self) -> bool:
        """Whether the command line names a store at all."""
        return self.config_file is not None or self.url is not None

    def load(
        self, part: Part = Part.WHOLE, reads: Callable[[Path], None] = lambda _: None
    ) -> Settings | None:
        """Return the settings of ``--config``, or of a ``part`` of it; None without the option.

        ``reads`` gets the path of each file before it is opened. Raises ConfigurationError.
        """
        if self.config_file is None:
            return None
        from orthia.config.loader import load  # loads the parser of XML

        return load(
            self.config_file, system_properties=self.system_properties, part=part, reads=reads
        )

    def apply(
        self, base: DatabaseStoreSettings | None, default_url: DatabaseUrl | None = None
    ) -> DatabaseStoreSettings:
        """Return ``base`` with what the options say instead.

        Without ``base`` the store is at ``--url``, else at ``default_url``; raises click.UsageError
        when there is none.
        """
        url = self.url or (base.jdbc_connection_url if base is not None else default_url)
        if url is None:
            raise click.UsageError("Say where the database is: --config FILE or --url URL.")
        given = dict(self.overrides)
        password = self._password()
        if password is not None:
            given["jdbc_password"] = password
        if base is None or self.url is not None:
            # Another database than the file's: its user and password are not for this one.
            start = DatabaseStoreSettings(url) if base is None else _elsewhere(base, url)
            return replace(start, **given)  # type: ignore[arg-type]  # fields by their names
        return replace(base, **given)  # type: ignore[arg-type]  # fields by their names

    def apply_to(self, settings: Settings) -> DatabaseStoreSettings | FileStoreSettings:
        """Return the store of ``settings`` with what the options say instead."""
        if isinstance(settings.store, DatabaseStoreSettings):
            return self.apply(settings.store)
        if self.url is not None:
            return self.apply(None)
        others = self.overrides.keys() - {"jdbc_password"}
        if others:
            raise click.UsageError(
                f"{self.config_file} has no database-store, and --"
                f"{min(others).replace('_', '-')} is an option of one; give --url too, or"
                " change the journal-* elements of the file."
            )
        return with_password(settings, self._password()).store

    def resolve(self, *, instead: str = "", of_locks: bool = False) -> DatabaseStoreSettings:
        """Return the database of ``--config`` and ``--url``.

        With ``of_locks`` that may be one that has only the locks, and the failover log. Without a
        database raises click.UsageError, or ConfigurationError that ends with ``instead``: where
        else to look.
        """
        settings = self.load(Part.STORE)
        if settings is None or self.url is not None:
            base = settings.store if settings is not None else None
            return self.apply(base if isinstance(base, DatabaseStoreSettings) else None)
        locks = lock_database(settings.store) if of_locks and settings.persistence_enabled else None
        if locks is not None:
            return self.apply(locks)
        try:
            return self.apply(settings.database_store)
        except ConfigurationError as error:
            raise ConfigurationError(f"{error}{instead and '; '}{instead}") from None

    def _password(self) -> Secret | None:
        given = self.overrides.get("jdbc_password")
        return None if given is None else _secret(str(given), self.system_properties)


def _secret(text: str, properties: Mapping[str, str]) -> Secret:
    return read_secret(text, codec_key(properties, os.environ))


def load_settings(
    config_file: Path,
    properties: Mapping[str, str],
    further: Callable[[Settings], Iterable[Violation]] = lambda _: (),
    reads: Callable[[Path], None] = lambda _: None,
) -> Settings:
    """Return the settings of ``config_file``, with the environment's password for its database.

    ``further`` are rules that only a node has to keep; ``reads`` gets the path of each file before
    it is opened. Raises ConfigurationError.
    """
    from orthia.config.loader import load  # loads the parser of XML

    settings = load(config_file, system_properties=properties, further=further, reads=reads)
    given = os.environ.get(PASSWORD_VARIABLE)
    return with_password(settings, _secret(given, properties) if given else None)


def with_password(settings: Settings, password: Secret | None) -> Settings:
    """Return ``settings`` with ``password`` for the database of the store, or of its locks.

    Where there is no database nothing changes: one environment serves all nodes of a host.
    """
    store = settings.store
    if password is None:
        return settings
    if isinstance(store, DatabaseStoreSettings):
        return replace(settings, store=replace(store, jdbc_password=password))
    locker = store.locker
    if isinstance(locker, InDatabaseLockerSettings):
        locker = replace(locker, jdbc_password=password)
    return replace(settings, store=replace(store, locker=locker))


def split_password(url: DatabaseUrl) -> tuple[str, str | None]:
    """Return the URL as text without its password, and the password."""
    # URL.set() takes None for "leave it".
    bare = url.sqlalchemy_url._replace(password=None).render_as_string(hide_password=False)
    return bare, url.sqlalchemy_url.password


def _elsewhere(base: DatabaseStoreSettings, url: DatabaseUrl) -> DatabaseStoreSettings:
    return replace(base, jdbc_connection_url=url, jdbc_user=None, jdbc_password=None)


class _Url(click.ParamType[DatabaseUrl]):
    name = "url"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> DatabaseUrl:
        if isinstance(value, DatabaseUrl):
            return value
        try:
            url = DatabaseUrl.parse(str(value)).relative_to(Path.cwd())
        except ConfigurationError as error:
            is_node = str(value).startswith(("tcp://", "http://", "https://"))
            instead = "; a node is named by --management http://HOST:PORT" if is_node else ""
            self.fail(f"{error}{instead}", param, ctx)
        if url.sqlalchemy_url.password is not None:
            name = param.opts[0] if param is not None else "the URL"
            variable = TARGET_PASSWORD_VARIABLE if name == "--to-url" else PASSWORD_VARIABLE
            warn_of_command_line(name, f"leave it out of the URL and set {variable}")
        return url


class _Pair(click.ParamType[tuple[str, str]]):
    name = "key=value"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        key, equals, text = str(value).partition("=")
        if not key or not equals:
            self.fail(f"{value!r} is not KEY=VALUE.", param, ctx)
        return key, text


URL: Final = _Url()
PAIR: Final = _Pair()

properties_option: Final = click.option(
    "-D", "properties", type=PAIR, multiple=True, help="Value of a ${key} in FILE; repeatable."
)


def _config_option(*, required: bool = False) -> Callable[[Any], Any]:
    return click.option(
        "--config",
        "config_file",
        required=required,
        type=click.Path(path_type=Path, dir_okay=False),
        help="The broker.xml of a node.",
    )


def store_options(command: _Command) -> _Command:
    """Give ``command`` the options of a store; it gets them as ``store: StoreOptions``."""

    @wraps(command)
    def with_store(
        *args: Any,
        config_file: Path | None,
        properties: tuple[tuple[str, str], ...],
        url: DatabaseUrl | None,
        **kwargs: Any,
    ) -> Any:
        given = {name: kwargs.pop(name) for name in _STORE_FIELDS}
        overrides = {name: value for name, value in given.items() if value not in (None, ())}
        if "data_source_properties" in overrides:
            overrides["data_source_properties"] = dict(overrides["data_source_properties"])
        store = StoreOptions(config_file, dict(properties), url, overrides)
        return command(*args, store=store, **kwargs)

    decorated: Any = with_store
    for setting in reversed(_STORE_FIELDS.values()):
        decorated = _store_option(setting)(decorated)
    decorated = click.option("--url", type=URL, help="JDBC or SQLAlchemy URL of the database.")(
        decorated
    )
    result: _Command = _config_option()(properties_option(decorated))
    return result


def settings_options(command: _Command) -> _Command:
    """Give ``command`` --config, which it needs, and -D; it gets ``settings: Settings``."""

    @wraps(command)
    def with_settings(
        *args: Any, config_file: Path, properties: tuple[tuple[str, str], ...], **kwargs: Any
    ) -> Any:
        settings = load_settings(config_file, dict(properties))
        return command(*args, settings=settings, **kwargs)

    result: _Command = _config_option(required=True)(properties_option(with_settings))
    return result


def policy_options(command: _Command) -> _Command:
    """Give ``command`` the options of the HA policy, as ``policy: Mapping[str, bool]``."""

    @wraps(command)
    def with_policy(*args: Any, **kwargs: Any) -> Any:
        given = {name: kwargs.pop(name) for name in _POLICY_FIELDS}
        policy = {name: value for name, value in given.items() if value is not None}
        return command(*args, policy=policy, **kwargs)

    decorated: Any = with_policy
    for name, setting in reversed(_POLICY_FIELDS.items()):
        decorated = _switch(name, setting)(decorated)
    result: _Command = decorated
    return result


def _switch(name: str, setting: "Field[Any]") -> Callable[[Any], Any]:
    element = name.replace("_", "-")
    return click.option(
        f"--{element}/--no-{element}",
        name,
        default=None,
        help=f"<{element}>; default {str(setting.default).lower()}.",
    )


def apply_policy(base: HaPolicy, role: Role, given: Mapping[str, bool]) -> HaPolicy:
    """Return ``base`` for ``role`` with what the options say instead."""
    return replace(base, role=role, **given)


_HINTS: Final = get_type_hints(DatabaseStoreSettings)
_STORE_FIELDS: Final = {
    one.name: one
    for one in fields(DatabaseStoreSettings)
    # --url is the first; of the others, which have attributes, only broker.xml tells.
    if one.name not in ("jdbc_connection_url", "locker", "journal_retention")
}
_POLICY_FIELDS: Final = {
    one.name: one for one in fields(HaPolicy) if get_type_hints(HaPolicy)[one.name] is bool
}


def _store_option(setting: "Field[Any]") -> Callable[[Any], Any]:
    name, kind = setting.name, _HINTS[setting.name]
    element = name.replace("_", "-")
    if name == "data_source_properties":
        return click.option(
            "--data-source-property",
            name,
            type=PAIR,
            multiple=True,
            help="Property of the connection pool; repeatable.",
        )
    if kind is bool:
        return _switch(name, setting)
    if kind == Secret | None:
        return click.option(
            f"--{element}",
            name,
            metavar="TEXT",
            envvar=PASSWORD_VARIABLE,
            callback=seen_on_command_line(f"set {PASSWORD_VARIABLE} instead"),
            help=f"<{element}>, plain or ENC(...). Better in the environment, as"
            f" {PASSWORD_VARIABLE}: other users see command lines.",
        )
    default = "" if setting.default in (None, MISSING) else f"; default {setting.default}"
    return click.option(
        f"--{element}",
        name,
        type=int if kind is int else str,
        help=f"<{element}> of broker.xml{default}.",
    )
