"""Database URLs: Artemis' JDBC URLs and SQLAlchemy's, read into one form."""

import difflib
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, unquote_plus

from orthia.config.dialects import Dialect
from orthia.config.errors import ConfigurationError
from orthia.config.jdbc import translate
from orthia.config.secrets import EMPTY, HIDDEN, is_secret
from orthia.config.tls import check_postgresql_tls, mysql_tls, tls_warnings

if TYPE_CHECKING:
    # Loaded where a URL is read: what only offers the option of one, as every --help, need not.
    from sqlalchemy import URL

__all__ = ["DatabaseUrl", "Dialect"]

_DRIVERS: Final = {
    Dialect.POSTGRESQL: "postgresql+psycopg2",
    Dialect.MYSQL: "mysql+pymysql",
    Dialect.SQLITE: "sqlite",
}
_SCHEMES: Final = {
    "postgresql": Dialect.POSTGRESQL,
    "postgresql+psycopg2": Dialect.POSTGRESQL,
    "mysql": Dialect.MYSQL,
    "mysql+pymysql": Dialect.MYSQL,
    "mariadb": Dialect.MYSQL,
    "mariadb+pymysql": Dialect.MYSQL,
    "sqlite": Dialect.SQLITE,
    "sqlite+pysqlite": Dialect.SQLITE,
}
_DEFAULT_PORTS: Final = {Dialect.POSTGRESQL: 5432, Dialect.MYSQL: 3306}
_MYSQL_MODES: Final = frozenset(
    {"aurora", "failover", "load-balance-read", "loadbalance", "replication", "sequential"}
)
"""What may stand between ``jdbc:mysql:``, or ``jdbc:mariadb:``, and the hosts."""
_EXPECTED: Final = (
    "expected jdbc:postgresql://HOST:5432/DATABASE, jdbc:mysql://HOST:3306/DATABASE,"
    " jdbc:mariadb://HOST:3306/DATABASE, jdbc:sqlite:PATH or a SQLAlchemy URL of one of these"
)


@dataclass(frozen=True)
class DatabaseUrl:
    """Where the database is, and how to reach it. ``str`` and ``repr`` hide every password."""

    dialect: Dialect
    sqlalchemy_url: "URL" = field(repr=False)
    ignored_properties: tuple[str, ...] = ()
    """JDBC properties that were given and have no meaning for the Python driver."""

    @classmethod
    def parse(cls, text: str) -> "DatabaseUrl":
        """Read a JDBC or SQLAlchemy URL; raises ConfigurationError, never quoting a password."""
        url = text.strip()
        if url.lower().startswith("jdbc:"):
            return _parse_jdbc(url[len("jdbc:") :])
        return _parse_sqlalchemy(url)

    @property
    def display(self) -> str:
        """The URL with its passwords hidden."""
        hidden = {key: HIDDEN for key in self.sqlalchemy_url.query if is_secret(key)}
        shown = self.sqlalchemy_url.update_query_dict(hidden)
        # SQLAlchemy percent-encodes the stars in a query.
        return shown.render_as_string(hide_password=True).replace("%2A" * 4, HIDDEN)

    @property
    def warnings(self) -> list[str]:
        """Warnings about it, to be logged at every start."""
        if self.dialect is not Dialect.MYSQL:
            return []
        return tls_warnings(mysql_tls(self.sqlalchemy_url.query))

    def __str__(self) -> str:
        return self.display

    def __repr__(self) -> str:
        return f"DatabaseUrl({self.display!r})"

    @property
    def sqlite_path(self) -> Path | None:
        """The database file of SQLite; None for the others."""
        if self.dialect is not Dialect.SQLITE or self.sqlalchemy_url.database is None:
            return None
        return Path(self.sqlalchemy_url.database)

    def relative_to(self, directory: Path) -> "DatabaseUrl":
        """Return this URL with a relative SQLite path made absolute from ``directory``."""
        path = self.sqlite_path
        if path is None or path.is_absolute():
            return self
        located = self.sqlalchemy_url.set(database=str(directory / path))
        return DatabaseUrl(self.dialect, located, self.ignored_properties)


def _parse_sqlalchemy(text: str) -> DatabaseUrl:
    scheme, colon, rest = text.partition(":")
    dialect = _SCHEMES.get(scheme.lower())
    if dialect is None:
        # Without the slashes it may be a user, or a password.
        raise _unknown_database(scheme if colon and rest.startswith("//") else "")
    if dialect is not Dialect.SQLITE:
        if rest.partition("?")[0].removeprefix("//").partition("/")[0].count("@") > 1:
            raise _stray_at()
        _refuse_at_in_path(rest)
    import sqlalchemy
    from sqlalchemy.exc import ArgumentError

    try:
        url = sqlalchemy.make_url(text)
    except (ArgumentError, ValueError):
        # "from None": the causes quote parts of the URL, the password among them.
        raise ConfigurationError(f"the URL cannot be read; {_EXPECTED}") from None
    _refuse_empty_password(url.password, rest.partition("?")[2])
    url = url.set(drivername=_DRIVERS[dialect])
    given = url.query
    password = given.get("password")
    if isinstance(password, str):
        url = url.difference_update_query(["password"]).set(password=password)
    if dialect is not Dialect.MYSQL:
        return DatabaseUrl(dialect, _checked(dialect, url))
    properties = {
        # One that is given twice is a tuple; the last counts, as in a JDBC URL.
        name: value if isinstance(value, str) else value[-1]
        for name, value in given.items()
    }
    translated = translate(dialect, properties)
    url = url.set(query=translated.query, username=properties.get("user", url.username))
    return DatabaseUrl(dialect, _checked(dialect, url), translated.ignored)


def _refuse_at_in_path(rest: str) -> None:
    """Refuse a password with a slash in it: what follows would be shown as the database."""
    authority, _, path = rest.partition("?")[0].removeprefix("//").partition("/")
    if "@" in path and "@" not in authority:
        raise _stray_at()


def _refuse_empty_password(before_host: str | None, query: str) -> None:
    """Refuse ``user:@host`` and ``password=``: the password was to come from somewhere."""
    names = [pair.rstrip("=") for pair in query.split("&") if not pair.partition("=")[2]]
    if (before_host is not None and not before_host.strip()) or "password" in names:
        raise ConfigurationError(f"in the URL {EMPTY}")


def _stray_at() -> ConfigurationError:
    return ConfigurationError(
        "the URL has an '@' too many, or one in a strange place; in a user or a password write @ as"
        " %40, / as %2F, ? as %3F, # as %23, % as %25, or give the password in ORTHIA_JDBC_PASSWORD"
    )


def _parse_jdbc(text: str) -> DatabaseUrl:
    scheme, _, rest = text.partition(":")
    match scheme.lower():
        case "postgresql":
            return _parse_jdbc_server(Dialect.POSTGRESQL, rest)
        case "mysql" | "mariadb":
            return _parse_jdbc_server(Dialect.MYSQL, rest)
        case "sqlite":
            return _parse_jdbc_sqlite(rest)
        case "derby":
            raise ConfigurationError(
                "Derby is a Java library; the embedded database here is SQLite:"
                " write jdbc:sqlite:PATH instead of jdbc:derby"
            )
        case _:
            # What a colon follows; without one the whole may be anything.
            raise _unknown_database(scheme if rest else "")


def _unknown_database(scheme: str) -> ConfigurationError:
    name = scheme.lower()
    if re.fullmatch(r"[a-z][a-z0-9+.-]{0,30}", name) is None:
        return ConfigurationError(f"the URL names no database Orthia can use; {_EXPECTED}")
    database, plus, _ = name.partition("+")
    if plus and database in _SCHEMES:
        return ConfigurationError(
            f"{name!r} names a driver that is not Orthia's own; write {database}://"
        )
    meant = difflib.get_close_matches(database, sorted(_SCHEMES), n=1)
    hint = f" (did you mean {meant[0]!r}?)" if meant else ""
    return ConfigurationError(f"{name!r} is not a database Orthia can use{hint}; {_EXPECTED}")


def _parse_jdbc_server(dialect: Dialect, rest: str) -> DatabaseUrl:
    body, _, query = rest.partition("?")
    _refuse_several_servers(body)
    _refuse_at_in_path(body)
    if not body.startswith("//"):
        raise ConfigurationError(f"the URL names no host; {_EXPECTED}")
    authority, _, database = body[2:].partition("/")
    credentials, at, hosts_text = authority.rpartition("@")
    user, colon, password = credentials.partition(":") if at else ("", "", "")
    _refuse_empty_password(password if colon else None, query)
    hosts = [_host_and_port(dialect, host) for host in hosts_text.split(",")]
    properties = _jdbc_properties(query)
    translated = translate(dialect, properties)
    url_query: dict[str, str | tuple[str, ...]] = dict(translated.query)
    if len(hosts) > 1:
        if dialect is not Dialect.POSTGRESQL:
            raise ConfigurationError(
                "the URL names several hosts, which the Python driver of MySQL cannot try in turn;"
                " expected one host"
            )
        url_query["host"] = tuple(f"{host}:{port}" for host, port in hosts)
    from sqlalchemy import URL

    url = URL.create(
        _DRIVERS[dialect],
        username=properties.get("user") or unquote(user) or None,
        password=properties.get("password") or unquote(password) or None,
        host=hosts[0][0] if len(hosts) == 1 else None,
        port=hosts[0][1] if len(hosts) == 1 else None,
        database=unquote(database) or None,
        query=url_query,
    )
    return DatabaseUrl(dialect, _checked(dialect, url), translated.ignored)


def _refuse_several_servers(body: str) -> None:
    """Refuse ``jdbc:mysql:replication://`` and its like, which spread work over several servers."""
    mode = body.partition(":")[0].lower()
    if mode in _MYSQL_MODES and body[len(mode) :].startswith("://"):
        raise ConfigurationError(
            f"jdbc:mysql:{mode}:// chooses among several servers, which the Python driver cannot,"
            " and a broker may write to the primary only; write the primary's URL:"
            " jdbc:mysql://HOST:3306/DATABASE"
        )


def _parse_jdbc_sqlite(rest: str) -> DatabaseUrl:
    path, _, query = rest.partition("?")
    path = path.removeprefix("file:")
    translated = translate(Dialect.SQLITE, _jdbc_properties(query))
    from sqlalchemy import URL

    url = URL.create(_DRIVERS[Dialect.SQLITE], database=path or None)
    return DatabaseUrl(Dialect.SQLITE, _checked(Dialect.SQLITE, url), translated.ignored)


def _host_and_port(dialect: Dialect, text: str) -> tuple[str, int]:
    matched = re.fullmatch(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[^:\[\]]*)(:(?P<port>[0-9]{1,9}))?", text)
    if matched is None:
        raise ConfigurationError(f"the host or port of the URL cannot be read; {_EXPECTED}")
    port = int(matched["port"] or _DEFAULT_PORTS[dialect])
    if not 1 <= port <= 65_535:
        raise ConfigurationError(f"port {port} of the URL does not exist; expected 1 to 65535")
    return matched["host"].strip("[]") or "localhost", port


def _jdbc_properties(query: str) -> dict[str, str]:
    pairs = (part.partition("=") for part in query.split("&") if part)
    return {unquote_plus(key): unquote_plus(value) for key, _, value in pairs}


def _checked(dialect: Dialect, url: "URL") -> "URL":
    """Refuse a URL that reads well and cannot work."""
    if dialect is Dialect.SQLITE:
        if url.database in {None, "", ":memory:"}:
            raise ConfigurationError(
                "the SQLite URL names no file; a live node and its backup share one database,"
                " so expected jdbc:sqlite:PATH or sqlite:///PATH with the path of a file"
            )
        return url
    if not url.database:
        raise ConfigurationError(f"the URL names no database; {_EXPECTED}")
    if url.port is not None and not 1 <= url.port <= 65_535:
        raise ConfigurationError(f"port {url.port} of the URL does not exist; expected 1 to 65535")
    if dialect is Dialect.POSTGRESQL:
        check_postgresql_tls(url.query)
    if dialect is Dialect.MYSQL:
        mysql_tls(url.query)  # raises what is wrong with it
    if dialect is Dialect.MYSQL and "charset" not in url.query:
        # MySQL's own default may be latin1, which loses what clients send.
        return url.update_query_dict({"charset": "utf8mb4"})
    return url
