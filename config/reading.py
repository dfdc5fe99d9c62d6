"""A valid document turned into settings, and where in the file each of them stands.

An element whose name is a field's (with underscores) is read by its kind in the XSD, so an
element of that sort needs no code: a field in ``config/*settings.py`` and a place in the XSD.
"""

from collections.abc import Mapping
from typing import Any, Final

from orthia.config.acceptor_tls import AcceptorTls
from orthia.config.acceptors import http_tls, http_url, parse_acceptor
from orthia.config.address_settings import (
    AddressConfiguration,
    AddressSettings,
    DivertSettings,
    QueueSettings,
    RoutingType,
)
from orthia.config.document import Node, local_name
from orthia.config.ignored import NotApplied
from orthia.config.sections import Sections, child_of
from orthia.config.security_settings import (
    CertificateLoginModule,
    PropertiesLoginModule,
    ResourceLimitSetting,
    RoleMapping,
    SecuritySetting,
    TokenLoginModule,
    User,
)
from orthia.config.settings import (
    AcceptorSettings,
    ClientLimits,
    HaPolicy,
    HealthSettings,
    OutboxSettings,
    Role,
)
from orthia.config.values import read_names
from orthia.config.vocabulary import find, snake_case
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


class Reader(Sections):
    """Reads the sections of ``core``; notes problems and continues, so that all are found."""

    def core_values(self) -> dict[str, Any]:
        """Return the simple elements of ``core``, by name with underscores."""
        return self.values_of(self.core, "core")

    def ha_policy(self) -> HaPolicy:
        """Return ``ha-policy``; a problem if it is a kind that Orthia does not have."""
        policy = self.section("core/ha-policy")
        if policy is None or not len(policy):
            return HaPolicy()
        kind = policy[0]
        if local_name(kind) == "replication":
            self.note(
                kind,
                "nodes that replicate to one another are not available; expected"
                " <shared-store>, with one database for both nodes",
            )
        if local_name(kind) != "shared-store" or not len(kind):
            return HaPolicy()
        node = kind[0]
        if local_name(node) == "colocated":
            self.note(node, "expected <primary> or <backup>, and a process of its own for each")
            return HaPolicy()
        path = f"core/ha-policy/shared-store/{local_name(node)}"
        return HaPolicy(role=_ROLES[local_name(node)], **self.values_of(node, path))

    def acceptors(self) -> tuple[AcceptorSettings, ...]:
        """Return the acceptors that are to be opened."""
        opened: list[AcceptorSettings] = []
        for node in self.all("core/acceptors", "acceptor"):
            with self.noting(node):
                acceptor = parse_acceptor(node.get("name"), node.text or "", self.values.secret)
                name = acceptor.settings.name
                self.locations[f"core/acceptors/acceptor[{name}]"] = self.at(node)
                if acceptor.ignored_because is None:
                    opened.append(acceptor.settings)
                    self.ignored += [
                        (self.at(node), f"acceptor's {one}") for one in acceptor.harmless
                    ]
                    self.not_applied += [
                        NotApplied(self.at(node), f"acceptor {name!r}, {parameter}", happens)
                        for parameter, happens in acceptor.not_applied
                    ]
                elif not acceptor.is_of_network:
                    self.ignored.append((self.at(node), f"acceptor {name!r}"))
                else:
                    why = acceptor.ignored_because
                    happens = f"is not opened ({why}); its clients cannot connect"
                    self.not_applied.append(
                        NotApplied(self.at(node), f"acceptor {name!r}", happens)
                    )
        return tuple(opened)

    def addresses(self) -> tuple[AddressConfiguration, ...]:
        """Return the addresses declared, with their queues."""
        return tuple(self._address(node) for node in self.all("core/addresses", "address"))

    def wildcard_addresses(self, core: Mapping[str, Any]) -> WildcardAddresses:
        """Return what names are made of; of ``core`` an older name of one element."""
        given: dict[str, Any] = {}
        if "wild_card_routing_enabled" in core:
            given["routing_enabled"] = core["wild_card_routing_enabled"]
        path = "core/wildcard-addresses"
        node = self.section(path)
        if node is not None:
            given |= self.values_of(node, path)
        return WildcardAddresses(**given)

    def diverts(self) -> tuple[DivertSettings, ...]:
        """Return the diverts, in the order of the file."""
        found: list[DivertSettings] = []
        for node in self.all("core/diverts", "divert"):
            name = str(node.get("name")).strip()
            path = "core/diverts/divert"
            self.locations[f"{path}[{name}]"] = self.at(node)
            given = self.values_of(node, path, f"{path}[{name}]")
            selector = child_of(node, "filter")
            if selector is not None:
                given["filter"] = str(selector.get("string")).strip()
            found.append(DivertSettings(name, **given))
        return tuple(found)

    def address_settings(self) -> tuple[AddressSettings, ...]:
        """Return the address settings, in the order of the file."""
        found: list[AddressSettings] = []
        for node in self.all("core/address-settings", "address-setting"):
            match = str(node.get("match")).strip()
            path = "core/address-settings/address-setting"
            self.locations[f"{path}[{match}]"] = self.at(node)
            found.append(
                AddressSettings(match=match, **self.values_of(node, path, f"{path}[{match}]"))
            )
        return tuple(found)

    def security_settings(self) -> tuple[SecuritySetting, ...]:
        """Return the security settings, in the order of the file."""
        found: list[SecuritySetting] = []
        for node in self.all("core/security-settings", "security-setting"):
            permissions: dict[str, frozenset[str]] = {}
            for permission in node:
                kind = str(permission.get("type")).strip()
                roles = read_names(permission.get("roles", ""))
                permissions[kind] = permissions.get(kind, frozenset()) | roles
                if kind not in PERMISSIONS_ASKED_FOR:
                    self.ignored.append((self.at(permission), f"permission {kind}"))
            match = str(node.get("match")).strip()
            self.locations[f"core/security-settings/security-setting[{match}]"] = self.at(node)
            found.append(SecuritySetting(match, permissions))
        return tuple(found)

    def role_mappings(self) -> tuple[RoleMapping, ...]:
        """Return which roles go with others."""
        return tuple(
            RoleMapping(str(node.get("from")).strip(), read_names(str(node.get("to"))))
            for node in self.all("core/security-settings", "role-mapping")
        )

    def users(self) -> tuple[User, ...]:
        """Return the users."""
        found: list[User] = []
        for node in self.all("core/users", "user"):
            name = str(node.get("name")).strip()
            self.locations[f"core/users/user[{name}]"] = self.at(node)
            with self.noting(node):
                password = self.values.secret(str(node.get("password")))
                found.append(User(name, password, read_names(node.get("roles", ""))))
        return tuple(found)

    def properties_login_module(self) -> PropertiesLoginModule | None:
        """Return where the files of users and roles are, if there are any."""
        path = "core/login-modules/properties-login-module"
        node = self.section(path)
        return None if node is None else PropertiesLoginModule(**self.attributes_of(node, path))

    def certificate_login_module(self) -> CertificateLoginModule | None:
        """Return where the files of users known by certificates are, if there are any."""
        path = "core/login-modules/certificate-login-module"
        node = self.section(path)
        return None if node is None else CertificateLoginModule(**self.attributes_of(node, path))

    def token_login_module(self) -> TokenLoginModule | None:
        """Return what tokens have to be, if they are taken."""
        path = "core/login-modules/token-login-module"
        node = self.section(path)
        return None if node is None else TokenLoginModule(**self.attributes_of(node, path))

    def resource_limit_settings(self) -> tuple[ResourceLimitSetting, ...]:
        """Return the limits of single users; of two for one user the last wins."""
        path = "core/resource-limit-settings/resource-limit-setting"
        found: dict[str, ResourceLimitSetting] = {}
        for node in self.all("core/resource-limit-settings", "resource-limit-setting"):
            match = str(node.get("match")).strip()
            self.locations[f"{path}[{match}]"] = self.at(node)
            values = self.values_of(node, path, f"{path}[{match}]")
            former = values.pop("max_connections", None)
            if former is not None:
                values.setdefault("max_sessions", former)
            found[match] = ResourceLimitSetting(match, **values)
        return tuple(found.values())

    def health(self) -> HealthSettings | None:
        """Return the endpoint of probes and metrics; None if it is off."""
        node = self.section("core/health")
        if node is None:
            return None
        values = self.values_of(node, "core/health")
        for name, read in (("tls", self._http_tls), ("advertised_url", http_url)):
            text = values.pop(name, None)
            if text is not None:
                element = child_of(node, name.replace("_", "-"))
                with self.noting(node if element is None else element):
                    values[name] = read(text)
        return HealthSettings(**values)

    def _http_tls(self, text: str) -> AcceptorTls:
        return http_tls(text, self.values.secret)

    def outbox(self) -> OutboxSettings | None:
        """Return how messages are sent by SQL; None if they are not."""
        node = self.section("core/outbox")
        return None if node is None else OutboxSettings(**self.values_of(node, "core/outbox"))

    def stomp_limits(self) -> ClientLimits:
        """Return the limits of STOMP clients."""
        node = self.section("core/stomp-limits")
        if node is None:
            return ClientLimits()
        return ClientLimits(**self.values_of(node, "core/stomp-limits"))

    def _address(self, node: Node) -> AddressConfiguration:
        name = str(node.get("name")).strip()
        path = f"core/addresses/address[{name}]"
        self.locations[path] = self.at(node)
        queues: list[QueueSettings] = []
        routing_types = set()
        for kind in node:
            routing_type = RoutingType(local_name(kind).upper())
            routing_types.add(routing_type)
            for queue in kind:
                queue_name = str(queue.get("name")).strip()
                self.locations[f"{path}/queue[{queue_name}]"] = self.at(queue)
                queues.append(self._queue(queue, queue_name, routing_type))
        # An address without either is Artemis' MULTICAST; its queues would have said otherwise.
        return AddressConfiguration(
            name, frozenset(routing_types or {RoutingType.MULTICAST}), tuple(queues)
        )

    def _queue(self, node: Node, name: str, routing_type: RoutingType) -> QueueSettings:
        """Return a queue with what it says of itself."""
        path = f"core/addresses/address/{routing_type.value.lower()}/queue"
        given: dict[str, Any] = self.values_of(node, path)
        for attribute in find(path).attributes.values():
            text = node.get(attribute.name)
            if text is not None:
                with self.noting(node):
                    value = self.values.read(attribute.kind.name, text.strip())
                    given[snake_case(attribute.name)] = value
        selector = child_of(node, "filter")
        if selector is not None:
            given["filter"] = str(selector.get("string")).strip()
        own = {one: given.pop(one) for one in ("max_consumers", "durable", "user") if one in given}
        given.pop("name", None)
        return QueueSettings(name, routing_type, **own, options=given)
