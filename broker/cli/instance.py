"""The ``broker.xml`` of a node that ``orthia create`` makes."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

from orthia.broker.cli.settings_options import PASSWORD_VARIABLE, split_password
from orthia.config.reading import PERMISSIONS_ASKED_FOR
from orthia.config.secrets import codec_key, is_masked, mask
from orthia.config.settings import Role
from orthia.config.store_settings import JournalType
from orthia.config.urls import DatabaseUrl

FIRST_ROLE: Final = "amq"
"""Of the first user; Artemis' default."""

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

JOURNAL_TYPES: Final = {
    "--aio": JournalType.ASYNCIO,
    "--nio": JournalType.NIO,
    "--mapped": JournalType.MAPPED,
}
"""Artemis' options of ``create``."""


@dataclass(frozen=True)
class Files:
    """A file journal, and where it is."""

    journal_type: JournalType
    directory: Path

    def option(self) -> str:
        """Return what asks for such a journal."""
        (option,) = (one for one, kind in JOURNAL_TYPES.items() if kind is self.journal_type)
        return option


@dataclass(frozen=True)
class Instance:
    """What the broker.xml of a new instance says."""

    role: Role
    name: str
    host: str
    port: int
    store: DatabaseUrl | Files
    user: str | None
    health_port: int | None
    """Where it serves probes and metrics, to this host alone; None is nowhere."""
    has_audit_log: bool

    def database_password(self) -> str | None:
        """Return the database's password: the URL's, or the environment's for one that has none."""
        if isinstance(self.store, Files) or self.store.sqlite_path is not None:
            return None
        return split_password(self.store)[1] or os.environ.get(PASSWORD_VARIABLE) or None


def document(instance: Instance) -> str:
    """Return the text of the file."""
    role = "primary" if instance.role is Role.LIVE else "backup"
    host = in_address(instance.host)
    return f"""<?xml version="1.0" encoding="UTF-8"?>
<!-- Every element is explained in the manual; check changes with: orthia check FILE -->
<configuration xmlns="urn:activemq">
  <core xmlns="urn:activemq:core">
    <name>{escape(instance.name)}</name>
{_store(instance)}
    <ha-policy>
      <shared-store>
        <{role}>
          <failover-on-shutdown>true</failover-on-shutdown>
        </{role}>
      </shared-store>
    </ha-policy>
    <acceptors>
      <acceptor name="stomp">tcp://{escape(host)}:{instance.port}?protocols=STOMP,AMQP</acceptor>
    </acceptors>
{_security(instance)}
{_UNDELIVERABLE}
    <failover-log-directory xmlns="urn:orthia">data/log</failover-log-directory>{_watched(instance)}
  </core>
</configuration>
"""


def _watched(instance: Instance) -> str:
    """Return the elements of the audit log, and of the endpoint of probes and metrics."""
    audit = '<audit-log-directory xmlns="urn:orthia">data/log</audit-log-directory>'
    health = f'<health xmlns="urn:orthia"><port>{instance.health_port}</port></health>'
    wanted = ((audit, instance.has_audit_log), (health, instance.health_port is not None))
    return "".join(f"\n    {element}" for element, is_wanted in wanted if is_wanted)


def _store(instance: Instance) -> str:
    """Return the store's elements."""
    store = instance.store
    if isinstance(store, Files):
        return _file_store(store)
    return _database_store(store, instance.database_password())


def _file_store(files: Files) -> str:
    return f"""    <store>
      <file-store/>
    </store>
    <journal-type>{files.journal_type.value}</journal-type>
    <journal-directory>{escape(str(files.directory / "journal"))}</journal-directory>
    <bindings-directory>{escape(str(files.directory / "bindings"))}</bindings-directory>"""


def _database_store(url: DatabaseUrl, password: str | None) -> str:
    """Return the element, the password in an element of its own, masked."""
    bare, _ = split_password(url)
    lines = [f"<jdbc-connection-url>{escape(bare)}</jdbc-connection-url>"]
    if password is not None:
        lines.append(f"<jdbc-password>{escape(_masked(password))}</jdbc-password>")
    inner = "\n".join(f"        {line}" for line in lines)
    return f"    <store>\n      <database-store>\n{inner}\n      </database-store>\n    </store>"


def _security(instance: Instance) -> str:
    if instance.user is None:
        return "    <security-enabled>false</security-enabled>"
    permissions = "\n".join(
        f'        <permission type="{kind}" roles="{FIRST_ROLE}"/>'
        for kind in sorted(PERMISSIONS_ASKED_FOR)
    )
    return f"""    <security-enabled>true</security-enabled>
    <login-modules xmlns="urn:orthia">
      <properties-login-module/>
    </login-modules>
    <security-settings>
      <security-setting match="#">
{permissions}
      </security-setting>
    </security-settings>"""


def _masked(password: str) -> str:
    """Return a password as the file has it; one that comes masked, with whatever key, stays so."""
    return password if is_masked(password) else mask(password, codec_key({}, os.environ))


def in_address(host: str) -> str:
    """Return a host as it stands before a port."""
    return f"[{host}]" if ":" in host else host
