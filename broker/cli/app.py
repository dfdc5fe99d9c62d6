"""The root command ``orthia`` and the names of all its commands."""

from importlib import import_module
from typing import Final

import click

from orthia.broker.cli.group import OrthiaGroup, example

COMMANDS: Final = (
    "create",
    "run",
    "live",
    "backup",
    "pair",
    "status",
    "failover-log",
    "queue",
    "produce",
    "consume",
    "check",
    "db",
    "data",
    "mask",
    "user",
    "demo",
    "docs",
    "pipeline",
)
"""Each is called as the function in the module of its name, with _ for -."""


class Orthia(OrthiaGroup):
    """Loads the command that is wanted and no other: a node starts the sooner."""

    def load(self, *names: str) -> None:
        """Load those of the names that are commands."""
        for name in names:
            if name in COMMANDS and name not in self.commands:
                function = name.replace("-", "_")
                module = import_module(f"orthia.broker.cli.{function}")
                self.add_command(getattr(module, function))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command, loaded; all are where it is none, to say which is meant."""
        self.load(*([cmd_name] if cmd_name in COMMANDS else COMMANDS))
        return super().get_command(ctx, cmd_name)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Load all and return their names."""
        self.load(*COMMANDS)
        return super().list_commands(ctx)


@click.group(
    cls=Orthia,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=example("orthia pair", "orthia produce --destination /queue/orders --count 1000"),
)
@click.version_option(package_name="orthia", prog_name="orthia", message="%(prog)s %(version)s")
def orthia() -> None:
    """A message broker that stays upright: live and backup on one SQL database."""
