"""The root command ``orthia`` and all its commands."""

import click

from broker.cli.configuration import check, mask
from broker.cli.data import data
from broker.cli.demo import demo
from broker.cli.docs import docs
from broker.cli.failover_log import failover_log
from broker.cli.group import OrthiaGroup, example
from broker.cli.instance import create
from broker.cli.messages import consume, produce
from broker.cli.nodes import backup, live, run
from broker.cli.pair import pair
from broker.cli.pipeline import pipeline
from broker.cli.queues import queue
from broker.cli.schema import db
from broker.cli.status import status


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
