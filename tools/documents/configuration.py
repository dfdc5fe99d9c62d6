"""The configuration reference: docs/configuration.md, written from the XSD and the settings.

``python -m tools.documents.configuration`` prints it. A test compares it with the file, so they
cannot drift.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, fields
from typing import Any, Final

from orthia.config.acceptor_parameters import AMQP_CHANGES
from orthia.config.acceptor_parameters import CHANGES as PARAMETERS
from orthia.config.acceptor_parameters import HARMLESS as HARMLESS_PARAMETERS
from orthia.config.acceptors import ACTING, DEFAULT_HOST, DEFAULT_PORT
from orthia.config.address_settings import DivertSettings, QueueSettings
from orthia.config.addresses import ResolvedAddressSettings
from orthia.config.dialects import Dialect
from orthia.config.ignored import CHANGES, HARMLESS
from orthia.config.jdbc import IGNORED, TRANSLATED
from orthia.config.loader import (
    DEFAULT_BINDINGS_DIRECTORY,
    DEFAULT_JOURNAL_DIRECTORY,
    INSTANCE_PROPERTY,
    LARGE_MESSAGES_DIRECTORY,
)
from orthia.config.names import MAXIMUM_TABLE_NAME_LENGTH
from orthia.config.pool import CONNECTION, KEPT
from orthia.config.rendering import SPOKEN_DEFAULTS, written
from orthia.config.secrets import KEY_PROPERTY, KEY_VARIABLE
from orthia.config.security_settings import (
    CertificateLoginModule,
    PropertiesLoginModule,
    ResourceLimitSetting,
    TokenLoginModule,
)
from orthia.config.settings import (
    SERVER_STORE_BYTES,
    ClientLimits,
    HaPolicy,
    HealthSettings,
    Settings,
)
from orthia.config.store_reading import LOCKERS
from orthia.config.store_rules import MINIMUM_QUERY_TIMEOUT, lease_query_timeout
from orthia.config.store_settings import DatabaseStoreSettings, FileStoreSettings, RetentionSettings
from orthia.config.urls import DatabaseUrl
from orthia.config.vocabulary import Element, find, snake_case
from orthia.config.wildcards import WildcardAddresses

_SHARED_STORE: Final = "core/ha-policy/shared-store"
_QUEUE: Final = "core/addresses/address/anycast/queue"
_HOLDERS: Final[Mapping[str, tuple[type, ...]]] = {
    "core": (Settings, FileStoreSettings),
    "core/store/database-store": (DatabaseStoreSettings,),
    f"{_SHARED_STORE}/primary": (HaPolicy,),
    f"{_SHARED_STORE}/backup": (HaPolicy,),
    _QUEUE: (QueueSettings,),
    "core/address-settings/address-setting": (ResolvedAddressSettings,),
    "core/wildcard-addresses": (WildcardAddresses,),
    "core/diverts/divert": (DivertSettings,),
    **{f"core/store/database-store/locker/{name}": (one,) for name, one in LOCKERS.items()},
    "core/store/database-store/journal-retention": (RetentionSettings,),
    "core/login-modules/properties-login-module": (PropertiesLoginModule,),
    "core/login-modules/certificate-login-module": (CertificateLoginModule,),
    "core/login-modules/token-login-module": (TokenLoginModule,),
    "core/health": (HealthSettings,),
    "core/stomp-limits": (ClientLimits,),
    "core/resource-limit-settings/resource-limit-setting": (ResourceLimitSetting,),
}
"""The settings an element's children are read into: their defaults are the children's."""

_SPOKEN_DEFAULTS: Final[Mapping[str, str]] = {
    "core/name": "the name of the host",
    "core/acceptors/acceptor/name": "its HOST:PORT",
    "core/journal-directory": f"`{DEFAULT_JOURNAL_DIRECTORY}`",
    "core/bindings-directory": f"`{DEFAULT_BINDINGS_DIRECTORY}`",
    "core/large-messages-directory": f"`{LARGE_MESSAGES_DIRECTORY}` beside `journal-directory`",
    "core/diverts/divert/address": "required",
    "core/diverts/divert/forwarding-address": "required",
    "core/password-codec": "Artemis' default codec",
    "core/max-store-bytes": f"{SERVER_STORE_BYTES} for a database server, else -1",
    "core/store/database-store/jdbc-connection-url": "required",
    **SPOKEN_DEFAULTS,
}
"""Defaults that are no value of a field."""

_SECTIONS: Final = (
    ("The node", "core"),
    ("The database", "core/store"),
    ("Live and backup", "core/ha-policy"),
    ("Acceptors", "core/acceptors"),
    ("Addresses and queues", "core/addresses"),
    ("Wildcards", "core/wildcard-addresses"),
    ("Diverts", "core/diverts"),
    ("Address settings", "core/address-settings"),
    ("Security", "core/security-settings"),
    ("Users", "core/users"),
    ("Users known otherwise", "core/login-modules"),
    ("Limits of users", "core/resource-limit-settings"),
    ("Health and metrics", "core/health"),
    ("Limits of STOMP clients", "core/stomp-limits"),
)
_SAME_AS: Final = {"master", "slave", "multicast", "file-store"}
"""Elements whose inside is described under another."""
_ALSO_IN: Final[Mapping[str, str]] = {"core/store/database-store/locker": "core/store/file-store"}
"""The second place of an element."""


def reference() -> str:
    """Return the whole reference as Markdown."""
    return "\n".join([*_introduction(), *_elements(), *_closing()])


def _introduction() -> Iterator[str]:
    yield f"""# Configuration reference

<!-- Written by `python -m tools.documents.configuration` from config/*.xsd and the settings. -->

Orthia reads Artemis' `broker.xml`: the same elements in the same namespaces
(`urn:activemq` and `urn:activemq:core`). What Artemis does not have stands beside it in a namespace
of its own, `urn:orthia`. `orthia check FILE` validates a file and prints the settings in effect;
[broker.xml.example](../broker.xml.example) is a complete one.

```xml
<configuration xmlns="urn:activemq">
  <core xmlns="urn:activemq:core">
    <name>live-1</name>
    <store>
      <database-store>
        <jdbc-connection-url>jdbc:postgresql://db.example.org:5432/orthia</jdbc-connection-url>
        <jdbc-user>orthia</jdbc-user>
        <jdbc-password>${{ORTHIA_DB_PASSWORD}}</jdbc-password>
      </database-store>
    </store>
    <ha-policy><shared-store><primary/></shared-store></ha-policy>
    <acceptors>
      <acceptor name="stomp">tcp://0.0.0.0:61613?protocols=STOMP</acceptor>
    </acceptors>
    <users xmlns="urn:orthia">
      <user name="alice" password="${{ALICE_PASSWORD}}" roles="amq"/>
    </users>
  </core>
</configuration>
```

## Rules for the whole file

- **Errors** are told all at once, each as `FILE:LINE: <element>: what is wrong; what was expected`.
  A name nobody knows is an error, with the nearest known name.
- **Elements of Artemis that Orthia does not have** are accepted and told at every start and by
  `orthia check`, in two lists: those that change nothing here, in one warning; and those that
  **change what happens to your messages**, each with its line and what happens instead
  ([below](#elements-of-artemis-that-orthia-does-not-have)).
- **`${{NAME:DEFAULT}}`** is replaced in every text and attribute that is read: by the system
  property `NAME` (`-D NAME=VALUE`), else the environment variable `NAME`, else `DEFAULT`. Without
  any of them it is an error. A value is taken as it stands: it may hold `<`, `&` or `${{`.
  What Artemis' start script sets is set here, too: `artemis.instance` and `artemis.home` are the
  instance's directory, `artemis.instance.etc` is that of this file, `data.dir` is `data` in the
  instance.
- **Durations** are milliseconds. **Sizes** are bytes, or `K`, `M`, `G` with powers of 1024
  (`10M`, `10MiB`).
- **Relative paths** start from the instance's directory: the property `{INSTANCE_PROPERTY}`, else
  the directory of the file, or the one around it if that is named `etc`. They never depend on the
  directory in which a node is started.
- **`<xi:include href="FILE"/>`** puts the root element of another file in its place; the path
  starts from the including file. A DOCTYPE, entities and the network are refused.

## Passwords

Give a password as `${{NAME}}` from the environment, or mask it as `ENC(...)` with Artemis' default
two-way codec: a file masked for Artemis is read as it is, and the other way round. With the codec's
built-in key, which is public, this hides a password from a glance and from nobody else. With a key
of your own it is as safe as that key; give it in the environment variable
`{KEY_VARIABLE}`, or the system property `{KEY_PROPERTY}`.
Orthia shows `****` for passwords in logs, errors and the output of every command: those of URLs and
of the elements and attributes for passwords, and every other parameter whose name says that it is
one (`password`, `secret`, `token`, `credential`, `apiKey` and the like), as a `custom-locker` may
have. A secret under another name is shown by `orthia check`. What the code of a custom locker logs
is its own.
"""


def _elements() -> Iterator[str]:
    yield "## Elements\n"
    for title, path in _SECTIONS:
        yield f"### {title}\n"
        element = find(path)
        if path == "core":
            yield from _table(path, element)
        else:
            yield from _described(path, element)
    yield from _timers()


def _described(path: str, element: Element) -> Iterator[str]:
    """Describe an element and those inside it that hold others."""
    namespace = f" of `{element.namespace}`" if element.namespace == "urn:orthia" else ""
    places = " and ".join(
        f"`{one}`" for one in (path.rpartition("/")[0], _ALSO_IN.get(path)) if one
    )
    yield f"**`<{element.name}>`**{namespace} in {places}. {element.meaning}\n"
    yield from _table(path, element)
    if element.example and element.kind is None:
        yield f"```xml\n{element.example}\n```\n"
    refused = [one for one in element.attributes.values() if one.is_refused]
    if refused:
        reason = refused[0].kind.expected.removeprefix("none: ")
        yield f"Refused of Classic's: {_names(one.name for one in refused)}; {reason}.\n"
    for child in element.children.values():
        holds_more = bool(child.children or child.attributes)
        if holds_more and not child.is_ignored and child.name not in _SAME_AS:
            yield from _described(f"{path}/{child.name}", child)


def _table(path: str, element: Element) -> Iterator[str]:
    rows = [*_attribute_rows(path, element), *_child_rows(path, element)]
    if element.kind is not None and element.example:
        yield f"```xml\n{element.example}\n```\n"
    if path == "core/acceptors/acceptor":
        yield "Parameters of the URL that act:\n"
        yield from (f"- `{name}`: {meaning}." for name, meaning in ACTING.items())
        yield ""
    if rows:
        yield "| Name | Meaning | Value | Default |"
        yield "|---|---|---|---|"
        yield from rows
        yield ""


def _attribute_rows(path: str, element: Element) -> Iterator[str]:
    for attribute in element.attributes.values():
        if not attribute.is_refused:
            default = "required" if attribute.required else _default(path, attribute.name)
            yield _row(f"@{attribute.name}", attribute.meaning, attribute.kind.expected, default)


def _child_rows(path: str, element: Element) -> Iterator[str]:
    for child in element.children.values():
        if child.kind is None or child.is_ignored or child.attributes:
            continue
        meaning = f"{child.meaning} Example: `{child.example}`." if child.example else child.meaning
        yield _row(child.name, meaning, child.kind.expected, _default(path, child.name))


def _row(name: str, *cells: str) -> str:
    return " | ".join([f"| `{name}`", *(cell.replace("|", "\\|") for cell in cells)]) + " |"


def _default(path: str, name: str) -> str:
    spoken = _SPOKEN_DEFAULTS.get(f"{path}/{name}")
    if spoken is not None:
        return spoken
    holders: tuple[Any, ...] = _HOLDERS.get(path, ())
    for setting in (one for holder in holders for one in fields(holder)):
        if setting.name == snake_case(name) and setting.default is not MISSING:
            value = setting.default
            return "none" if value is None else f"`{written(value)}`"
    return "none"


def _timers() -> Iterator[str]:
    store = DatabaseStoreSettings(DatabaseUrl.parse("jdbc:sqlite:/orthia.db"))
    renew, expiration = store.jdbc_lock_renew_period, store.jdbc_lock_expiration
    yield f"""## How the timers must relate

The configuration is refused, with the numbers, unless

- `jdbc-lock-expiration` > 0 and 0 < `jdbc-lock-renew-period` < `jdbc-lock-expiration`;
- `jdbc-lock-expiration` >= 2 x `jdbc-lock-renew-period` + {MINIMUM_QUERY_TIMEOUT} ms: two renewals
  fall into a lease, and a query has a bounded time left;
- `jdbc-network-timeout` >= {MINIMUM_QUERY_TIMEOUT} ms: no call to the database lasts for ever.

A query of the lock may take the smaller of `jdbc-network-timeout` and `jdbc-lock-expiration` -
2 x `jdbc-lock-renew-period`: with the defaults {lease_query_timeout(store)} ms. A renewal begins
{renew} ms after the last one that worked, so a call of it that hangs is given up
{renew + lease_query_timeout(store)} ms after it, one whole period before the lease of
{expiration} ms ends. To connect anew may take as long once more; what is not over
when the lease ends is a failed renewal then.
"""


def _closing() -> Iterator[str]:
    yield "## The connection pool\n"
    yield "`data-source-property` keys with a meaning here:\n"
    yield "| Key | Meaning |"
    yield "|---|---|"
    for key, meaning in KEPT.items():
        yield f"| `{key}` | {meaning} |"
    for key, element in CONNECTION.items():
        yield f"| `{key}` | the same as `{element}`, which wins |"
    yield f"""
The other keys of Commons DBCP are ignored, with the warning; unknown ones are an error. The locks,
the journal and the failover log have connections of their own, which the pool cannot starve.

## Database URLs

| Database | JDBC | SQLAlchemy |
|---|---|---|
| PostgreSQL | `jdbc:postgresql://HOST:5432/DATABASE` | `postgresql://USER:PASSWORD@HOST/DATABASE` |
| MySQL | `jdbc:mysql://HOST:3306/DATABASE` | `mysql://USER:PASSWORD@HOST/DATABASE` |
| MariaDB | `jdbc:mariadb://HOST:3306/DATABASE` | `mariadb://USER:PASSWORD@HOST/DATABASE` |
| SQLite | `jdbc:sqlite:PATH` | `sqlite:///PATH` |

Table names have at most {MAXIMUM_TABLE_NAME_LENGTH} letters, digits and underscores. Several hosts
(`//HOST1:5432,HOST2:5432/DATABASE`) are tried in turn on PostgreSQL. `jdbc:derby` is an error: the
embedded database is SQLite. Without a `database-store` messages are stored in
[the file journal](file-journal.md).

Properties of a JDBC URL are `user`, `password` and"""
    for dialect in (Dialect.POSTGRESQL, Dialect.MYSQL):
        yield f"\n- {dialect.value}, with a meaning here: {_names(TRANSLATED[dialect])};"
        yield f"- {dialect.value}, ignored with a warning: {_names(IGNORED[dialect])};"
    yield f"- {Dialect.SQLITE.value}, ignored with a warning: {_names(IGNORED[Dialect.SQLITE])}."
    yield f"""
## Differences from Artemis

- An acceptor without a host listens on {DEFAULT_HOST}, without a port on {DEFAULT_PORT}.
- `default-address-routing-type` is ANYCAST: what is sent to a plain name nobody configured is kept
  for whoever comes, where MULTICAST would drop it: see [addresses](addresses.md).
- `dead-letter-address` is DLQ and `expiry-address` ExpiryQueue where no match sets one. Artemis
  drops such messages; here an empty element does: see [redelivery](redelivery.md).
- Users may stand in the file (`users` of `urn:orthia`); else Artemis' own files are read: see
  [security](security.md#coming-from-artemis). Security enabled without users lets nobody in, and
  `orthia check` fails then.
- `ha-policy` is `shared-store`; `replication` and `colocated` are errors.
- `critical-analyzer-policy` is SHUTDOWN and `critical-analyzer-timeout` 20 s, where Artemis only
  logs, after 120 s: the time of the default lease, since what hangs for that long serves nobody.
- TLS of acceptors is 1.2 or 1.3, with files in PEM, PEMCFG or PKCS12; one in JKS is an error that
  names the line of keytool which converts it: see [TLS](tls.md).
- `jdbc-network-timeout` must be set: 0 and -1, which mean no limit to JDBC, are errors.
- Files of the journal, its lock and the tables are named as Artemis names them, and hold a format
  of Orthia's own: neither broker reads the other's. A node that meets Artemis' says so, changes
  nothing and ends with exit code 78.

## Elements of Artemis that Orthia does not have

### These change what happens to your messages

Each is told with its line at every start and by `orthia check`, unless it is empty or has a value
with which Artemis does what Orthia does.

| Element or attribute | What happens instead | Nothing changes at |
|---|---|---|"""
    for key, instead in CHANGES.items():
        same = ", ".join(f"`{value}`" for value in instead.same_at) or "-"
        yield f"| `{key}` | {instead.happens} | {same} |"
    yield """
An acceptor whose `protocols` leave out STOMP and AMQP is not opened, and told of in the same list.
So is one that names others beside them: clients of those cannot connect. So are these parameters of
its URL. A parameter that nobody knows is ignored, as in Artemis, and told of as harmless;
one that is nearly a parameter of TLS, WebSocket or AMQP, and a protocol that nobody knows, are
refused:

| Parameter | What happens instead | Nothing changes at |
|---|---|---|"""
    for name, change in {**PARAMETERS, **AMQP_CHANGES}.items():
        same = ", ".join(f"`{value}`" for value in change.same_at) or "-"
        yield f"| `{name}` | {change.happens} | {same} |"
    yield """

### These change nothing here
"""
    for reason, keys in HARMLESS.items():
        yield f"- {reason}: {_names(keys)}."
    yield f"- parameters of acceptors: {_names(HARMLESS_PARAMETERS)}."
    yield ""


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names, key=str.lower))


if __name__ == "__main__":
    sys.stdout.write(reference())
