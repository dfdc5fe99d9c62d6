"""``create``: the directory of a node, with a broker.xml to start from."""

import os
import secrets
import shlex
import socket
from pathlib import Path
from typing import Final

import click

from orthia.broker.cli.group import example
from orthia.broker.cli.instance import (
    FIRST_ROLE,
    Files,
    Instance,
    document,
    in_address,
)
from orthia.broker.cli.node_options import DEFAULT_HOST, DEFAULT_PORTS
from orthia.broker.cli.privacy import ask_password, private_files, seen_on_command_line
from orthia.broker.cli.rendering import program
from orthia.broker.cli.settings_options import (
    ASK_PASSWORD,
    DATABASE_FILE,
    URL,
    split_password,
)
from orthia.config import Role, load
from orthia.config.errors import ConfigurationError
from orthia.config.passwords import hash_password
from orthia.config.secrets import codec_key, unmask
from orthia.config.settings import HealthSettings
from orthia.config.store_settings import JournalType
from orthia.config.urls import DatabaseUrl
from orthia.config.user_files import edit

DEFAULT_USER: Final = "admin"
_DRAWN_BYTES: Final = 18
_HIGHEST_PORT: Final = 65_535
_PRIVATE_FILE: Final = 0o600
"""The file holds passwords, and masking with the built-in key hides them from nobody."""

_WILDCARDS: Final = ("0.0.0.0", "::")  # noqa: S104 - compared with, not listened on
"""Hosts to listen on that are the same on every machine."""


@click.command(
    epilog=example(
        "orthia create /srv/orthia --url postgresql://orthia@db.example/orthia",
        "orthia create /srv/orthia --url postgresql://orthia@db.example/orthia --backup"
        " --user admin",
        "orthia create /srv/orthia --aio",
    )
)
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option("--url", type=URL, help="The database of the pair.  [default: SQLite in DIRECTORY]")
@click.option(
    "--aio",
    "journal_type",
    flag_value=JournalType.ASYNCIO,
    type=JournalType,
    help="Messages in files, written with Linux' asynchronous IO, or NIO where there is none.",
)
@click.option(
    "--nio",
    "journal_type",
    flag_value=JournalType.NIO,
    type=JournalType,
    help="Messages in files, written with pwrite and fdatasync.",
)
@click.option(
    "--mapped",
    "journal_type",
    flag_value=JournalType.MAPPED,
    type=JournalType,
    help="Messages in files, written through memory maps.",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the files of messages and locks are; a pair shares it."
    "  [default: data in DIRECTORY]",
)
@click.option("--backup", is_flag=True, help="A backup node instead of a live one.")
@click.option("--name", help="Name of the node.  [default: its role]")
@click.option("--host", default=DEFAULT_HOST, show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(1, 65_535),
    help=f"Port of the acceptor.  [default: {DEFAULT_PORTS[Role.LIVE]}; of a backup on SQLite or on"
    f" files, which is on the host of its live node: {DEFAULT_PORTS[Role.BACKUP]}]",
)
@click.option(
    "--user",
    help="The first user, who may do everything; the password is asked for."
    f"  [default: {DEFAULT_USER}, with a password that is drawn and shown once]",
)
@click.option(
    "--password",
    envvar="ORTHIA_PASSWORD",
    callback=seen_on_command_line(
        "set ORTHIA_PASSWORD, give it on standard input, or type it when asked"
    ),
    help="The user's. Better in the environment, as ORTHIA_PASSWORD, on standard input, or typed.",
)
@click.option(
    "--allow-anonymous",
    is_flag=True,
    help="Require no login: whoever reaches --host may do everything.",
)
@click.option(
    "--health-port",
    type=click.IntRange(1, 65_535),
    help="Port of probes and metrics, for this host alone."
    f"  [default: {HealthSettings.port}; of a backup on the host of its live node:"
    f" {HealthSettings.port + 1}]",
)
@click.option("--no-health", is_flag=True, help="Serve neither probes nor metrics.")
@click.option(
    "--audit/--no-audit",
    default=True,
    show_default=True,
    help="Write who logged in, who was refused what, and what was changed into data/log.",
)
@click.option("--force", is_flag=True, help="Overwrite the broker.xml that is there.")
@private_files
def create(
    directory: Path,
    url: DatabaseUrl | None,
    journal_type: JournalType | None,
    data: Path | None,
    name: str | None,
    host: str,
    port: int | None,
    user: str | None,
    password: str | None,
    health_port: int | None,
    *,
    no_health: bool,
    audit: bool,
    backup: bool,
    allow_anonymous: bool,
    force: bool,
) -> None:
    """Create a node's DIRECTORY: etc/broker.xml, and data/ for what it writes.

    The nodes of a pair on a database server are taken to be on two hosts, with the same port on
    each; those on SQLite or files are on one, with two ports. Only its owner can read what is made.
    Of the user's password a hash is kept, in etc/artemis-users.properties. The database's is masked
    in the file, with the key in ARTEMIS_DEFAULT_SENSITIVE_STRING_CODEC_KEY, or without one with the
    built-in key, which is public; it is taken from ORTHIA_JDBC_PASSWORD if the URL has none.
    """
    if allow_anonymous and user is not None:
        raise click.UsageError("Either a login is required (--user) or none (--allow-anonymous).")
    if backup and user is None and password is None and not allow_anonymous:
        raise click.UsageError(
            "A backup lets in whom its live node does: give --user NAME, and the password that was"
            " shown when the live node's directory was made; or --allow-anonymous, if that was."
        )
    if no_health and health_port is not None:
        raise click.UsageError("Either there is an endpoint (--health-port) or none (--no-health).")
    if url is not None and journal_type is not None:
        raise click.UsageError("Messages are in a database (--url) or in files: not in both.")
    if data is not None and journal_type is None:
        raise click.UsageError("--data is for messages in files: add --aio, --nio or --mapped.")
    directory = directory.absolute()
    target = directory / "etc" / "broker.xml"
    if target.exists() and not force:
        raise ConfigurationError(f"{target} exists; add --force to overwrite it")
    drawn = None
    if user is None and not allow_anonymous:
        user = DEFAULT_USER
        if password is None:
            drawn = password = secrets.token_urlsafe(_DRAWN_BYTES)
    if user is not None and password is None:
        password = ask_password(confirm=True)
    if user is not None and password is not None:
        password = unmask(password, codec_key({}, os.environ)).reveal()
        if not (user.strip() and password.strip()):
            raise click.UsageError("--user needs a name and a password that are not empty.")
    role = Role.BACKUP if backup else Role.LIVE
    own_data = directory / "data"
    store: DatabaseUrl | Files
    if journal_type is not None:
        store = Files(journal_type, (data or own_data).absolute())
    else:
        store = url or DatabaseUrl.parse(f"jdbc:sqlite:{own_data / DATABASE_FILE}")
    beside = backup and _is_on_one_host(store)
    instance = Instance(
        role=role,
        name=name or role.value,
        host=host,
        port=port or DEFAULT_PORTS[role if _is_on_one_host(store) else Role.LIVE],
        store=store,
        user=user,
        health_port=None if no_health else health_port or HealthSettings.port + beside,
        has_audit_log=audit,
    )
    _write(target, own_data, document(instance))
    # A file this command wrote and `run` refuses would be a poor start.
    settings = load(target)
    if settings.properties_login_module is not None and user is not None:
        with edit(settings.properties_login_module) as files:
            files.users.set(user, hash_password(password or ""))
            files.set_roles(user, frozenset({FIRST_ROLE}))
    _tell_what_next(instance, target, drawn)


def _is_for_this_host(host: str) -> bool:
    """Return whether only clients of the same host reach what listens on ``host``."""
    return host in {DEFAULT_HOST, "localhost", "::1"}


def _is_on_one_host(store: "DatabaseUrl | Files") -> bool:
    """Return whether both nodes of a pair on ``store`` have to be on the host it is on."""
    return isinstance(store, Files) or store.sqlite_path is not None


def _write(target: Path, data: Path, text: str) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        data.mkdir(parents=True, exist_ok=True)
        target.touch(_PRIVATE_FILE)
        target.chmod(_PRIVATE_FILE)
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(
            f"{error.filename or target}: {error.strerror}; choose another DIRECTORY"
        ) from error


def _beside(port: int) -> int:
    """Return a port for another node on the same host."""
    return port + (1 if port < _HIGHEST_PORT else -1)


def _same_watch(instance: Instance) -> str:
    """Return the options by which a backup is watched as its live node is."""
    audit = "" if instance.has_audit_log else " --no-audit"
    if instance.health_port is None:
        return f" --no-health{audit}"
    if instance.health_port == HealthSettings.port:
        return audit
    port = instance.health_port
    return f" --health-port {_beside(port) if _is_on_one_host(instance.store) else port}{audit}"


def _tell_what_next(instance: Instance, target: Path, drawn: str | None) -> None:
    """Print commands that can be copied as they are; none shows a password but the one drawn."""
    orthia, file = program(), shlex.quote(str(target))
    click.echo(f"created {target}")
    if drawn is not None:
        click.echo(f"its clients log in as {instance.user}, with the password {drawn}")
        click.echo("(it is shown this once: only its hash is kept)")
    if instance.health_port is not None:
        click.echo(f"probes and metrics: http://{DEFAULT_HOST}:{instance.health_port}/metrics")
    click.echo("next:")
    click.echo(f"  {orthia} check {file}")
    click.echo(f"  {orthia} run {file}")
    if instance.role is Role.BACKUP:
        click.echo(f"  {orthia} status --config {file}")
        return
    store = instance.store
    beside = shlex.quote(f"{target.parents[1]}-backup")
    if isinstance(store, Files):
        same = f"{store.option()} --data {shlex.quote(str(store.directory))}"
    else:
        same = f"--url {shlex.quote(split_password(store)[0])}"
    if instance.user is not None:
        same += f" --user {shlex.quote(instance.user)}"
    else:
        same += " --allow-anonymous"
    same += _same_watch(instance)
    if _is_on_one_host(store):
        if instance.host != DEFAULT_HOST:
            same += f" --host {shlex.quote(instance.host)}"
        port = _beside(instance.port)
        # What listens everywhere is reached by this host's name, and not as 0.0.0.0.
        name = socket.gethostname() if instance.host in _WILDCARDS else in_address(instance.host)
        both = f"{name}:{instance.port} and {name}:{port}"
        click.echo(f"its backup, on this host; clients are given {both}:")
        click.echo(f"  {orthia} create {beside} --backup --port {port} {same}")
        return
    elsewhere = shlex.quote(str(target.parents[1]))
    where = "on another host"
    if instance.host in _WILDCARDS:
        same += f" --host {shlex.quote(instance.host)}"
    elif not _is_for_this_host(instance.host):
        where = "on another host, whose own ADDRESS it listens on"
        same += " --host ADDRESS"
    click.echo(f"its backup, {where}; clients are given both hosts, with the same port:")
    if instance.database_password() is not None:
        click.echo(f"  {ASK_PASSWORD}")
    click.echo(f"  {orthia} create {elsewhere} --backup --port {instance.port} {same}")
    if instance.host == DEFAULT_HOST:
        click.echo(
            f"both listen on {DEFAULT_HOST}, for clients of their own host; with --host 0.0.0.0"
            " --force they are made anew for others"
        )
