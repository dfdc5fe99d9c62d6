"""Every element and attribute that is accepted is read by the code that is to act on it.

Reading it is not yet acting, but what nobody reads does nothing. It counts where something is
decided: not in ``config/`` and not in the commands, which show settings.
"""

import ast
from collections.abc import Iterator
from enum import Enum
from functools import cache
from pathlib import Path

import pytest

from orthia.config.address_settings import RoutingType
from orthia.config.reading import PERMISSIONS_ASKED_FOR
from orthia.config.settings import CriticalAnalyzerPolicy, IoErrorPolicy, Role
from orthia.config.store_settings import JournalType
from orthia.config.vocabulary import configuration, find, snake_case

_ROOT = Path(__file__).parents[2]
_ROOMS = ("nodemanager", "journal", "database", "broker", "pipeline")
_LOCKER = "core/store/*/locker/*"
_QUEUE = "core/addresses/address/*/queue"

_OF_ADDRESSES = {
    "default-exclusive-queue": "consumers.py options.exclusive",
    "default-purge-on-no-consumers": "retention.py queue.options.purge_on_no_consumers",
    "default-group-buckets": "groups.py options.group_buckets",
    "default-group-first-key": "groups.py options.group_first_key",
    "default-group-rebalance": "groups.py options.group_rebalance",
    "default-group-rebalance-pause-dispatch": "groups.py options.group_rebalance_pause_dispatch",
    "default-non-destructive": "queue.py options.non_destructive",
    "default-ring-size": "retention.py queue.options.ring_size",
    "default-consumers-before-dispatch": "consumers.py options.consumers_before_dispatch",
    "default-delay-before-dispatch": "consumers.py options.delay_before_dispatch",
    "default-last-value-key": "factory.py options.last_value_key",
    "default-last-value-queue": "factory.py options.last_value_key",
    "last-value-queue": "factory.py options.last_value_key",
}
_OF_SECURITY = {
    "security-setting/@match": "most_specific_first",
    "security-setting/permission/@type": "setting.permissions",
    "security-setting/permission/@roles": "setting.permissions",
    "role-mapping/@from": "from_role",
    "role-mapping/@to": "mapping.to",
}
_OF_LOGIN = {
    "token-login-module/@key": "security/tokens.py module.key",
    "token-login-module/@reload": "node/user_files.py module.reload",
    "properties-login-module/@user": "node/service.py read_users",
    "properties-login-module/@role": "node/service.py read_users",
    "properties-login-module/@reload": "node/user_files.py module.reload",
    "certificate-login-module/@user": "node/service.py read_certificate_users",
    "certificate-login-module/@role": "node/service.py read_certificate_users",
    "certificate-login-module/@reload": "node/user_files.py module.reload",
}
READ_AS = {
    **{
        f"core/address-settings/address-setting/{one}": f"broker/core/queue/{code}"
        for one, code in _OF_ADDRESSES.items()
    },
    **{
        f"core/security-settings/{one}": f"broker/security/permissions.py {code}"
        for one, code in _OF_SECURITY.items()
    },
    **{f"core/login-modules/{one}": f"broker/{code}" for one, code in _OF_LOGIN.items()},
    "core/name": "broker/node/stores.py settings.name",
    "core/password-codec": "broker/security/users.py reveal",
    "core/acceptors/acceptor": "broker/connections/listening.py acceptor.port",
    "core/acceptors/acceptor/@name": "broker/connections/listening.py acceptor.name",
    "core/addresses/address/@name": "broker/core/routing/declared.py address.name",
    f"{_QUEUE}/@name": "broker/core/routing/declared.py declared.name",
    f"{_QUEUE}/@max-consumers": "broker/core/queue/queue.py binding.max_consumers",
    "core/resource-limit-settings/resource-limit-setting/@match": (
        "broker/core/limits/creations.py one.match"
    ),
    "core/address-settings/address-setting/@match": "broker/core/routing/address_rules.py resolve",
    f"{_QUEUE}/@last-value": "broker/core/queue/factory.py options.last_value_key",
    f"{_QUEUE}/@enabled": "broker/core/routing/router.py binding.options.enabled",
    f"{_QUEUE}/durable": "broker/core/routing/declared.py declared.durable",
    f"{_QUEUE}/user": "broker/core/routing/declared.py declared.user",
    "core/diverts/divert/@name": "broker/core/routing/address_rules.py divert.name",
    "core/diverts/divert/address": "broker/core/routing/address_rules.py one.address",
    "core/diverts/divert/routing-type": "broker/core/routing/diverts.py self.settings.routing_type",
    "core/wild-card-routing-enabled": "broker/core/routing/patterns.py wildcards.routing_enabled",
    "core/wildcard-addresses/*": "broker/core/routing/addresses.py settings.wildcard_addresses",
    "core/users/user/@name": "broker/security/users.py user.name",
    "core/users/user/@roles": "broker/security/users.py user.roles",
    "core/health/host": "broker/management/http/server.py self._settings.host",
    "core/health/token": "broker/management/http/probes.py self._settings.token",
    "core/health/port": "broker/management/http/server.py self._settings.port",
    "core/health/tls": "broker/node/service.py health.tls",
    "core/health/advertised-url": (
        "broker/management/http/node_server.py self._settings.advertised_url"
    ),
    "core/health/allow-anonymous": (
        "broker/management/http/probes.py self._settings.allow_anonymous"
    ),
    "core/store/database-store/data-source-properties/data-source-property/@value": (
        "database/engine.py s.data_source_properties"
    ),
    "core/store/*/locker/custom-locker/property/@value": (
        "nodemanager/locks/lockers.py locker.properties"
    ),
    "core/outbox/user": "broker/core/broker.py outbox.user",
    "core/outbox/notify": "journal/sql/journal.py outbox.notify",
    "core/stomp-limits/max-body-bytes": (
        "broker/protocols/stomp/parser.py self._limits.max_body_bytes"
    ),
    "core/stomp-limits/max-unacknowledged-bytes": (
        "broker/core/broker.py self.parts.max_unacknowledged_bytes"
    ),
    "core/max-store-bytes": "broker/core/assembly.py settings.store_limit",
    "core/max-disk-usage": "broker/node/service.py s.max_disk_usage",
    "core/min-disk-free": "broker/node/service.py s.min_disk_free",
    "core/bindings-directory": "broker/node/stores.py s.bindings_directory",
    "core/large-messages-directory": "journal/file/bodies.py s.large_messages_directory",
    "core/store/database-store/data-source-properties/data-source-property/@key": (
        "database/engine.py s.data_source_properties"
    ),
    "core/store/database-store/acks-table-name": "migrations/names.py s.acks_table_name",
    "core/store/database-store/outbox-table-name": "migrations/names.py s.outbox_table_name",
    "core/store/database-store/journal-retention/@unit": (
        "journal/engine/retention.py self._retention.seconds"
    ),
    f"{_LOCKER}/@lockTableName": (
        "nodemanager/locks/sql_store.py settings.node_manager_store_table_name"
    ),
    f"{_LOCKER}/@maxAllowableDiffFromDBTime": "nodemanager/manager.py jdbc_allowed_time_diff",
    f"{_LOCKER}/@queryTimeout": "nodemanager/locks/lockers.py lease_query_timeout",
    f"{_LOCKER}/@leaseHolderId": "nodemanager/stores.py 'lease_holder_id'",
    f"{_LOCKER}/@directory": "nodemanager/locks/lockers.py locker.directory",
    f"{_LOCKER}/@name": "nodemanager/locks/lockers.py locker.name",
    f"{_LOCKER}/property/@key": "nodemanager/locks/lockers.py locker.properties",
}
"""Where something is read whose name others have too, or that is read into another: file and code.

Whatever is not here is read into a field of its own name, which is read as an attribute.
"""


def _accepted() -> Iterator[str]:
    """Yield the path of every element with a text, and of every attribute, that is accepted."""
    for path, element in configuration().walk():
        if element.is_ignored:
            continue
        if element.kind is not None:
            yield path
        for attribute in element.attributes.values():
            if not attribute.is_refused:
                yield f"{path}/@{attribute.name}"


@cache
def _codes(file: str) -> frozenset[str]:
    """Return the attributes, names and texts that the code of a file reads, as they are written.

    Of an attribute also its own name, without what it is of.
    """
    found = set()
    for node in ast.walk(ast.parse((_ROOT / file).read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            found |= {ast.unparse(node), node.attr}
        elif isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(repr(node.value))
    return frozenset(found)


def _files() -> list[str]:
    """Return the files where something is decided: not what only shows it."""
    files = (file for room in _ROOMS for file in (_ROOT / room).rglob("*.py"))
    return [
        str(file.relative_to(_ROOT))
        for file in files
        if file.parts[-2] != "cli" and "management" not in file.parts
    ]


@cache
def _attributes_read() -> frozenset[str]:
    """Return the name of every attribute that is read where something is decided."""
    return frozenset().union(*map(_codes, _files()))


@cache
def _names_of_others() -> frozenset[str]:
    """Return what else has a name there: attributes that are set, functions, fields."""
    found: set[str] = set()
    for file in _files():
        for node in ast.walk(ast.parse((_ROOT / file).read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                found.add(node.attr)
            elif isinstance(node, ast.FunctionDef):
                found.add(node.name)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found.add(node.target.id)
    return frozenset(found)


def _evidence(path: str) -> str | None:
    words = path.split("/")
    for pattern, evidence in READ_AS.items():
        wanted = pattern.split("/")
        if len(wanted) == len(words) and all(map(_fits, wanted, words)):
            return evidence
    return None


def _fits(wanted: str, word: str) -> bool:
    return wanted in {"*", word}


@pytest.mark.parametrize("path", sorted(set(_accepted())))
def test_what_is_accepted_is_read(path: str) -> None:
    """Nothing is parsed, shown and then left alone: that would be `ignored`, and told."""
    evidence = _evidence(path)
    if evidence is None:
        field = snake_case(path.rpartition("/")[2].removeprefix("@"))
        assert field not in _names_of_others(), f"{field} has a namesake: say where it is read"
        assert field in _attributes_read(), f"nothing reads {field}"
        return
    file, _, code = evidence.partition(" ")
    assert code in _codes(file), f"{file} does not read {code}"
    assert not file.startswith("config/")


def test_the_table_names_what_there_is() -> None:
    """A row that fits nothing any more goes."""
    words = [path.split("/") for path in _accepted()]
    for pattern in READ_AS:
        wanted = pattern.split("/")
        assert any(len(wanted) == len(one) and all(map(_fits, wanted, one)) for one in words), (
            pattern
        )


@pytest.mark.parametrize("choices", [CriticalAnalyzerPolicy, IoErrorPolicy, JournalType])
def test_every_value_makes_a_difference(choices: type[Enum]) -> None:
    """All but one of them are asked for by name; the one left is what is done otherwise."""
    named = {one.name for one in choices if f"{choices.__name__}.{one.name}" in _attributes_read()}
    assert len(choices) - len(named) <= 1, named


def test_both_roles_and_routing_types_make_a_difference() -> None:
    """A choice of two is asked for by the name of one."""
    for one in (Role.LIVE, RoutingType.ANYCAST, RoutingType.MULTICAST):
        assert f"{type(one).__name__}.{one.name}" in _attributes_read()


_CHECKS = (
    *("security.check", "security.check_new_queue", "security.allows"),
    *("self.check", "self.allows"),
)


def test_every_permission_is_asked_for_or_told_of() -> None:
    """What is in the list is checked by the core; the others are told of as ignored.

    A check of several that stands in the room of security counts once somebody else calls it.
    """
    called = {
        node.attr
        for room in ("core", "management", "connections")
        for file in (_ROOT / "broker" / room).rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Attribute)
    }
    asked: set[str] = set()
    for file in (_ROOT / "broker" / "core").rglob("*.py"):
        asked |= _asked_for(ast.parse(file.read_text()))
    own = ast.parse((_ROOT / "broker" / "security" / "permissions.py").read_text())
    by_name = {one.name: one for one in ast.walk(own) if isinstance(one, ast.FunctionDef)}
    for name, function in by_name.items():
        if name in called or any(
            name in ast.unparse(by_name[one]) for one in called & set(by_name)
        ):
            asked |= _asked_for(function)
    assert asked == PERMISSIONS_ASKED_FOR
    known = find("core/security-settings/security-setting/permission").attributes["type"]
    assert asked == set(known.kind.choices)


def _asked_for(tree: ast.AST) -> set[str]:
    asked: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(_CHECKS):
            asked |= {str(one.value) for one in node.args if isinstance(one, ast.Constant)}
    # Resources and their operations are no permissions.
    return asked - {"broker", "destroyQueue", "getQueueNames", "countMessages"}


def test_what_nothing_reads_is_found() -> None:
    """The test sees what it is to see: a name that is nowhere, beside one that is."""
    assert "a_setting_nobody_reads" not in _attributes_read()
    assert "jdbc_lock_expiration" in _attributes_read()
