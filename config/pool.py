"""``data-source-properties``: what Artemis tells its JDBC pool, and what of it is kept."""

import re
from enum import Enum
from typing import Final

from orthia.config.errors import ConfigurationError
from orthia.config.vocabulary import nearest

KEPT: Final = {
    "maxTotal": "connections at most; negative sets no limit",
    "maxIdle": "idle connections kept open",
    "maxWaitMillis": "milliseconds to wait for a connection, at most jdbc-network-timeout",
    "maxConnLifetimeMillis": "milliseconds after which a connection is replaced",
}
"""Properties of the shared connection pool (Commons DBCP's names), with their meaning. The lock,
the journal and the failover log have connections of their own, outside the pool."""

CONNECTION: Final = {
    "url": "jdbc-connection-url",
    "username": "jdbc-user",
    "user": "jdbc-user",
    "password": "jdbc-password",
}
"""Properties that say the same as an element."""

_IGNORED_NAMES: Final = (
    "abandonedUsageTracking accessToUnderlyingConnectionAllowed autoCommitOnReturn cacheState "
    "catalog connectionFactoryClassName connectionInitSqls connectionProperties "
    "defaultAutoCommit defaultCatalog defaultQueryTimeout defaultReadOnly defaultSchema "
    "defaultTransactionIsolation disconnectionSqlCodes driverClassLoader driverClassName "
    "enableAutoCommitOnReturn evictionPolicyClassName fastFailValidation initialSize jmxName "
    "lifo logAbandoned logExpiredConnections loginTimeout maxOpenPreparedStatements "
    "minEvictableIdleTimeMillis minIdle numTestsPerEvictionRun poolingStatements "
    "poolPreparedStatements removeAbandonedOnBorrow removeAbandonedOnMaintenance "
    "removeAbandonedTimeout rollbackOnReturn softMinEvictableIdleTimeMillis testOnBorrow "
    "testOnCreate testOnReturn testWhileIdle timeBetweenEvictionRunsMillis validationQuery "
    "validationQueryTimeout"
)
_IGNORED: Final = frozenset(_IGNORED_NAMES.split())


class Place(Enum):
    """Where a property of a data source goes, when no element says the same."""

    POOL = "pool"
    IGNORED = "ignored"


def place(name: str, value: str) -> Place | str:
    """Return where a property goes, or the element that says the same.

    Raises ConfigurationError if it is not known, or not the number it should be.
    """
    if name in KEPT:
        if not re.fullmatch(r"-?[0-9]{1,9}", value):
            raise ConfigurationError(f"the property {name!r} is {value!r}; expected a whole number")
        return Place.POOL
    if name in CONNECTION:
        return CONNECTION[name]
    if name in _IGNORED:
        return Place.IGNORED
    near = nearest(name, [*KEPT, *CONNECTION, *_IGNORED])
    hint = f"did you mean {near!r}?" if near else f"expected one of {', '.join(KEPT)}"
    raise ConfigurationError(f"the property {name!r} is not known; {hint}")
