"""``live``: a live node without a broker.xml."""

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
    epilog=example("orthia live --url postgresql://orthia@db.example/orthia --name node-a")
)
@node_options
@private_files
def live(log_format: str, *, verbose: bool, **options: Any) -> None:
    """Run a live node without writing a broker.xml first.

    Options win over the --config file. Without either, the store is an SQLite file in the data
    directory, clients come from this host only, and need no password.
    """
    run_by_options(Role.LIVE, options, LogFormat(log_format), verbose=verbose)
