"""How commands reach the live node: by its HTTP API, where and as whom its options say."""

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from http import HTTPStatus
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from orthia.broker.cli.node_options import DEFAULT_HOST
from orthia.broker.cli.privacy import ask_password, seen_on_command_line
from orthia.broker.cli.rendering import program
from orthia.broker.cli.settings_options import (
    PASSWORD_VARIABLE,
    URL,
    StoreOptions,
    properties_option,
    split_password,
)
from orthia.broker.node.exit_codes import ExitCode, Unavailable
from orthia.config.errors import ConfigurationError, OrthiaError
from orthia.config.parts import Part
from orthia.config.settings import HealthSettings
from orthia.config.urls import DatabaseUrl

if TYPE_CHECKING:
    from collections.abc import Iterator

    # Loaded where a node is asked: --help asks none.
    from orthia.broker.cli.finding import Found
    from orthia.broker.client.management import ManagementAddress, ManagementClient

_BESIDE: Final = 1
"""`orthia create` gives a backup the port after that of a live node on the same host."""
_WILDCARDS: Final[Mapping[str, str]] = {"0.0.0.0": DEFAULT_HOST, "::": "::1"}  # noqa: S104 - to connect
_Command = TypeVar("_Command", bound=Callable[..., Any])
_Result = TypeVar("_Result")


_NOWHERE: Final = StoreOptions(None, {}, None, {})


@dataclass(frozen=True)
class NodeOptions:
    """Which node is asked, and as whom, as the command line says it."""

    management: "tuple[ManagementAddress, ...]" = ()
    store: StoreOptions = _NOWHERE
    """The pair, of which the live node is asked; where ``management`` does not say which."""
    user: str | None = None
    password: str | None = None
    trust_store: Path | None = None
    key_store: Path | None = None

    @property
    def is_given(self) -> bool:
        """Whether the command line says where a node is."""
        return bool(self.management) or self.store.is_given

    @property
    def config_file(self) -> Path | None:
        """The ``broker.xml`` of a node, if the command line names one."""
        return self.store.config_file

    def addresses(self) -> "tuple[ManagementAddress, ...]":
        """Return where the nodes serve HTTP; raises ConfigurationError, StoreError, Unavailable."""
        from orthia.broker.client.management import ManagementAddress

        if self.management:
            return self.management
        if self.store.is_given:
            return self._of_store()
        port = HealthSettings.port
        return tuple(ManagementAddress(DEFAULT_HOST, one) for one in (port, port + _BESIDE))

    @cached_property
    def found(self) -> "Found":
        """What the store says of its nodes; raises ConfigurationError, StoreError, Unavailable."""
        from orthia.broker.cli.finding import find

        return find(self.store)

    @property
    def was_found(self) -> bool:
        """Whether the store has said where its nodes are."""
        return "found" in self.__dict__

    def _of_store(self) -> "tuple[ManagementAddress, ...]":
        """Return what the nodes publish; beside it what the file says, for one that does not."""
        file = self.config_file
        try:
            addresses, has_live = self.found.addresses, self.found.has_live
        except OrthiaError:
            if file is None:
                raise
            return (self._of_file(file),)
        if file is not None and not has_live and self.store.url is None:
            try:
                addresses = tuple(dict.fromkeys((*addresses, self._of_file(file))))
            except ConfigurationError:
                if not addresses:
                    raise
        if not addresses:
            raise Unavailable("\n".join(["no node of this pair can be asked:", *self.found.notes]))
        return addresses

    def _of_file(self, file: Path) -> "ManagementAddress":
        from orthia.broker.client.management import ManagementAddress
        from orthia.config.loader import load  # loads the parser of XML

        properties = self.store.system_properties
        health = load(file, system_properties=properties, part=Part.HTTP).health
        if health is None:
            raise ConfigurationError(
                f"{file} has no <health>, so its node serves no HTTP: add"
                f' <health xmlns="urn:orthia"><port>{HealthSettings.port}</port></health> and'
                " restart the node, or name another node by --management http://HOST:PORT"
            )
        if not health.port:
            raise ConfigurationError(
                f"{file} has port 0 in <health>, which is any free one: name the one that the"
                " node's log says by --management http://HOST:PORT"
            )
        if health.advertised_url is not None:
            return ManagementAddress.parse(health.advertised_url)
        host = _WILDCARDS.get(health.host, health.host)
        return ManagementAddress(host, health.port, health.tls is not None)

    @cached_property
    def client(self) -> "ManagementClient":
        """What asks the live node; asks for a password at a terminal. Raises ConfigurationError."""
        from orthia.broker.client.management import ManagementClient
        from orthia.broker.client.tls import ClientTls
        from orthia.config.acceptor_tls import StoreFile

        addresses, password = self.addresses(), self.password
        tls = ClientTls(
            None if self.trust_store is None else StoreFile(self.trust_store),
            None if self.key_store is None else StoreFile(self.key_store),
        )
        if self.user is not None and password is None and sys.stdin.isatty():
            password = ask_password(confirm=False)
        return ManagementClient(addresses, self.user, password, tls)

    @property
    def has_password(self) -> bool:
        """Whether there is something to log in with: it is asked for at a terminal."""
        return self.password is not None or self.key_store is not None or sys.stdin.isatty()

    def command(self, words: str) -> str:
        """Return ``words`` as they are typed to ask the same node as the same user."""
        typed = [program(), words]
        typed += [f"--management {one}" for one in self.management]
        if self.config_file is not None and not self.management:
            typed.append(f"--config {quote(str(self.config_file))}")
            given = self.store.system_properties
            typed += [f"-D {quote(f'{name}={value}')}" for name, value in given.items()]
        if self.store.url is not None and not self.management:
            typed.append(f"--url {quote(split_password(self.store.url)[0])}")
        typed += [
            f"{option} {quote(str(file))}"
            for option, file in (("--ca", self.trust_store), ("--key-store", self.key_store))
            if file is not None
        ]
        if self.user is not None:
            typed.append(f"--user {quote(self.user)}")
        return " ".join(typed)

    def of_store(self, store: StoreOptions) -> "NodeOptions":
        """Return the options with the store of a command that has more options of one."""
        return replace(self, store=store)

    @property
    def status_command(self) -> str:
        """How one sees which node is live."""
        if self.store.url is not None:
            return f"`{program()} status --url {quote(split_password(self.store.url)[0])}`"
        file = "broker.xml" if self.config_file is None else quote(str(self.config_file))
        return f"`{program()} status --config {file}`"


def node_options(command: _Command) -> _Command:
    """Give ``command`` the options of a live node; it gets them as ``node: NodeOptions``."""
    result: _Command = _config_option(_url_option(properties_option(_node_options(command))))
    return result


def _node_options(command: _Command) -> Any:
    @wraps(command)
    def with_node(
        *args: Any,
        management: "tuple[ManagementAddress, ...]",
        user: str | None,
        password: str | None,
        trust_store: Path | None,
        key_store: Path | None,
        config_file: Path | None = None,
        properties: tuple[tuple[str, str], ...] = (),
        url: DatabaseUrl | None = None,
        **kwargs: Any,
    ) -> Any:
        of_database = os.environ.get(PASSWORD_VARIABLE)
        overrides = {"jdbc_password": of_database} if of_database else {}
        store = StoreOptions(config_file, dict(properties), url, overrides)
        node = NodeOptions(management, store, user, password, trust_store, key_store)
        with explained(node):
            return command(*args, node=node, **kwargs)

    decorated: Any = with_node
    for option in (*reversed(_LOGIN), _management_option):
        decorated = option(decorated)
    return decorated


def live_options(command: _Command) -> _Command:
    """Give ``command``, which has the options of a store, those of a live node that has it.

    It gets them as ``node``, a NodeOptions without a file: ``of_store`` adds the store's.
    """
    result: _Command = _node_options(command)
    return result


def _read_address(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> "tuple[ManagementAddress, ...]":
    if not values:
        return ()
    from orthia.broker.client.management import ManagementAddress

    try:
        return tuple(ManagementAddress.parse(value) for value in values)
    except ValueError as error:
        raise click.BadParameter(f"{error}.", ctx, param) from None


_management_option = click.option(
    "--management",
    metavar="http[s]://HOST:PORT",
    multiple=True,
    callback=_read_address,
    help="Where a node serves HTTP; give both nodes of a pair, and the live one is asked."
    f"  [default: as the nodes of --config or --url publish it, else {DEFAULT_HOST}:"
    f"{HealthSettings.port} and {HealthSettings.port + _BESIDE}]",
)
_config_option = click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The broker.xml of a node: the live one is found by its store, or else by its <health>.",
)
_url_option = click.option(
    "--url",
    type=URL,
    help="JDBC or SQLAlchemy URL of the database, by which the live node is found.",
)
_LOGIN = (
    click.option("--user", help="Login, when security is enabled."),
    click.option(
        "--password",
        envvar="ORTHIA_PASSWORD",
        callback=seen_on_command_line("set ORTHIA_PASSWORD, or type it when asked"),
        help="Password. Better in the environment, as ORTHIA_PASSWORD, or typed when asked.",
    ),
    click.option(
        "--ca",
        "--trust-store",
        "trust_store",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Whom to trust by https: certificates, PEM or PKCS12.  [default: this system's]",
    ),
    click.option(
        "--key-store",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Certificate and key to log in with by https, PEM or PKCS12.",
    ),
)


@contextmanager
def explained(node: NodeOptions) -> "Iterator[None]":
    """Say of an error that the API had what to do about it."""
    try:
        yield
    except OrthiaError as error:
        told = _explained(error, node)
        if told is error:
            raise
        raise told from None


def _explained(error: OrthiaError, node: NodeOptions) -> OrthiaError:
    from orthia.broker.client.management import (
        LoginRefused,
        ManagementRefused,
        ManagementUnreachable,
    )

    if isinstance(error, LoginRefused):
        return error  # the options of the store, within these, have explained it
    if isinstance(error, ManagementUnreachable):
        tried = "\n".join(f"  {where}: {why}" for where, why in error.reasons.items())
        if node.was_found:
            tried = "\n".join([tried, *(f"  {one}" for one in node.found.notes)])
        if error.passive:
            return Unavailable(
                f"none of these nodes is live:\n{tried}\nwhich one is, {node.status_command} says;"
                " ask it there, or from here by --management http://HOST:PORT"
            )
        where = " and ".join(map(str, error.reasons))
        return Unavailable(
            f"cannot reach the live node at {where}: is it running? {node.status_command} says so;"
            f" --management http://HOST:PORT names another place\n{tried}"
        )
    if isinstance(error, ManagementRefused) and error.status == HTTPStatus.UNAUTHORIZED:
        live = node.client.live
        if node.user is None and node.key_store is None:
            return LoginRefused(
                error.status,
                f"the node at {live} asks for a login: add --user NAME; the password is taken from"
                " ORTHIA_PASSWORD, or typed when asked",
            )
        who = f"user {node.user!r}" if node.user is not None else node.key_store
        why = "" if node.has_password else "; no password was given: set ORTHIA_PASSWORD"
        return LoginRefused(error.status, f"the node at {live} refuses {who}: {error}{why}")
    return error


def or_of_store(
    node: NodeOptions, ask: Callable[[], _Result], shown: str = "shown is"
) -> _Result | None:
    """Return what ``ask`` finds at the live node; None where the store is to be read instead.

    It says then why, and that what is ``shown`` is the store's; nothing where the store cannot be
    asked, which says so itself. Raises OrthiaError where no store is given, or the node refuses.
    """
    from orthia.broker.client.management import (
        ManagementError,
        ManagementRefused,
        ManagementUnreachable,
    )

    has_store, why = node.store.is_given, ""
    try:
        with explained(node):
            try:
                return ask()
            except ManagementUnreachable as error:
                if not has_store:
                    raise
                why = f"no live node answers: {error}"
            except ManagementRefused as error:
                asks = error.status == HTTPStatus.UNAUTHORIZED and node.user is None
                if not has_store or not asks:
                    raise
                why = f"the live node at {node.client.live} asks for a login (--user)"
    except ManagementError:
        raise
    except OrthiaError as error:
        if not has_store or node.management:
            raise
        why = "; ".join(str(error).splitlines()).replace(":;", ":") if node.was_found else ""
    if why:
        click.echo(f"orthia: {why}; {shown} what the store has", err=True)
    return None


def question(text: str, *, yes: bool) -> None:
    """Ask whether to do what cannot be undone; ends the command unless the answer is yes.

    Raises click.UsageError if nobody is there to answer.
    """
    if yes:
        return
    click.echo(f"{text} [y/N] ", err=True, nl=False)
    answer = sys.stdin.readline()
    if not answer:
        click.echo(err=True)
        raise click.UsageError(
            "Nobody answered, so nothing was done: add --yes if that is what you want."
        )
    if answer.strip().lower() not in ("y", "yes"):
        click.echo("nothing was done", err=True)
        click.get_current_context().exit(ExitCode.INCOMPLETE)


yes_option: Final = click.option("--yes", is_flag=True, help="Do it without a question.")
json_option: Final = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
