"""The properties of JDBC URLs, and how each is handled.

A property is translated where the Python driver has its like, ignored (and named in a warning)
where it only tunes the Java driver, and refused where leaving it out would change what the
operator asked for, TLS above all, or where nobody knows it.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType
from typing import Final

from orthia.config.dialects import Dialect
from orthia.config.errors import ConfigurationError
from orthia.config.secrets import is_secret
from orthia.config.tls import MYSQL_TLS_PARAMETERS, parameters_of_ssl_mode


@dataclass(frozen=True)
class Translated:
    """What a JDBC URL's properties come to."""

    query: Mapping[str, str]
    """The query of the SQLAlchemy URL."""
    ignored: tuple[str, ...]
    """Names of the properties that have no meaning for the Python driver."""


def translate(dialect: Dialect, properties: Mapping[str, str]) -> Translated:
    """Sort JDBC properties into the Python driver's, the ignored and (an error) the unknown."""
    query: dict[str, str] = {}
    ignored: list[str] = []
    translators = TRANSLATED[dialect]
    for number, (name, value) in enumerate(properties.items(), 1):
        if name in {"user", "password"}:
            continue
        if name in translators:
            for key, text in translators[name](value).items():
                # Two properties may come to options of the server; those add up.
                query[key] = f"{query[key]} {text}" if key in query else text
        elif name in IGNORED[dialect]:
            ignored.append(name)
        elif dialect is Dialect.MYSQL and name in _JAVA_KEY_STORES:
            raise ConfigurationError(
                f"{name} of the URL is for a Java key store, which cannot be read here; export it"
                " to PEM files, and name that of the authority by serverSslCert=FILE, those of a"
                " client's certificate by ssl_cert=FILE and ssl_key=FILE"
            )
        else:
            known = [*translators, *IGNORED[dialect], "user", "password"]
            near = get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            what = repr(name) if _may_be_shown(name, properties) else f"property {number}"
            raise ConfigurationError(f"{what} of the URL is not known{hint}")
    if dialect is Dialect.MYSQL:
        mode = _mysql_ssl_mode(properties)
        query |= {} if mode is None else parameters_of_ssl_mode(mode)
    return Translated(MappingProxyType(query), tuple(ignored))


def _may_be_shown(name: str, properties: Mapping[str, str]) -> bool:
    """Tell a name from what may be half a password, after an & or before an @ not encoded."""
    before = [*properties][: [*properties].index(name)]
    return (
        re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) is not None
        and properties[name] != ""
        and not any("@" in value for value in properties.values())
        and not any(is_secret(one) for one in before)
    )


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _as(name: str) -> Callable[[str], dict[str, str]]:
    return lambda value: {name: value}


def _nothing(_: str) -> dict[str, str]:
    """Return nothing: the property is read together with others."""
    return {}


def _postgresql_ssl(value: str) -> dict[str, str]:
    # The JDBC driver verifies certificate and host when told ssl=true, so this must too.
    return {"sslmode": "verify-full"} if not value or _is_true("ssl", value) else {}


def _postgresql_schema(value: str) -> dict[str, str]:
    if not re.fullmatch(r"[\w$, ]+", value):
        raise ConfigurationError("currentSchema of the URL must be a list of schema names")
    return {"options": f"-csearch_path={value.replace(' ', '')}"}


def _postgresql_target(value: str) -> dict[str, str]:
    targets = {"any": "any", "primary": "read-write", "master": "read-write"}
    if value not in targets:
        raise ConfigurationError(
            "targetServerType of the URL must be any or primary: a broker writes"
        )
    return {"target_session_attrs": targets[value]}


def _mysql_ssl_mode(properties: Mapping[str, str]) -> str | None:
    """Return the mode that the properties before ``sslMode`` mean, or it; None for none of them.

    ``requireSSL`` and ``verifyServerCertificate`` say how, where ``useSSL`` says whether.
    """
    if "sslMode" in properties:
        return properties["sslMode"]
    given = {name: _is_true(name, properties[name]) for name in _SSL_FLAGS if name in properties}
    if not given.get("useSSL", True):
        return "DISABLED"
    if given.get("trustServerCertificate"):
        return "REQUIRED"
    if given.get("disableSslHostnameVerification"):
        return "VERIFY_CA"
    if given.get("verifyServerCertificate"):
        return "VERIFY_CA"
    if given.get("useSSL") or given.get("requireSSL"):
        # Whoever names the authority wants to be sure of the server, as MariaDB's driver takes it.
        return "REQUIRED" if _AUTHORITY.isdisjoint(properties) else "VERIFY_IDENTITY"
    return "PREFERRED" if given else None


def _is_true(name: str, value: str) -> bool:
    """Return whether a property is true; raises ConfigurationError for what is neither."""
    if value.lower() not in {"true", "false"}:
        raise ConfigurationError(f"{name} of the URL is neither true nor false")
    return value.lower() == "true"


_AUTHORITY: Final = frozenset({"serverSslCert", "ssl_ca", "ssl_capath"})
_SSL_FLAGS: Final = (
    "useSSL",
    "requireSSL",
    "verifyServerCertificate",
    "trustServerCertificate",
    "disableSslHostnameVerification",
)


_PYMYSQL: Final = (
    *("charset", "collation", "unix_socket", "bind_address", "init_command"),
    *("read_default_file", "read_default_group"),
)
"""Parameters of PyMySQL, beside those of TLS, that do what they say here."""

TRANSLATED: Final[Mapping[Dialect, Mapping[str, Callable[[str], dict[str, str]]]]] = {
    Dialect.POSTGRESQL: {
        "ssl": _postgresql_ssl,
        "sslmode": _as("sslmode"),
        "sslcert": _as("sslcert"),
        "sslkey": _as("sslkey"),
        "sslrootcert": _as("sslrootcert"),
        "sslpassword": _as("sslpassword"),
        "channelBinding": _as("channel_binding"),
        "gssEncMode": _as("gssencmode"),
        "currentSchema": _postgresql_schema,
        "options": _as("options"),
        "targetServerType": _postgresql_target,
    },
    Dialect.MYSQL: {
        **dict.fromkeys((*_SSL_FLAGS, "sslMode"), _nothing),
        "serverSslCert": _as("ssl_ca"),
        **{name: _as(name) for name in (*sorted(MYSQL_TLS_PARAMETERS), *_PYMYSQL)},
    },
    Dialect.SQLITE: {},
}
"""JDBC property to its like in the query of a SQLAlchemy URL. PyMySQL's own names are among those
of MySQL, whose URL may be written either way."""

_JAVA_KEY_STORES: Final = _words(
    "trustCertificateKeyStoreUrl trustCertificateKeyStoreType trustCertificateKeyStorePassword"
    " clientCertificateKeyStoreUrl clientCertificateKeyStoreType clientCertificateKeyStorePassword"
    " trustStore trustStorePassword trustStoreType keyStore keyStorePassword keyStoreType"
    " keyPassword"
)

IGNORED: Final[Mapping[Dialect, frozenset[str]]] = {
    Dialect.POSTGRESQL: _words(
        "ApplicationName adaptiveFetch allowEncodingChanges assumeMinServerVersion autosave"
        " binaryTransfer binaryTransferDisable binaryTransferEnable cancelSignalTimeout"
        " cleanupSavepoints connectTimeout databaseMetadataCacheFields"
        " databaseMetadataCacheFieldsMiB defaultRowFetchSize disableColumnSanitiser"
        " escapeSyntaxCallMode groupStartupParameters hostRecheckSeconds loadBalanceHosts"
        " logServerErrorDetail logUnclosedConnections loggerFile loggerLevel loginTimeout"
        " maxResultBuffer preferQueryMode prepareThreshold preparedStatementCacheQueries"
        " preparedStatementCacheSizeMiB quoteReturningIdentifiers reWriteBatchedInserts readOnly"
        " readOnlyMode receiveBufferSize sendBufferSize socketTimeout sslResponseTimeout"
        " stringtype tcpKeepAlive tcpNoDelay unknownLength"
    ),
    Dialect.MYSQL: _words(
        "allowMultiQueries allowPublicKeyRetrieval alwaysSendSetIsolation autoReconnect"
        " autoReconnectForPools cacheCallableStmts cachePrepStmts cacheResultSetMetadata"
        " cacheServerConfiguration characterEncoding characterSetResults connectTimeout"
        " connectionCollation connectionTimeZone createDatabaseIfNotExist defaultFetchSize"
        " elideSetAutoCommits failOverReadOnly forceConnectionTimeZoneToSession initialTimeout"
        " maintainTimeStats maxReconnects noAccessToProcedureBodies prepStmtCacheSize"
        " prepStmtCacheSqlLimit rewriteBatchedStatements serverTimezone socketTimeout"
        " tcpKeepAlive tcpNoDelay tinyInt1isBit useBulkStmts useCompression useCursorFetch"
        " useJDBCCompliantTimezoneShift useLegacyDatetimeCode useLocalSessionState"
        " useServerPrepStmts useTimezone useUnicode zeroDateTimeBehavior"
        " autocommit connect_timeout program_name read_timeout use_unicode write_timeout"
    ),
    Dialect.SQLITE: _words(
        "busy_timeout cache cache_size date_class date_precision date_string_format encoding"
        " foreign_keys journal_mode locking_mode mode synchronous temp_store"
        " transaction_mode"
    ),
}
"""JDBC properties whose work is done otherwise here (time-outs come from ``jdbc-network-timeout``,
the session is always UTC and UTF-8) or which tune only the Java driver."""
