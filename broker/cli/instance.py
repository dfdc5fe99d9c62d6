"""``create``: the directory of a node, with a broker.xml to start from."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape, quoteattr

import click

from broker.cli.group import example
from broker.cli.nodes import DEFAULT_HOST, DEFAULT_PORTS
from broker.cli.settings_options import DATABASE_FILE, URL, split_password
from config import Role, load, mask
from config.errors import ConfigurationError
from config.settings import JournalType
from config.urls import DatabaseUrl

_PRIVATE_FILE: Final = 0o600
"""The file holds passwords, and masking with the built-in key hides them from nobody."""

_UNDELIVERABLE: Final = """\
    <addresses>
      <address name="DLQ">
        <anycast>
          <queue name="DLQ"/>
        </anycast>
      </address>
      <address name="ExpiryQueue">
        <anycast>
          <queue name="ExpiryQueue"/>
        </anycast>
      </address>
    </addresses>
    <address-settings>
      <address-setting match="#">
        <dead-letter-address>DLQ</dead-letter-address>
        <expiry-address>ExpiryQueue</expiry-address>
        <max-delivery-attempts>10</max-delivery-attempts>
      </address-setting>
    </address-settings>"""
"""Where what cannot be delivered goes, as Artemis' ``create`` has it."""

_PERMISSIONS: Final = (
    "createAddress",
    "createNonDurableQueue",
    "createDurableQueue",
    "deleteNonDurableQueue",
    "consume",
    "send",
    "browse",
    "manage",
)
"""What the first user may do: everything, as Artemis' ``create`` grants it."""


@dataclass(frozen=True)
class _Files:
    """A file journal, and where it is."""

    journal_type: JournalType
    directory: Path

    def option(self) -> str:
        """Return what asks for such a journal."""
        (option,) = (one for one, kind in _JOURNAL_TYPES.items() if kind is self.journal_type)
        return option


_JOURNAL_TYPES: Final = {
    "--aio": JournalType.ASYNCIO,
    "--nio": JournalType.NIO,
    "--mapped": JournalType.MAPPED,
}
"""Artemis' options of ``create``."""


@dataclass(frozen=True)
class _Instance:
    """What the broker.xml of a new instance says."""

    role: Role
    name: str
    host: str
    port: int
    store: DatabaseUrl | _Files
    user: str | None
    password: str | None


@click.command(
    epilog=example(
        "orthia create /srv/orthia --url postgresql://orthia:PASSWORD@db.example/orthia",
        "orthia create /srv/orthia --url postgresql://orthia:PASSWORD@db.example/orthia --backup",
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
    help=f"Port of the acceptor.  [default: {DEFAULT_PORTS[Role.LIVE]} live,"
    f" {DEFAULT_PORTS[Role.BACKUP]} backup]",
)
@click.option("--user", help="Require a login, with this one user; the password is asked for.")
@click.option("--password", envvar="ORTHIA_PASSWORD", help="The user's; or set ORTHIA_PASSWORD.")
@click.option(
    "--allow-anonymous",
    is_flag=True,
    help="Require no login, although --host can be reached from elsewhere.",
)
@click.option("--force", is_flag=True, help="Overwrite the broker.xml that is there.")
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
    *,
    backup: bool,
    allow_anonymous: bool,
    force: bool,
) -> None:
    """Create a node's DIRECTORY: etc/broker.xml, and data/ for what it writes.

    Passwords are masked in the file, which only its owner may read.
    """
    if user is None and host not in {DEFAULT_HOST, "localhost", "::1"} and not allow_anonymous:
        raise click.UsageError(
            f"Anybody who reaches {host} could send and consume: give --user NAME, or"
            " --allow-anonymous if that is meant."
        )
    if url is not None and journal_type is not None:
        raise click.UsageError("Messages are in a database (--url) or in files: not in both.")
    if data is not None and journal_type is None:
        raise click.UsageError("--data is for messages in files: add --aio, --nio or --mapped.")
    directory = directory.absolute()
    target = directory / "etc" / "broker.xml"
    if target.exists() and not force:
        raise ConfigurationError(f"{target} exists; add --force to overwrite it")
    if user is not None and password is None:
        password = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    role = Role.BACKUP if backup else Role.LIVE
    own_data = directory / "data"
    instance = _Instance(
        role=role,
        name=name or role.value,
        host=host,
        port=port or DEFAULT_PORTS[role],
        store=_Files(journal_type, (data or own_data).absolute())
        if journal_type is not None
        else url or DatabaseUrl.parse(f"jdbc:sqlite:{own_data / DATABASE_FILE}"),
        user=user,
        password=password,
    )
    _write(target, own_data, _document(instance))
    load(target)  # a file this command wrote and `run` refuses would be a poor start
    _tell_what_next(instance, target)


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


def _document(instance: _Instance) -> str:
    role = "primary" if instance.role is Role.LIVE else "backup"
    host = f"[{instance.host}]" if ":" in instance.host else instance.host
    return f"""<?xml version="1.0" encoding="UTF-8"?>
<!-- Every element is explained in the manual; check changes with: orthia check FILE -->
<configuration xmlns="urn:activemq">
  <core xmlns="urn:activemq:core">
    <name>{escape(instance.name)}</name>
{_store(instance.store)}
    <ha-policy>
      <shared-store>
        <{role}>
          <failover-on-shutdown>true</failover-on-shutdown>
        </{role}>
      </shared-store>
    </ha-policy>
    <acceptors>
      <acceptor name="stomp">tcp://{escape(host)}:{instance.port}?protocols=STOMP</acceptor>
    </acceptors>
{_security(instance)}
{_UNDELIVERABLE}
    <failover-log-directory xmlns="urn:orthia">data/log</failover-log-directory>
  </core>
</configuration>
"""


def _store(store: DatabaseUrl | _Files) -> str:
    """Return the store's elements."""
    return _file_store(store) if isinstance(store, _Files) else _database_store(store)


def _file_store(files: _Files) -> str:
    return f"""    <store>
      <file-store/>
    </store>
    <journal-type>{files.journal_type.value}</journal-type>
    <journal-directory>{escape(str(files.directory / "journal"))}</journal-directory>
    <bindings-directory>{escape(str(files.directory / "bindings"))}</bindings-directory>"""


def _database_store(url: DatabaseUrl) -> str:
    """Return the element, the URL's password in an element of its own, masked."""
    bare, password = split_password(url)
    lines = [f"<jdbc-connection-url>{escape(bare)}</jdbc-connection-url>"]
    if password is not None:
        lines.append(f"<jdbc-password>{mask(password)}</jdbc-password>")
    inner = "\n".join(f"        {line}" for line in lines)
    return f"    <store>\n      <database-store>\n{inner}\n      </database-store>\n    </store>"


def _security(instance: _Instance) -> str:
    if instance.user is None:
        return "    <security-enabled>false</security-enabled>"
    user = quoteattr(instance.user)
    password = quoteattr(mask(instance.password or ""))
    permissions = "\n".join(
        f'        <permission type="{kind}" roles="amq"/>' for kind in _PERMISSIONS
    )
    return f"""    <security-enabled>true</security-enabled>
    <users xmlns="urn:orthia">
      <user name={user} password={password} roles="amq"/>
    </users>
    <security-settings>
      <security-setting match="#">
{permissions}
      </security-setting>
    </security-settings>"""


def _tell_what_next(instance: _Instance, target: Path) -> None:
    click.echo(f"created {target}")
    click.echo("next:")
    click.echo(f"  orthia check {target}")
    click.echo(f"  orthia run --config {target}")
    if instance.role is Role.LIVE:
        other = f"{target.parents[1]}-backup"
        store = instance.store
        if isinstance(store, _Files):
            same = f"{store.option()} --data {store.directory}"
        else:
            same = f"--url '{store}'"
        click.echo(f"  orthia create {other} --backup {same}")
    else:
        click.echo(f"  orthia status --config {target}")
