"""``load``: from the path of a ``broker.xml`` to checked settings."""

import os
import socket
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from orthia.config.artemis_logins import login_files, read_logins
from orthia.config.document import Document, local_name
from orthia.config.exposure import readable_secrets
from orthia.config.ignored import NotApplied, told
from orthia.config.lockers import lock_database, locker_warnings, with_locker
from orthia.config.parts import Part
from orthia.config.problems import Location, Problems
from orthia.config.reading import Reader
from orthia.config.rules import violations
from orthia.config.secrets import codec_key
from orthia.config.security_settings import PropertiesLoginModule, TokenLoginModule
from orthia.config.settings import SERVER_STORE_BYTES, AcceptorSettings, HealthSettings, Settings
from orthia.config.store_reading import read_database_store, read_locker
from orthia.config.store_settings import (
    CustomLockerSettings,
    DatabaseStoreSettings,
    FileStoreSettings,
    InDatabaseLockerSettings,
    LockerSettings,
    SharedFileLockerSettings,
)
from orthia.config.substitution import Properties
from orthia.config.validation import Validation
from orthia.config.values import ValueReader
from orthia.config.violations import Violation
from orthia.config.vocabulary import configuration, find

_Module = TypeVar("_Module", bound=PropertiesLoginModule)
INSTANCE_PROPERTY: Final = "artemis.instance"
"""The property that says where relative paths start, as in Artemis."""

DEFAULT_JOURNAL_DIRECTORY: Final = "data/journal"
DEFAULT_BINDINGS_DIRECTORY: Final = "data/bindings"
LARGE_MESSAGES_DIRECTORY: Final = "large-messages"
"""Beside the journal's: whatever directory a pair shares, it shares this one too."""
_DATABASE_STORE: Final = "core/store/database-store"
_FILE_STORE: Final = frozenset(one.name for one in fields(FileStoreSettings)) - {"locker"}
_DEFAULT_CODEC: Final = "org.apache.activemq.artemis.utils.DefaultSensitiveStringCodec"


def load(
    path: str | Path,
    *,
    system_properties: Mapping[str, str] | None = None,
    installed_lockers: Collection[str] | None = None,
    part: Part = Part.WHOLE,
    further: Callable[[Settings], Iterable[Violation]] = lambda _: (),
    reads: Callable[[Path], None] = lambda _: None,
) -> Settings:
    """Return the settings in the ``broker.xml`` at ``path``.

    ``system_properties`` are those of ``-D``; with the environment they fill in ``${...}``. With
    ``installed_lockers`` a ``custom-locker`` must be one of them; tools need not have it.
    Of a ``part`` nothing else is read: neither are its errors told, nor are the properties looked
    for that it names. ``further`` are rules that only a node has to keep. ``reads`` gets the path
    of each file of which the settings are made before it is opened: this one, and those that it
    includes. Raises ConfigurationError with every problem, each on a line
    ``FILE:LINE: <element>: ...``.
    """
    source = Path(path)
    properties = _properties(source, system_properties or {})
    document = Document(source, properties, reads)
    _leave_out_others(document, part)
    readable = readable_secrets(document)  # before values from outside stand in their places
    validation = Validation(document, properties)
    problems = validation.problems
    reader = Reader(document, _values(document, properties, problems), problems)
    reader.locations |= validation.unfilled
    settings = _read(reader, source, properties, part)
    # Rules relate what is near: a default in the place of what is not known may break one.
    unknown = {_section(path) for path in validation.unfilled}
    if reader.has(_DATABASE_STORE) and not isinstance(settings.store, DatabaseStoreSettings):
        unknown.add("core/store")
    for violation in (*violations(settings), *further(settings)):
        if _section(violation.element) not in unknown:
            problems.add(reader.locate(violation.element), violation.name, violation.message)
    if installed_lockers is not None:
        _refuse_unknown_locker(settings.store.locker, installed_lockers, reader, problems)
    problems.raise_if_any()
    ignored = _ignored_warning(source, [*validation.ignored, *reader.ignored])
    return replace(
        settings,
        warnings=(*ignored, *settings.warnings, *readable),
        not_applied=told([*validation.not_applied, *reader.not_applied]),
    )


def _leave_out_others(document: Document, part: Part) -> None:
    """Remove the sections of ``core`` that are not of ``part``; names nobody knows stay."""
    if part is Part.WHOLE or document.root.tag != configuration().tag:
        return
    known = find("core").children
    for core in document.root:
        if local_name(core) != "core":
            continue
        for section in list(core):
            if section.tag in known and not part.includes(local_name(section)):
                core.remove(section)


def _section(path: str) -> str:
    """Return the part of ``core`` that an element is of."""
    return "/".join(path.split("/")[:2])


def _refuse_unknown_locker(
    locker: LockerSettings | None, installed: Collection[str], reader: Reader, problems: Problems
) -> None:
    if isinstance(locker, CustomLockerSettings) and locker.name not in installed:
        known = ", ".join(sorted(installed)) or "none is"
        problems.add(
            reader.locate("core/store/database-store/locker/custom-locker"),
            "custom-locker",
            f"no package that is installed here has a locker {locker.name!r} among its entry points"
            f" of orthia.lockers; expected one that is installed: {known}",
        )


_TAKEN_AS_READ: Final = {one.name for one in fields(Settings)} - {
    *("name", "global_max_size", "failover_log_directory", "audit_log_directory"),
}
"""Elements of ``core`` that are settings of the same name, without a rule of their own."""


def _read(reader: Reader, source: Path, properties: Properties, part: Part) -> Settings:
    """Return the settings, with warnings of their own; they count if there is no problem."""
    instance = _instance_directory(source, properties)
    core = reader.core_values()
    warnings = []
    database = read_database_store(reader)
    store: DatabaseStoreSettings | FileStoreSettings
    if database is not None:
        url = database.jdbc_connection_url.relative_to(instance)
        locker = _relative_locker(database.locker, instance)
        store = with_locker(replace(database, jdbc_connection_url=url, locker=locker))
        reader.ignore(name for name in core if name in _FILE_STORE)
    elif not reader.has(_DATABASE_STORE):
        locker = _relative_locker(read_locker(reader, "core/store/file-store"), instance)
        store = _file_store(core, instance, locker)
        warnings += _not_durable(store)
    else:
        # What is wrong with it is noted; the rest is looked at as if there were files.
        store = _file_store(core, instance, None)
    given: dict[str, Any] = {
        "ha_policy": reader.ha_policy(),
        "acceptors": tuple(
            _relative_acceptor(one, instance, source.absolute().parent)
            for one in reader.acceptors()
        ),
        "wildcard_addresses": reader.wildcard_addresses(core),
        "addresses": reader.addresses(),
        "diverts": reader.diverts(),
        "address_settings": reader.address_settings(),
        "security_settings": reader.security_settings(),
        "role_mappings": reader.role_mappings(),
        "users": reader.users(),
        "properties_login_module": _beside(source, reader.properties_login_module()),
        "token_login_module": _with_key_beside(source, reader.token_login_module()),
        "certificate_login_module": _beside(source, reader.certificate_login_module()),
        "resource_limit_settings": reader.resource_limit_settings(),
        "health": _relative_health(reader.health(), instance, source.absolute().parent),
        "outbox": reader.outbox(),
        "stomp_limits": reader.stomp_limits(),
    }
    if part is Part.WHOLE and core.get("security_enabled", True):
        warnings += _add_artemis_logins(given, reader, source, properties)
    warnings += locker_warnings(store)
    locks = lock_database(store)
    if locks is not None:
        warnings += locks.jdbc_connection_url.warnings
    given |= {name: value for name, value in core.items() if name in _TAKEN_AS_READ}
    if not core.get("persistence_enabled", True):
        warnings = [_NO_PERSISTENCE]
    watch = [name for name in ("max_disk_usage", "min_disk_free") if core.get(name, -1) != -1]
    if watch and isinstance(store, DatabaseStoreSettings) and not store.is_embedded:
        for name in watch:
            element = name.replace("_", "-")
            where = reader.locate(f"core/{element}")
            reader.not_applied.append(NotApplied(where, element, _NO_DISK))
    if core.get("global_max_size", -1) != -1:
        given["global_max_size"] = core["global_max_size"]
    for name in ("failover_log_directory", "audit_log_directory"):
        if name in core:
            given[name] = instance / core[name]
    if not given["acceptors"]:
        warnings.append(NO_ACCEPTOR)
    return Settings(
        name=core.get("name", socket.gethostname()),
        source=source,
        store=store,
        warnings=tuple(warnings),
        **given,
    )


NO_ACCEPTOR: Final = (
    "no acceptor is open for STOMP or AMQP: this node would take the live lock and serve nobody;"
    " add one, as <acceptor>tcp://0.0.0.0:61613?protocols=STOMP,AMQP</acceptor>"
)


_NO_DISK: Final = (
    "the disk is the database server's, which this node cannot look at: sends are refused at"
    f" max-store-bytes, {SERVER_STORE_BYTES} by default"
)
_NO_PERSISTENCE: Final = (
    "persistence-enabled is false: NOTHING IS STORED. Every message and queue is in memory only, is"
    " lost when this node stops, and a receipt promises nothing; no lock is taken, so that another"
    " node may serve other messages under the same name"
)


def _add_artemis_logins(
    given: dict[str, Any], reader: Reader, source: Path, properties: Properties
) -> list[str]:
    """Add who may log in by Artemis' own files; return a warning where this file says who may."""
    instance = _instance_directory(source, properties)
    directories = (source.absolute().parent, instance / "etc")
    own = ("users", "properties_login_module", "token_login_module", "certificate_login_module")
    if not any(given[name] for name in own):
        logins = read_logins(directories, instance, properties, reader.problems)
        reader.not_applied += logins.not_applied
        given["login_domain"] = logins.domain
        given["properties_login_module"] = logins.properties
        given["certificate_login_module"] = logins.certificates
        return []
    unread = login_files(directories)
    module = given["properties_login_module"]
    if unread is None or (module is not None and unread == module.user):
        return []
    return [
        f"{unread} is not read: {source.name} has <users> or <login-modules> of urn:orthia, and"
        " these alone say who may log in"
    ]


def _beside(source: Path, module: _Module | None) -> _Module | None:
    """Return the module with its paths starting where the ``broker.xml`` is, as in Artemis."""
    if module is None:
        return None
    directory = source.absolute().parent
    # Attributes are read as texts.
    return replace(module, user=directory / module.user, role=directory / module.role)


def _with_key_beside(source: Path, module: TokenLoginModule | None) -> TokenLoginModule | None:
    return module and replace(module, key=source.absolute().parent / module.key)


def _relative_locker(locker: LockerSettings | None, instance: Path) -> LockerSettings | None:
    """Return the locker with its paths starting from the instance's directory."""
    if isinstance(locker, SharedFileLockerSettings) and locker.directory is not None:
        return replace(locker, directory=instance / locker.directory)
    if isinstance(locker, InDatabaseLockerSettings) and locker.jdbc_connection_url is not None:
        return replace(locker, jdbc_connection_url=locker.jdbc_connection_url.relative_to(instance))
    return locker


def _relative_acceptor(
    acceptor: AcceptorSettings, instance: Path, configuration: Path
) -> AcceptorSettings:
    """Return the acceptor with the paths of its stores starting from the instance's directory."""
    if acceptor.tls is None:
        return acceptor
    return replace(acceptor, tls=acceptor.tls.relative_to(instance, configuration))


def _relative_health(
    health: HealthSettings | None, instance: Path, configuration: Path
) -> HealthSettings | None:
    """Return the endpoint with the paths of its stores starting as those of acceptors do."""
    if health is None or health.tls is None:
        return health
    return replace(health, tls=health.tls.relative_to(instance, configuration))


def _file_store(
    core: Mapping[str, Any], instance: Path, locker: LockerSettings | None
) -> FileStoreSettings:
    given = {name: value for name, value in core.items() if name in _FILE_STORE}
    for name, default in (
        ("journal_directory", DEFAULT_JOURNAL_DIRECTORY),
        ("bindings_directory", DEFAULT_BINDINGS_DIRECTORY),
    ):
        given[name] = instance / given.get(name, default)
    beside = given["journal_directory"].parent / LARGE_MESSAGES_DIRECTORY
    given["large_messages_directory"] = instance / given.get("large_messages_directory", beside)
    return FileStoreSettings(locker=locker, **given)


def _not_durable(store: FileStoreSettings) -> list[str]:
    """Return a warning for each element that gives durability up."""
    return [
        f"{name.replace('_', '-')} is false: what is confirmed survives the death of this node, but"
        " not of the machine"
        for name in (
            "journal_datasync",
            "journal_sync_transactional",
            "journal_sync_non_transactional",
        )
        if not getattr(store, name)
    ]


def _properties(source: Path, system_properties: Mapping[str, str]) -> Properties:
    """Return what ``${...}`` may stand for; what Artemis' start script sets has a default."""
    given = Properties(system_properties, os.environ)
    instance = _instance_directory(source, given)
    defaults = {
        INSTANCE_PROPERTY: instance,
        "artemis.instance.etc": source.absolute().parent,
        "artemis.home": instance,
        "data.dir": instance / "data",
    }
    return Properties(
        system_properties, os.environ, {name: str(path) for name, path in defaults.items()}
    )


def _instance_directory(source: Path, properties: Properties) -> Path:
    """Return where relative paths start.

    That is the property ``artemis.instance``, else the directory of the file, or the one around
    it if that is ``etc``: never the directory somebody happens to start the node in.
    """
    named = properties.get(INSTANCE_PROPERTY)
    if named:
        return Path(named).absolute()
    directory = source.absolute().parent
    return directory.parent if directory.name == "etc" else directory


def _values(document: Document, properties: Properties, problems: Problems) -> ValueReader:
    """Return the reader of values, with the key of masked ones."""
    key = codec_key(properties.system_properties, properties.environment)
    node = document.root.find("{*}core/{*}password-codec")
    if node is None:
        return ValueReader(key)
    codec, *options = (part.strip() for part in (node.text or "").split(";"))
    if codec != _DEFAULT_CODEC or "algorithm=one-way" in options:
        problems.add(
            document.location(node),
            "password-codec",
            f"only the two-way codec of {_DEFAULT_CODEC} can be read here; expected it, or no"
            " password-codec",
        )
    own = [option.partition("=")[2] for option in options if option.startswith("key=")]
    return ValueReader(own[0] if own else key)


def _ignored_warning(source: Path, ignored: list[tuple[Location, str]]) -> list[str]:
    """Return one warning that lists what changes nothing here, or none."""
    places: dict[str, list[str]] = {}
    for location, name in sorted(ignored):
        where = str(location.line) if location.file == source else str(location)
        places.setdefault(name, []).append(where)
    if not places:
        return []
    listed = ", ".join(f"{name} ({_lines(where)})" for name, where in places.items())
    return [f"{source}: known to Artemis and harmless to leave out here, so ignored: {listed}"]


def _lines(where: list[str]) -> str:
    return f"{'line' if len(where) == 1 else 'lines'} {', '.join(where)}"
