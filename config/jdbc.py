"""The properties of JDBC URLs, and what becomes of each.

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

from config.dialects import Dialect
from config.errors import ConfigurationError


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
        else:
            known = [*translators, *IGNORED[dialect], "user", "password"]
            near = get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            # By number, not by name: after an & that is not encoded it may be half a password.
            raise ConfigurationError(f"property {number} of the URL is not known{hint}")
    return Translated(MappingProxyType(query), tuple(ignored))


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _as(name: str) -> Callable[[str], dict[str, str]]:
    return lambda value: {name: value}


def _postgresql_ssl(value: str) -> dict[str, str]:
    # The JDBC driver verifies certificate and host when told ssl=true, so this must too.
    return {"sslmode": "verify-full"} if value.lower() in {"", "true"} else {}


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


def _mysql_tls_flag(value: str) -> dict[str, str]:
    return _mysql_tls("REQUIRED" if value.lower() == "true" else "DISABLED")


def _mysql_tls(value: str) -> dict[str, str]:
    match value.upper().replace("-", "_"):
        case "DISABLED" | "DISABLE" | "PREFERRED":
            return {}
        case "REQUIRED" | "TRUST":
            return {"ssl_check_hostname": "false"}
        case _:
            raise ConfigurationError(
                "sslMode of the URL verifies a certificate, and its Java key store cannot be read"
                " here; expected mysql+pymysql://...?ssl_ca=FILE with a PEM file"
            )


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
        "useSSL": _mysql_tls_flag,
        "requireSSL": _mysql_tls_flag,
        "sslMode": _mysql_tls,
    },
    Dialect.SQLITE: {},
}
"""JDBC property to its like in the query of a SQLAlchemy URL."""

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
    ),
    Dialect.SQLITE: _words(
        "busy_timeout cache cache_size date_class date_precision date_string_format encoding"
        " foreign_keys journal_mode locking_mode mode synchronous temp_store"
        " transaction_mode"
    ),
}
"""JDBC properties whose work is done otherwise here (time-outs come from ``jdbc-network-timeout``,
the session is always UTC and UTF-8) or which tune only the Java driver."""
