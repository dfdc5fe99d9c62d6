"""``backup``: a backup node without a broker.xml."""

from typing import Any

import click

from orthia.broker.cli.group import example
from orthia.broker.cli.node_options import node_options, run_by_options
from orthia.broker.cli.privacy import private_files
from orthia.broker.node.logs import LogFormat
from orthia.config.settings import (
    Role,
)


@click.command(
    epilog=example("orthia backup --url postgresql://orthia@db.example/orthia --name node-b")
)
@node_options
@private_files
def backup(log_format: str, *, verbose: bool, **options: Any) -> None:
    """Run a backup node without writing a broker.xml first.

    It opens no port until it takes over. Options win over the --config file.
    """
    run_by_options(Role.BACKUP, options, LogFormat(log_format), verbose=verbose)
