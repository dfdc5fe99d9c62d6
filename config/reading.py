"""A valid document turned into settings, and where in the file each of them stands.

An element whose name is a field's (with underscores) is read by its kind in the XSD, so an
element of that sort needs no code: a field in ``config/*settings.py`` and a place in the XSD.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final

from orthia.config.acceptors import parse_acceptor
from orthia.config.address_settings import (
    AddressConfiguration,
    AddressSettings,
    DivertSettings,
    QueueSettings,
    RoutingType,
)
from orthia.config.document import Document, Node, local_name
from orthia.config.ignored import NotApplied
from orthia.config.pool import Place, place
from orthia.config.problems import Location, Problems
from orthia.config.security_settings import (
    CertificateLoginModule,
    PropertiesLoginModule,
    ResourceLimitSetting,
    RoleMapping,
    SecuritySetting,
    TokenLoginModule,
    User,
)
from orthia.config.settings import AcceptorSettings, HaPolicy, HealthSettings, Role, StompLimits
from orthia.config.store_settings import (
    CustomLockerSettings,
    DatabaseLockerSettings,
    DatabaseStoreSettings,
    LeaseDatabaseLockerSettings,
    LockerSettings,
    RetentionSettings,
    SharedFileLockerSettings,
)
from orthia.config.values import ValueReader, read_names
from orthia.config.vocabulary import find, snake_case, value_kinds
from orthia.config.wildcards import WildcardAddresses

_ROLES: Final = {
    "primary": Role.LIVE,
    "master": Role.LIVE,
    "backup": Role.BACKUP,
    "slave": Role.BACKUP,
}
PERMISSIONS_ASKED_FOR: Final = frozenset(
    {
        "send",
        "browse",
        "consume",
        "createAddress",
        "createDurableQueue",
        "createNonDurableQueue",
        "deleteAddress",
        "deleteDurableQueue",
        "deleteNonDurableQueue",
        "manage",
        "view",
        "edit",
    }
)
"""What the others allow, no client can do here: nothing is lost if they are not looked at."""
LOCKERS: Final[Mapping[str, type[LockerSettings]]] = {
    "lease-database-locker": LeaseDatabaseLockerSettings,
    "database-locker": DatabaseLockerSettings,
    "shared-file-locker": SharedFileLockerSettings,
    "custom-locker": CustomLockerSettings,
}
"""The elements of ``locker`` and the settings they are read into."""


class Reader:
    """Reads the sections of ``core``; notes problems and goes on, so that all are found."""

    def __init__(self, document: Document, values: ValueReader, problems: Problems) -> None:
        self._document = document
        self._values = values
        self._problems = problems
        self._core = document.root[0]
        self.ignored: list[tuple[Location, str]] = []
        """What was read and changes nothing here."""
        self.not_applied: list[NotApplied] = []
        """What was read, would change what happens, and does not."""
        self._locations: dict[str, Location] = {}

    def locate(self, path: str) -> Location:
        """Return where an element, or else the nearest one around it, stands.

        ``path`` is as ``orthia.config.rules`` writes it.
        """
        while path and path not in self._locations:
            path = path.rpartition("/")[0]
        return self._locations.get(path, self._document.location(self._core))

    def has(self, path: str) -> bool:
        """Tell whether the element at ``path`` is in the file."""
        return path in self._locations

    def ignore(self, names: Iterable[str]) -> None:
        """Note simple elements of ``core`` as without meaning."""
        for name in names:
            element = name.replace("_", "-")
            self.ignored.append((self.locate(f"core/{element}"), element))

    def core_values(self) -> dict[str, Any]:
        """Return the simple elements of ``core``, by name with underscores."""
        return self._values_of(self._core, "core")

    def database_store(self) -> DatabaseStoreSettings | None:
        """Return ``store/database-store``; None if it is not there or, with a problem, unusable."""
        path = "core/store/database-store"
        node = self._section(path)
        if node is None:
            return None
        given = self._values_of(node, path)
        self._read_data_source(node, path, given)
        given["locker"] = self.locker(path)
        given["journal_retention"] = self._retention(f"{path}/journal-retention")
        if "jdbc_user" in given:
            with self._problems.noting(self.locate(f"{path}/jdbc-user"), "jdbc-user"):
                given["jdbc_user"] = self._values.plain(given["jdbc_user"])
        if "jdbc_connection_url" not in given:
            if f"{path}/jdbc-connection-url" not in self._locations:
                self._note(node, "lacks <jdbc-connection-url>; expected a JDBC or SQLAlchemy URL")
            return None
        url = given["jdbc_connection_url"]
        where = self.locate(f"{path}/jdbc-connection-url")
        self.ignored += [
            (where, f"jdbc-connection-url's {name}") for name in url.ignored_properties
        ]
        return DatabaseStoreSettings(**given)

    def locker(self, store: str) -> LockerSettings | None:
        """Return the locker inside the store at this path."""
        section = self._section(f"{store}/locker")
        if section is None or not len(section):
            return None
        node = section[0]
        kind = local_name(node)
        path = f"{store}/locker/{kind}"
        self._locations[path] = self._at(node)
        given: dict[str, Any] = {}
        for attribute in find(path).attributes.values():
            text = node.get(attribute.name)
            if text is not None:
                self._locations[f"{path}/@{attribute.name}"] = self._at(node)
                with self._noting(node):
                    value = self._values.read(attribute.kind.name, text.strip())
                    given[snake_case(attribute.name)] = value
        if "jdbc_user" in given:
            given["jdbc_user"] = self._values.plain(given["jdbc_user"])
        if kind == "custom-locker":
            given["properties"] = {str(one.get("key")): str(one.get("value")) for one in node}
        return LOCKERS[kind](**given)

    def _retention(self, path: str) -> RetentionSettings | None:
        node = self._section(path)
        return None if node is None else RetentionSettings(**self._attributes_of(node, path))

    def ha_policy(self) -> HaPolicy:
        """Return ``ha-policy``; a problem if it is a kind that Orthia does not have."""
        policy = self._section("core/ha-policy")
        if policy is None or not len(policy):
            return HaPolicy()
        kind = policy[0]
        if local_name(kind) == "replication":
            self._note(
                kind,
                "nodes that replicate to one another are not to be had here; expected"
                " <shared-store>, with one database for both nodes",
            )
        if local_name(kind) != "shared-store" or not len(kind):
            return HaPolicy()
        node = kind[0]
        if local_name(node) == "colocated":
            self._note(node, "expected <primary> or <backup>, and a process of its own for each")
            return HaPolicy()
        path = f"core/ha-policy/shared-store/{local_name(node)}"
        return HaPolicy(role=_ROLES[local_name(node)], **self._values_of(node, path))

    def acceptors(self) -> tuple[AcceptorSettings, ...]:
        """Return the acceptors that are to be opened."""
        opened: list[AcceptorSettings] = []
        for node in self._all("core/acceptors", "acceptor"):
            with self._noting(node):
                acceptor = parse_acceptor(node.get("name"), node.text or "", self._values.secret)
                name = acceptor.settings.name
                self._locations[f"core/acceptors/acceptor[{name}]"] = self._at(node)
                if acceptor.ignored_because is None:
                    opened.append(acceptor.settings)
                    self.ignored += [
                        (self._at(node), f"acceptor's {one}") for one in acceptor.harmless
                    ]
                    self.not_applied += [
                        NotApplied(self._at(node), f"acceptor {name!r}, {parameter}", happens)
                        for parameter, happens in acceptor.not_applied
                    ]
                elif not acceptor.is_of_network:
                    self.ignored.append((self._at(node), f"acceptor {name!r}"))
                else:
                    why = acceptor.ignored_because
                    happens = f"is not opened ({why}); its clients cannot connect"
                    self.not_applied.append(
                        NotApplied(self._at(node), f"acceptor {name!r}", happens)
                    )
        return tuple(opened)

    def addresses(self) -> tuple[AddressConfiguration, ...]:
        """Return the addresses declared, with their queues."""
        return tuple(self._address(node) for node in self._all("core/addresses", "address"))

    def wildcard_addresses(self, core: Mapping[str, Any]) -> WildcardAddresses:
        """Return what names are made of; of ``core`` an older name of one element."""
        given: dict[str, Any] = {}
        if "wild_card_routing_enabled" in core:
            given["routing_enabled"] = core["wild_card_routing_enabled"]
        path = "core/wildcard-addresses"
        node = self._section(path)
        if node is not None:
            given |= self._values_of(node, path)
        return WildcardAddresses(**given)

    def diverts(self) -> tuple[DivertSettings, ...]:
        """Return the diverts, in the order of the file."""
        found: list[DivertSettings] = []
        for node in self._all("core/diverts", "divert"):
            name = str(node.get("name")).strip()
            path = "core/diverts/divert"
            self._locations[f"{path}[{name}]"] = self._at(node)
            given = self._values_of(node, path, f"{path}[{name}]")
            selector = _child(node, "filter")
            if selector is not None:
                given["filter"] = str(selector.get("string")).strip()
            found.append(DivertSettings(name, **given))
        return tuple(found)

    def address_settings(self) -> tuple[AddressSettings, ...]:
        """Return the address settings, in the order of the file."""
        found: list[AddressSettings] = []
        for node in self._all("core/address-settings", "address-setting"):
            match = str(node.get("match")).strip()
            path = "core/address-settings/address-setting"
            self._locations[f"{path}[{match}]"] = self._at(node)
            found.append(
                AddressSettings(match=match, **self._values_of(node, path, f"{path}[{match}]"))
            )
        return tuple(found)

    def security_settings(self) -> tuple[SecuritySetting, ...]:
        """Return the security settings, in the order of the file."""
        found: list[SecuritySetting] = []
        for node in self._all("core/security-settings", "security-setting"):
            permissions: dict[str, frozenset[str]] = {}
            for permission in node:
                kind = str(permission.get("type")).strip()
                roles = read_names(permission.get("roles", ""))
                permissions[kind] = permissions.get(kind, frozenset()) | roles
                if kind not in PERMISSIONS_ASKED_FOR:
                    self.ignored.append((self._at(permission), f"permission {kind}"))
            match = str(node.get("match")).strip()
            self._locations[f"core/security-settings/security-setting[{match}]"] = self._at(node)
            found.append(SecuritySetting(match, permissions))
        return tuple(found)

    def role_mappings(self) -> tuple[RoleMapping, ...]:
        """Return which roles go with others."""
        return tuple(
            RoleMapping(str(node.get("from")).strip(), read_names(str(node.get("to"))))
            for node in self._all("core/security-settings", "role-mapping")
        )

    def users(self) -> tuple[User, ...]:
        """Return the users."""
        found: list[User] = []
        for node in self._all("core/users", "user"):
            name = str(node.get("name")).strip()
            self._locations[f"core/users/user[{name}]"] = self._at(node)
            with self._noting(node):
                password = self._values.secret(str(node.get("password")))
                found.append(User(name, password, read_names(node.get("roles", ""))))
        return tuple(found)

    def properties_login_module(self) -> PropertiesLoginModule | None:
        """Return where the files of users and roles are, if there are any."""
        path = "core/login-modules/properties-login-module"
        node = self._section(path)
        return None if node is None else PropertiesLoginModule(**self._attributes_of(node, path))

    def certificate_login_module(self) -> CertificateLoginModule | None:
        """Return where the files of users known by certificates are, if there are any."""
        path = "core/login-modules/certificate-login-module"
        node = self._section(path)
        return None if node is None else CertificateLoginModule(**self._attributes_of(node, path))

    def token_login_module(self) -> TokenLoginModule | None:
        """Return what tokens have to be, if they are taken."""
        path = "core/login-modules/token-login-module"
        node = self._section(path)
        return None if node is None else TokenLoginModule(**self._attributes_of(node, path))

    def resource_limit_settings(self) -> tuple[ResourceLimitSetting, ...]:
        """Return the limits of single users; of two for one user the last wins."""
        path = "core/resource-limit-settings/resource-limit-setting"
        found: dict[str, ResourceLimitSetting] = {}
        for node in self._all("core/resource-limit-settings", "resource-limit-setting"):
            match = str(node.get("match")).strip()
            self._locations[f"{path}[{match}]"] = self._at(node)
            values = self._values_of(node, path, f"{path}[{match}]")
            former = values.pop("max_connections", None)
            if former is not None:
                values.setdefault("max_sessions", former)
            found[match] = ResourceLimitSetting(match, **values)
        return tuple(found.values())

    def health(self) -> HealthSettings | None:
        """Return the endpoint of probes and metrics; None if it is off."""
        node = self._section("core/health")
        return None if node is None else HealthSettings(**self._values_of(node, "core/health"))

    def stomp_limits(self) -> StompLimits:
        """Return the limits of STOMP clients."""
        node = self._section("core/stomp-limits")
        if node is None:
            return StompLimits()
        return StompLimits(**self._values_of(node, "core/stomp-limits"))

    def _read_data_source(self, node: Node, path: str, given: dict[str, Any]) -> None:
        section = _child(node, "data-source-properties")
        kept: dict[str, str] = {}
        for one in () if section is None else section:
            self._locations[f"{path}/data-source-properties"] = self._at(one)
            name = str(one.get("key")).strip()
            with self._noting(one):
                value = self._values.plain(str(one.get("value")))
                match place(name, value):
                    case Place.POOL:
                        kept[name] = value
                    case Place.IGNORED:
                        self.ignored.append((self._at(one), f"data-source-property {name}"))
                    case element:
                        self._locations.setdefault(f"{path}/{element}", self._at(one))
                        read = self._values.read(value_kinds()[f"{path}/{element}"], value)
                        given.setdefault(element.replace("-", "_"), read)
        given["data_source_properties"] = kept

    def _address(self, node: Node) -> AddressConfiguration:
        name = str(node.get("name")).strip()
        path = f"core/addresses/address[{name}]"
        self._locations[path] = self._at(node)
        queues: list[QueueSettings] = []
        routing_types = set()
        for kind in node:
            routing_type = RoutingType(local_name(kind).upper())
            routing_types.add(routing_type)
            for queue in kind:
                queue_name = str(queue.get("name")).strip()
                self._locations[f"{path}/queue[{queue_name}]"] = self._at(queue)
                queues.append(self._queue(queue, queue_name, routing_type))
        # An address without either is Artemis' MULTICAST; its queues would have said otherwise.
        return AddressConfiguration(
            name, frozenset(routing_types or {RoutingType.MULTICAST}), tuple(queues)
        )

    def _queue(self, node: Node, name: str, routing_type: RoutingType) -> QueueSettings:
        """Return a queue with what it says of itself."""
        path = f"core/addresses/address/{routing_type.value.lower()}/queue"
        given: dict[str, Any] = self._values_of(node, path)
        for attribute in find(path).attributes.values():
            text = node.get(attribute.name)
            if text is not None and not attribute.is_ignored:
                with self._noting(node):
                    value = self._values.read(attribute.kind.name, text.strip())
                    given[snake_case(attribute.name)] = value
        selector = _child(node, "filter")
        if selector is not None:
            given["filter"] = str(selector.get("string")).strip()
        own = {one: given.pop(one) for one in ("max_consumers", "durable", "user") if one in given}
        given.pop("name", None)
        return QueueSettings(name, routing_type, **own, options=given)

    def _section(self, path: str) -> Node | None:
        """Return the element at ``path`` and note where it and those around it stand."""
        node: Node | None = self._core
        walked = "core"
        for name in path.split("/")[1:]:
            node = None if node is None else _child(node, name)
            walked = f"{walked}/{name}"
            if node is not None:
                self._locations[walked] = self._at(node)
        return node

    def _all(self, section: str, name: str) -> Iterator[Node]:
        node = self._section(section)
        for child in () if node is None else node:
            if local_name(child) == name:
                yield child

    def _values_of(self, node: Node, path: str, located_as: str | None = None) -> dict[str, Any]:
        """Return the simple elements inside ``node``, by name with underscores."""
        found: dict[str, Any] = {}
        for child in node:
            name = local_name(child)
            kind = value_kinds().get(f"{path}/{name}")
            if kind is not None:
                self._locations[f"{located_as or path}/{name}"] = self._at(child)
                with self._noting(child):
                    found[name.replace("-", "_")] = self._values.read(kind, _text(child))
        return found

    def _attributes_of(self, node: Node, path: str) -> dict[str, Any]:
        """Return the attributes of ``node``, by name with underscores."""
        given: dict[str, Any] = {}
        for attribute in find(path).attributes.values():
            text = node.get(attribute.name)
            if text is not None:
                with self._noting(node):
                    value = self._values.read(attribute.kind.name, text.strip())
                    given[snake_case(attribute.name)] = value
        return given

    def _at(self, node: Node) -> Location:
        return self._document.location(node)

    def _note(self, node: Node, text: str) -> None:
        self._problems.add(self._at(node), local_name(node), text)

    def _noting(self, node: Node) -> AbstractContextManager[None]:
        return self._problems.noting(self._at(node), local_name(node))


def _child(node: Node, name: str) -> Node | None:
    return next((child for child in node if local_name(child) == name), None)


def _text(node: Node) -> str:
    return (node.text or "").strip()
