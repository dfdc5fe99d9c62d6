"""The root command ``orthia`` and the names of all its commands."""

from collections.abc import Mapping
from importlib import import_module
from typing import Final

import click

from orthia.broker.cli.group import OrthiaGroup, example
from orthia.broker.cli.version import installed_version

COMMANDS: Final[Mapping[str, str]] = {
    "address": "Look at the addresses of the live node, create, pause, purge and delete them.",
    "backup": "Run a backup node without writing a broker.xml first.",
    "check": "Validate a broker.xml and show every setting in effect, passwords hidden.",
    "completion": "Print what makes a SHELL complete commands and options.",
    "connection": "Look at the clients of the live node, and disconnect them.",
    "consume": "Receive messages and acknowledge each, through failovers.",
    "consumer": "Look at consumers of the live node, and end them.",
    "create": "Create a node's DIRECTORY: etc/broker.xml, and data/ for what it writes.",
    "data": "Look after what the journal has stored: its files, and transactions in doubt.",
    "db": "Look after the tables in the database.",
    "demo": "Kill -9 a live node under load, and show that its backup lost nothing.",
    "docs": "Show a PAGE of this version's documentation; without PAGE, which there are.",
    "failover": "Hand over from the live node to the backup that waits, and say how long nobody"
    " served.",
    "failover-log": "Print the failover events of all nodes, oldest first, by the database's"
    " clock.",
    "job": "Look at purges, moves and retries, stop them and let interrupted ones go on.",
    "live": "Run a live node without writing a broker.xml first.",
    "mask": "Print a password as ENC(...) for a broker.xml.",
    "message": "Look at a message, delete it, or send one.",
    "pair": "Run a live node and a backup until Ctrl-C, with their logs side by side.",
    "pipeline": "Export, audit and analyse journals and failover logs on Spark.",
    "produce": "Send numbered messages, each with a receipt, through failovers.",
    "queue": "Look at queues, create, update, pause, purge, move, retry and delete them.",
    "run": "Run the node that a broker.xml describes; its ha-policy says whether live or backup.",
    "scheduled": "Look at messages that are to be delivered later, and cancel them.",
    "status": "Show which node is live, until when by the database's clock, and whether a backup"
    " waits.",
    "transactions": "Look at transactions, and decide those in doubt, on the live node or in its"
    " store.",
    "user": "Add, change and remove users in a node's files.",
}
"""Commands with their summaries, the first sentence of their help: a listing loads no command.

Each is the function in the module of its name, with _ for -.
"""

_MEANT: Final[Mapping[str, str]] = {
    "browser": "`orthia queue browse QUEUE` shows its messages",
    "browse": "`orthia queue browse QUEUE` shows its messages",
    "purge": "`orthia queue purge QUEUE` deletes its messages",
    "producer": "`orthia produce` sends messages",
    "transfer": "`orthia queue move QUEUE TARGET` moves messages within a pair",
    "dstat": "`orthia queue list` shows how much is in each queue",
    "bstat": "`orthia queue list` shows how much is in each queue, /metrics the rest",
    "stop": "a node ends by SIGTERM, as from Ctrl-C, `kill PID` or `systemctl stop`",
    "kill": "a node ends at once by `kill -9 PID`; its backup takes over",
    "upgrade": "`orthia db upgrade` brings the tables up to date",
    "encrypt": "`orthia mask` prints a password as ENC(...)",
    "help": "`orthia --help`, and `orthia docs`",
}
"""What the command lines of Artemis and Classic call otherwise."""


class Orthia(OrthiaGroup):
    """Loads only the requested command, so that a node starts sooner."""

    def load(self, *names: str) -> None:
        """Load those of the names that are commands."""
        for name in names:
            if name in COMMANDS and name not in self.commands:
                function = name.replace("-", "_")
                module = import_module(f"orthia.broker.cli.{function}")
                self.add_command(getattr(module, function))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command, loaded; all are where it is none, to say which is meant."""
        if cmd_name not in self.commands:
            self.load(*([cmd_name] if cmd_name in COMMANDS else COMMANDS))
        return super().get_command(ctx, cmd_name)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click calls it so
        """Return the names of all, without loading them."""
        return sorted({*COMMANDS, *self.commands})

    def summaries(self, ctx: click.Context) -> list[tuple[str, str]]:  # noqa: ARG002 - as above
        """Return names and summaries, without loading the commands."""
        return list(COMMANDS.items())


def _print_version(ctx: click.Context, _: click.Parameter, value: bool) -> None:  # noqa: FBT001
    if value and not ctx.resilient_parsing:
        click.echo(f"orthia {installed_version()}")
        ctx.exit()


@click.group(
    cls=Orthia,
    meant=_MEANT,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=example("orthia pair", "orthia produce --destination /queue/orders --count 1000"),
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Show the version and exit.",
)
def orthia() -> None:
    """A message broker that stays upright: live and backup on one SQL database."""
