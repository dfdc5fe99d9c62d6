"""What lets more people in than may be meant: open ports without a login, files others can read.

And its reverse, a node that logs in at its database as a user nobody named. All are told and none
is refused: a network may be private, a file's group may be a team, and a database may know the
users of the operating system.
"""

import getpass
import ipaddress
import os
import pwd
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orthia.config.acceptor_websocket import ANY_ORIGIN
from orthia.config.dialects import Dialect
from orthia.config.lockers import lock_database
from orthia.config.login_domains import LoginModule
from orthia.config.secrets import is_secret
from orthia.config.settings import Settings
from orthia.config.store_settings import DatabaseStoreSettings

if TYPE_CHECKING:
    # Without a broker.xml the XML parser need not be loaded.
    from orthia.config.document import Document, Node

ENVIRONMENT_DIRECTORY: Final = Path("/etc/orthia")
"""Where the systemd unit looks for the environment of an instance, as ``NAME.env``."""

_PLACEHOLDER: Final = re.compile(r"\$\{[^}:]*\}")
_PASSWORD_IN_URL: Final = re.compile(
    r"//[^/@\s]*:[^/@\s]+@|(?:^\s*|[?&;])(ssl|keyStore|trustStore)?password=[^&;]", re.IGNORECASE
)
_MAXIMUM_BYTES: Final = 65_536


def is_loopback(host: str) -> bool:
    """Return whether only clients of the same host reach what listens on ``host``."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def exposure_warnings(settings: Settings, environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return a warning for each port that lets anybody on the network in.

    And one for a database, of the store or of the locks, whose user is left to the driver.
    """
    found: list[str] = []
    database = lock_database(settings.store) if settings.persistence_enabled else None
    if database is not None:
        found += _unnamed_user(database, environment)
    if not settings.security_enabled:
        found += [
            f"acceptor {acceptor.name!r} listens on {acceptor.host} and security is off: anybody"
            " who reaches it may send and consume; give users and security-enabled true, or listen"
            " on 127.0.0.1"
            for acceptor in settings.acceptors
            if not is_loopback(acceptor.host)
        ]
        found += [
            f"acceptor {acceptor.name!r} has webSocketAllowedOrigins=* and security is off: every"
            " site that somebody visits whose browser reaches it may send and consume; name the"
            " origins of your own pages"
            for acceptor in settings.acceptors
            if ANY_ORIGIN in acceptor.web_socket.allowed_origins
        ]
    domain = settings.login_domain
    if settings.security_enabled and domain is not None and domain.has(LoginModule.GUEST):
        found += [
            f"acceptor {acceptor.name!r} listens on {acceptor.host} and {domain.file} has guests:"
            f" anybody who reaches it may do what role {domain.guest.role!r} may"
            for acceptor in settings.acceptors
            if not is_loopback(acceptor.host)
        ]
    module = settings.properties_login_module
    if module is not None:
        found += readable_by_others(module.user)
    health = settings.health
    if health is not None and not is_loopback(health.host) and health.token is None:
        found.append(
            f"the health endpoint listens on {health.host} with allow-anonymous: anybody who"
            " reaches it reads roles, queue names and figures; give it a <token>, or listen on"
            " 127.0.0.1"
            if health.allow_anonymous
            else f"the health endpoint listens on {health.host} without a <token>: /role and"
            " /metrics are refused there; give one, or <allow-anonymous>true</allow-anonymous>"
        )
    if health is not None and not is_loopback(health.host) and health.tls is None:
        found.append(
            f"the health endpoint listens on {health.host} without TLS: whoever is on the way reads"
            " tokens and the passwords of operators; give it <tls>, or listen on 127.0.0.1, with a"
            " proxy with TLS before it"
        )
    return found


def _unnamed_user(database: DatabaseStoreSettings, environment: Mapping[str, str]) -> Iterator[str]:
    url = database.jdbc_connection_url
    if database.is_embedded or database.jdbc_user or url.sqlalchemy_url.username:
        return
    on_postgresql = url.dialect is Dialect.POSTGRESQL
    if on_postgresql and ({"user", "service"} & url.sqlalchemy_url.query.keys()):
        return
    if on_postgresql and environment.get("PGSERVICE"):
        return  # the service's entry in pg_service.conf may name one
    user = environment.get("PGUSER") if on_postgresql else None
    whose = "PGUSER of its environment" if user else "the user of the operating system it runs as"
    name = user or _system_user(on_postgresql=on_postgresql)
    yield (
        f"neither jdbc-user nor the database's URL {url} names a user, so this node logs in there"
        f" as {name!r}, {whose}; name the user in jdbc-user"
    )


def _system_user(*, on_postgresql: bool) -> str:
    """Return whom the driver takes: libpq the process' user, PyMySQL what LOGNAME or USER say."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name if on_postgresql else getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.geteuid()}"


def readable_secrets(document: "Document") -> list[str]:
    """Return a warning for each file with passwords that others than its owner can read.

    The files are the document's own, and the environment file that the systemd unit would give to
    an instance of its name.
    """
    files = {document.location(node).file: None for node in _secrets(document.root)}
    environment = ENVIRONMENT_DIRECTORY / f"{_instance_name(document.path)}.env"
    if _has_secrets(environment):
        files[environment] = None
    return [warning for file in files for warning in readable_by_others(file)]


def _secrets(root: "Node") -> "Iterator[Node]":
    from orthia.config.document import local_name

    """Yield what holds a secret that does not come from outside the file."""
    for node in root.iter("*"):
        name = local_name(node)
        texts = [node.text or ""] if is_secret(name) else []
        texts += [str(text) for key, text in node.attrib.items() if is_secret(str(key))]
        if is_secret(node.get("key", "")):
            texts.append(node.get("value", ""))
        urls = [node.text or "", *map(str, node.attrib.values())]
        is_given = any(_PLACEHOLDER.sub("", text).strip() for text in texts)
        if is_given or any(_PASSWORD_IN_URL.search(_PLACEHOLDER.sub("", one)) for one in urls):
            yield node


def _instance_name(path: Path) -> str:
    directory = path.absolute().parent
    return (directory.parent if directory.name == "etc" else directory).name


def _has_secrets(environment: Path) -> bool:
    try:
        with environment.open("rb") as file:
            lines = file.read(_MAXIMUM_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return False  # it is not there, or as private as it should be
    given = (line.strip().removeprefix("export ").partition("=") for line in lines)
    return any(is_secret(name.strip()) and value.strip() for name, _, value in given)


def readable_by_others(file: Path, secrets: str = "passwords") -> Iterator[str]:
    """Yield a warning if others than its owner can read a file with ``secrets``."""
    try:
        found = file.stat()
    except OSError:
        return
    if found.st_mode & stat.S_IROTH:
        who = "everybody on this machine"
    elif found.st_mode & stat.S_IRGRP and found.st_uid == os.geteuid() != 0:
        # Where root or another user owns it, its group is how the node reads it.
        who = "its group"
    else:
        return
    mode = "600" if found.st_uid == os.geteuid() else "640"
    yield f"{file} has {secrets} and {who} can read it: chmod {mode} {file}"
