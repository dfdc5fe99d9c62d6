"""``pipeline``: journals and failover logs on Spark."""

import click

from orthia.broker.cli.group import CommandGroup, example
from orthia.broker.cli.pipeline.audit import audit
from orthia.broker.cli.pipeline.export import export
from orthia.broker.cli.pipeline.failovers import failovers
from orthia.broker.cli.pipeline.import_ import import_
from orthia.broker.cli.pipeline.migrate import migrate
from orthia.broker.cli.pipeline.py_files import py_files
from orthia.broker.cli.pipeline.replay import replay
from orthia.broker.cli.pipeline.stream import stream
from orthia.broker.cli.pipeline.traffic import traffic


@click.group(
    cls=CommandGroup,
    epilog=example(
        "orthia pipeline export --config broker.xml --to exported",
        "orthia pipeline audit --from exported",
    ),
)
def pipeline() -> None:
    """Export, audit and analyse journals and failover logs on Spark.

    Needs Orthia's extra `pipeline` (see `orthia docs installation`) and Java 17 or newer. Runs on
    this machine unless --master names a cluster. Nothing here needs a node to run, and nothing
    disturbs one that does.
    """


for command in (export, import_, audit, failovers, traffic, replay, migrate, stream, py_files):
    pipeline.add_command(command)
