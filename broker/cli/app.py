"""The root command ``orthia`` and all its commands."""

import click

from orthia.broker.cli.backup import backup
from orthia.broker.cli.check import check
from orthia.broker.cli.consume import consume
from orthia.broker.cli.create import create
from orthia.broker.cli.data import data
from orthia.broker.cli.db import db
from orthia.broker.cli.demo import demo
from orthia.broker.cli.docs import docs
from orthia.broker.cli.failover_log import failover_log
from orthia.broker.cli.group import OrthiaGroup, example
from orthia.broker.cli.live import live
from orthia.broker.cli.mask import mask
from orthia.broker.cli.pair import pair
from orthia.broker.cli.pipeline import pipeline
from orthia.broker.cli.produce import produce
from orthia.broker.cli.queue import queue
from orthia.broker.cli.run import run
from orthia.broker.cli.status import status


@click.group(
    cls=OrthiaGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=example("orthia pair", "orthia produce --destination /queue/orders --count 1000"),
)
@click.version_option(package_name="orthia", prog_name="orthia", message="%(prog)s %(version)s")
def orthia() -> None:
    """A message broker that stays upright: live and backup on one SQL database."""


for command in (
    create,
    run,
    live,
    backup,
    pair,
    status,
    failover_log,
    queue,
    produce,
    consume,
    check,
    db,
    data,
    mask,
    demo,
    docs,
    pipeline,
):
    orthia.add_command(command)
