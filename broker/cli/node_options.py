"""What ``run``, ``live`` and ``backup`` have in common: a node in this process, until its end."""

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from orthia.broker.cli.settings_options import (
    DATABASE_FILE,
    StoreOptions,
    apply_policy,
    policy_options,
    store_options,
)
from orthia.broker.client.connection import BrokerAddress
from orthia.broker.node.logs import LogFormat, configure
from orthia.config.addresses import UNDELIVERABLE
from orthia.config.configuration_file import ConfigurationFile
from orthia.config.exposure import exposure_warnings, is_loopback
from orthia.config.rules import check
from orthia.config.secrets import Secret, codec_key, read_secret
from orthia.config.settings import (
    AcceptorSettings,
    HaPolicy,
    HealthSettings,
    OutboxSettings,
    Role,
    Settings,
)
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.config.urls import DatabaseUrl
from orthia.config.user_files import read_operators

DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORTS: Final = {Role.LIVE: 61_613, Role.BACKUP: 61_614}
DEFAULT_DATA_DIRECTORY: Final = Path("instance")
_Command = TypeVar("_Command", bound=Callable[..., Any])


class HostPort(click.ParamType[BrokerAddress]):
    """An option that takes ``HOST:PORT``; that of a broker, ``with_tls``, a URL too."""

    name = "host:port"

    def __init__(self, *, with_tls: bool = False) -> None:
        self._with_tls = with_tls

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> BrokerAddress:
        """Read the option's text."""
        if isinstance(value, BrokerAddress):
            return value
        try:
            found = BrokerAddress.parse(str(value))
        except ValueError as error:
            self.fail(f"{error}.", param, ctx)
        if found.tls is not None and not self._with_tls:
            self.fail(f"{value!r} is not HOST:PORT.", param, ctx)
        return found


def log_options(command: _Command) -> _Command:
    """Give ``command`` --verbose and --log-format."""
    decorated: Any = click.option(
        "--verbose", "-v", is_flag=True, help="Log what only developers want to know, too."
    )(command)
    result: _Command = click.option(
        "--log-format",
        type=click.Choice([one.value for one in LogFormat]),
        default=LogFormat.TEXT.value,
        show_default=True,
        help="Lines for people, or JSON for programs.",
    )(decorated)
    return result


TOKEN_VARIABLE: Final = "ORTHIA_HEALTH_TOKEN"  # noqa: S105 - the name of one


def node_options(command: _Command) -> _Command:
    """Give ``command`` the options of a node without a broker.xml, those of its log among them."""
    decorated: Any = command
    for option in (
        click.option("--name", help="Name of the node.  [default: its role]"),
        click.option("--host", help=f"Address to listen on.  [default: {DEFAULT_HOST}]"),
        click.option(
            "--allow-anonymous",
            is_flag=True,
            help="Listen on a --host that others reach, though clients need no login.",
        ),
        click.option(
            "--port",
            type=click.IntRange(0, 65_535),
            help="Port for clients of STOMP and AMQP; 0 takes any free one."
            f"  [default: {DEFAULT_PORTS[Role.LIVE]} live, {DEFAULT_PORTS[Role.BACKUP]} backup]",
        ),
        click.option(
            "--data-dir",
            type=click.Path(path_type=Path, file_okay=False),
            default=DEFAULT_DATA_DIRECTORY,
            show_default=True,
            help=f"Failover log, and without --url the database ({DATABASE_FILE}).",
        ),
        click.option(
            "--health",
            type=HostPort(),
            help="Serve the console, the API, probes and metrics there; metrics for who has"
            " ORTHIA_HEALTH_TOKEN.",
        ),
        click.option(
            "--console-users",
            type=click.Path(path_type=Path, dir_okay=False),
            help="Who may use --health's console and API, where clients need no login: a file with"
            " lines USER = HASH, as `orthia user add` writes them.  [default: whoever reaches it]",
        ),
        click.option(
            "--outbox/--no-outbox",
            default=False,
            help="Send what applications insert into the outbox: see `orthia docs outbox`."
            "  [default: as the --config file says]",
        ),
    ):
        decorated = option(decorated)
    result: _Command = log_options(policy_options(store_options(decorated)))
    return result


def node_settings(
    role: Role,
    *,
    store: StoreOptions,
    policy: Mapping[str, bool],
    name: str | None,
    host: str | None,
    port: int | None,
    data_dir: Path,
    health: BrokerAddress | None,
    console_users: Path | None,
    allow_anonymous: bool,
    outbox: bool = False,
    reads: Callable[[Path], None] = lambda _: None,
) -> Settings:
    """Return checked settings from the options of ``live`` and ``backup``.

    ``reads`` gets the path of each file of the settings before it is opened.
    Makes the data directory; raises ConfigurationError and click.UsageError.
    """
    data_directory = data_dir.absolute()
    loaded = store.load(reads=reads)
    if loaded is None:
        if host is not None and not is_loopback(host) and not allow_anonymous:
            raise click.UsageError(
                f"Others than this host reach {host}, and without a broker.xml no login is asked"
                f" for: make one with a login, `orthia create DIRECTORY --host {host}`, or add"
                " --allow-anonymous if that is what you want."
            )
        embedded = DatabaseUrl.parse(f"jdbc:sqlite:{data_directory / DATABASE_FILE}")
        settings = _without_file(role, store.apply(None, embedded), name, data_directory)
    else:
        settings = replace(loaded, store=store.apply_to(loaded))
        settings = replace(settings, name=name or settings.name)
    if loaded is None or host is not None or port is not None:
        _refuse_to_drop_tls(loaded)
        from orthia.config.loader import NO_ACCEPTOR  # loads the parser of XML

        acceptor = AcceptorSettings(
            "stomp",
            host or DEFAULT_HOST,
            DEFAULT_PORTS[role] if port is None else port,
            ("STOMP", "AMQP"),
        )
        others = tuple(warning for warning in settings.warnings if warning != NO_ACCEPTOR)
        settings = replace(settings, acceptors=(acceptor,), warnings=others)
    if health is not None:
        given = settings.health or HealthSettings(token=_health_token())
        settings = replace(settings, health=replace(given, host=health.host, port=health.port))
    if console_users is not None:
        reads(console_users)
        settings = _with_operators(settings, console_users)
    if outbox:
        settings = replace(settings, outbox=settings.outbox or OutboxSettings())
    settings = replace(settings, ha_policy=apply_policy(settings.ha_policy, role, policy))
    told = exposure_warnings(settings)
    if store.url is not None:
        told += _of_url(settings.database_store.jdbc_connection_url)
    settings = replace(settings, warnings=(*settings.warnings, *told))
    check(settings)
    return settings


def _with_operators(settings: Settings, file: Path) -> Settings:
    if settings.security_enabled:
        raise click.UsageError(
            "--console-users is for nodes whose clients need no login: here operators are users as"
            " clients are, with roles; see `orthia user add`."
        )
    if settings.health is None:
        raise click.UsageError("--console-users needs a console to be for: add --health HOST:PORT.")
    health = replace(settings.health, operators=read_operators(file))
    return replace(settings, health=health)


def _refuse_to_drop_tls(loaded: Settings | None) -> None:
    """Refuse options by which clients would speak in the clear where the file has TLS."""
    secure = [one.name for one in loaded.acceptors if one.tls is not None] if loaded else []
    if secure:
        raise click.UsageError(
            f"--host and --port are of an acceptor without TLS, in place of {secure[0]!r} of the"
            " --config file, which has it: change the URL there."
        )


def _health_token() -> Secret | None:
    """Return the token of an endpoint that no broker.xml describes."""
    given = os.environ.get(TOKEN_VARIABLE)
    return read_secret(given, codec_key({}, os.environ)) if given else None


def _without_file(
    role: Role, store: DatabaseStoreSettings, name: str | None, data_directory: Path
) -> Settings:
    log_directory = data_directory / "log"
    log_directory.mkdir(parents=True, exist_ok=True)
    return Settings(
        name=name or role.value,
        source=None,
        store=store,
        ha_policy=HaPolicy(role),
        addresses=UNDELIVERABLE,
        security_enabled=False,
        failover_log_directory=log_directory,
    )


def _of_url(url: DatabaseUrl) -> list[str]:
    """Return what ``--url`` is to be warned of; that of a file is when it is loaded."""
    ignored = ", ".join(url.ignored_properties)
    without_meaning = [f"--url: without meaning here, so ignored: {ignored}"] if ignored else []
    return [*without_meaning, *url.warnings]


def run_by_options(
    role: Role, options: Mapping[str, Any], log_format: LogFormat, *, verbose: bool
) -> None:
    """Run the node of the options of ``live`` and ``backup``, as ``run_node`` does."""
    configuration = ConfigurationFile(
        lambda reads: node_settings(role, **{**options, "reads": reads})
    )
    run_node(configuration.read(), log_format, verbose=verbose, configuration=configuration)


def run_node(
    settings: Settings, log_format: LogFormat, *, verbose: bool, configuration: ConfigurationFile
) -> None:
    """Run a node in this process until it ends, and exit with its exit code.

    It follows the changes of the ``configuration``, of which ``settings`` were read.
    """
    # Commands that run no node need not load the broker.
    from orthia.broker.node.login_files import check_login_files
    from orthia.broker.node.node import BrokerNode
    from orthia.broker.node.restarts import this_life

    life = this_life()
    if not life.is_later:
        # What is wrong with the users is found out before the node has the live lock.
        nobody = check_login_files(settings)
        if nobody is not None:
            settings = replace(settings, warnings=(*settings.warnings, nobody))
    configure(
        log_format,
        node=settings.name,
        role=life.settings(settings).ha_policy.role.value,
        level=logging.DEBUG if verbose else logging.INFO,
    )
    click.get_current_context().exit(BrokerNode(settings, life, configuration).run())
