"""How commands reach the live node: by its HTTP API, where and as whom its options say."""

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
from orthia.broker.cli.settings_options import StoreOptions, properties_option
from orthia.broker.node.exit_codes import ExitCode, Unavailable
from orthia.config.errors import ConfigurationError, OrthiaError
from orthia.config.parts import Part
from orthia.config.settings import HealthSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

    # Loaded where a node is asked: --help asks none.
    from orthia.broker.client.management import ManagementAddress, ManagementClient

_BESIDE: Final = 1
"""`orthia create` gives a backup the port after that of a live node on the same host."""
_WILDCARDS: Final[Mapping[str, str]] = {"0.0.0.0": DEFAULT_HOST, "::": "::1"}  # noqa: S104 - to connect
_Command = TypeVar("_Command", bound=Callable[..., Any])


@dataclass(frozen=True)
class NodeOptions:
    """Which node is asked, and as whom, as the command line says it."""

    management: "tuple[ManagementAddress, ...]"
    config_file: Path | None
    properties: Mapping[str, str]
    user: str | None
    password: str | None

    @property
    def is_given(self) -> bool:
        """Whether the command line says where a node is."""
        return bool(self.management) or self.config_file is not None

    def addresses(self) -> "tuple[ManagementAddress, ...]":
        """Return where the nodes serve HTTP; raises ConfigurationError."""
        from orthia.broker.client.management import ManagementAddress

        if self.management:
            return self.management
        if self.config_file is not None:
            return (self._of_file(self.config_file),)
        port = HealthSettings.port
        return tuple(ManagementAddress(DEFAULT_HOST, one) for one in (port, port + _BESIDE))

    def _of_file(self, file: Path) -> "ManagementAddress":
        from orthia.broker.client.management import ManagementAddress
        from orthia.config.loader import load  # loads the parser of XML

        health = load(file, system_properties=self.properties, part=Part.HTTP).health
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
        return ManagementAddress(_WILDCARDS.get(health.host, health.host), health.port)

    @cached_property
    def client(self) -> "ManagementClient":
        """What asks the live node; asks for a password at a terminal. Raises ConfigurationError."""
        from orthia.broker.client.management import ManagementClient

        addresses, password = self.addresses(), self.password
        if self.user is not None and password is None and sys.stdin.isatty():
            password = ask_password(confirm=False)
        return ManagementClient(addresses, self.user, password)

    def command(self, words: str) -> str:
        """Return ``words`` as they are typed to ask the same node as the same user."""
        typed = [program(), words]
        typed += [f"--management {one}" for one in self.management]
        if self.config_file is not None and not self.management:
            typed.append(f"--config {quote(str(self.config_file))}")
            typed += [f"-D {quote(f'{name}={value}')}" for name, value in self.properties.items()]
        if self.user is not None:
            typed.append(f"--user {quote(self.user)}")
        return " ".join(typed)

    def of_store(self, store: StoreOptions) -> "NodeOptions":
        """Return the options with the file of a command that has those of a store."""
        return replace(self, config_file=store.config_file, properties=store.system_properties)

    @property
    def status_command(self) -> str:
        """How one sees which node is live."""
        file = "broker.xml" if self.config_file is None else quote(str(self.config_file))
        return f"`{program()} status --config {file}`"


def node_options(command: _Command) -> _Command:
    """Give ``command`` the options of a live node; it gets them as ``node: NodeOptions``."""
    result: _Command = _config_option(properties_option(_node_options(command)))
    return result


def _node_options(command: _Command) -> Any:
    @wraps(command)
    def with_node(
        *args: Any,
        management: "tuple[ManagementAddress, ...]",
        user: str | None,
        password: str | None,
        config_file: Path | None = None,
        properties: tuple[tuple[str, str], ...] = (),
        **kwargs: Any,
    ) -> Any:
        node = NodeOptions(management, config_file, dict(properties), user, password)
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
    metavar="http://HOST:PORT",
    multiple=True,
    callback=_read_address,
    help="Where a node serves HTTP; give both nodes of a pair, and the live one is asked."
    f"  [default: that of --config, else {DEFAULT_HOST}:{HealthSettings.port} and"
    f" {HealthSettings.port + _BESIDE}]",
)
_config_option = click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The broker.xml of the live node, on its own host; its <health> says where it serves"
    " HTTP.",
)
_LOGIN = (
    click.option("--user", help="Login, when security is enabled."),
    click.option(
        "--password",
        envvar="ORTHIA_PASSWORD",
        callback=seen_on_command_line("set ORTHIA_PASSWORD, or type it when asked"),
        help="Password. Better in the environment, as ORTHIA_PASSWORD, or typed when asked.",
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
    from orthia.broker.client.management import ManagementRefused, ManagementUnreachable

    if isinstance(error, ManagementUnreachable):
        tried = "\n".join(f"  {where}: {why}" for where, why in error.reasons.items())
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
        if node.user is None:
            return ManagementRefused(
                error.status,
                f"the node at {live} asks for a login: add --user NAME; the password is taken from"
                " ORTHIA_PASSWORD, or typed when asked",
            )
        return ManagementRefused(
            error.status, f"the node at {live} refuses user {node.user!r}: {error}"
        )
    return error


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
