"""The reference to the store of a data source, which never contains the password.

Options of a data source end up in Spark's plans, logs and web pages, and the reader is pickled to
the executors. So neither has a password: a worker takes it from its environment, or from the
``broker.xml`` of the option ``config``, when it connects.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from orthia import config
from orthia.config.errors import ConfigurationError
from orthia.config.parts import Part
from orthia.config.secrets import HIDDEN, codec_key, read_secret
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.config.urls import DatabaseUrl
from orthia.pipeline.errors import BadOption

PASSWORD_VARIABLE: Final = "ORTHIA_JDBC_PASSWORD"  # noqa: S105 - the name of a variable
"""The variable with the password, unless the option ``passwordVariable`` names another one."""

_TABLES: Final = {
    "messagetable": "message_table_name",
    "bindingstable": "bindings_table_name",
    "nodemanagertable": "node_manager_store_table_name",
    "failoverlogtable": "failover_log_table_name",
}
"""Options that name tables, by the settings they stand for."""

OPTIONS: Final = frozenset({"config", "url", "user", "passwordvariable", *_TABLES})
"""Options that locate the store, in lower case, as Spark passes options."""


@dataclass(frozen=True)
class StoreReference:
    """A store, by URL or by the ``broker.xml`` that names it; nothing in it is secret."""

    url: str | None = None
    user: str | None = None
    config: str | None = None
    password_variable: str = PASSWORD_VARIABLE
    tables: Mapping[str, str] = field(default_factory=dict)
    """Table names that differ from those of the configuration, by the names of settings."""

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> "StoreReference":
        """Read a data source's options; raises BadOption, which never quotes a password."""
        url, config_file = options.get("url"), options.get("config")
        if (url is None) == (config_file is None):
            raise BadOption("say where the store is: the option url or the option config, not both")
        if url is not None:
            _refuse_passwords(_parsed(url))
        return cls(
            url=url,
            user=options.get("user"),
            config=config_file,
            password_variable=options.get("passwordvariable", PASSWORD_VARIABLE),
            tables={name: options[key] for key, name in _TABLES.items() if key in options},
        )

    @classmethod
    def of(
        cls, settings: DatabaseStoreSettings, password_variable: str = PASSWORD_VARIABLE
    ) -> tuple["StoreReference", str | None]:
        """Return the reference to a store, and its password, which the workers need.

        Raises BadOption if the URL has a secret that is not its password.
        """
        url = settings.jdbc_connection_url.sqlalchemy_url
        password = settings.jdbc_password.reveal() if settings.jdbc_password else url.password
        # URL.set() takes None for "leave it".
        bare = url._replace(password=None)
        if settings.jdbc_user is not None:
            bare = bare.set(username=settings.jdbc_user)
        text = bare.render_as_string(hide_password=False)
        _refuse_passwords(_parsed(text))
        defaults = DatabaseStoreSettings(settings.jdbc_connection_url)
        tables = {
            name: getattr(settings, name)
            for name in _TABLES.values()
            if getattr(settings, name) != getattr(defaults, name)
        }
        reference = cls(url=text, password_variable=password_variable, tables=tables)
        return reference, None if password is None else str(password)

    def to_options(self) -> dict[str, str]:
        """Return the options that ``from_options`` reads."""
        return dict(self._options())

    def _options(self) -> Iterator[tuple[str, str]]:
        for key, value in (("url", self.url), ("user", self.user), ("config", self.config)):
            if value is not None:
                yield key, value
        yield "passwordVariable", self.password_variable
        for key, name in _TABLES.items():
            if name in self.tables:
                yield key, self.tables[name]

    def settings(
        self, environment: Mapping[str, str] = os.environ, *, history: bool = False
    ) -> DatabaseStoreSettings:
        """Return the settings to connect with, password included; raises ConfigurationError.

        With ``history`` the table of messages is that of the history, to be read as the other is.
        """
        password = environment.get(self.password_variable)
        if self.config is not None:
            found = config.load(Path(self.config), part=Part.STORE).database_store
        else:
            found = DatabaseStoreSettings(_parsed(self.url or "").relative_to(Path.cwd()))
        if self.user is not None:
            found = replace(found, jdbc_user=self.user)
        if password and found.jdbc_password is None:
            found = replace(found, jdbc_password=read_secret(password, codec_key({}, environment)))
        found = replace(found, **self.tables)  # type: ignore[arg-type]  # fields by their names
        if history:
            found = replace(found, message_table_name=found.message_history_table_name)
        return found


def _parsed(url: str) -> DatabaseUrl:
    try:
        return DatabaseUrl.parse(url)
    except ConfigurationError as error:
        raise BadOption(f"option url: {error}") from None


def _refuse_passwords(url: DatabaseUrl) -> None:
    if url.sqlalchemy_url.password is not None or HIDDEN in url.display:
        raise BadOption(
            "the option url has a password in it, and Spark shows options in plans and logs: set"
            f" the environment variable {PASSWORD_VARIABLE} before the session is registered, or"
            " use the option config"
        )


@dataclass(frozen=True)
class Endpoint:
    """A store that a job copies from or writes to, and the workers' reference to it."""

    settings: DatabaseStoreSettings
    reference: StoreReference
