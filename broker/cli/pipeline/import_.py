"""``pipeline import``: an export becomes a store again."""

from pathlib import Path

import click

from orthia.broker.cli.group import example
from orthia.broker.cli.opening import opened
from orthia.broker.cli.pipeline.directories import Directory
from orthia.broker.cli.pipeline.options import SparkOptions, session, spark_options
from orthia.broker.cli.pipeline.output import show
from orthia.broker.cli.rendering import print_json
from orthia.broker.cli.settings_options import StoreOptions, store_options
from orthia.broker.node.exit_codes import ExitCode
from orthia.pipeline.errors import WrongInput
from orthia.pipeline.requirements import require_extra
from orthia.pipeline.sources.store import PASSWORD_VARIABLE, StoreReference

_NO_FILES = (
    "import fills a database: to bring an export into files, send it to a pair that runs on them"
    " with `orthia pipeline replay`"
)


@click.command(
    "import",
    epilog=example(
        "orthia pipeline export --config old/broker.xml --to backup",
        "orthia pipeline import --from backup --config new/broker.xml",
    ),
)
@click.option(
    "--from",
    "directory",
    required=True,
    type=Directory(),
    metavar="DIRECTORY",
    help="What `orthia pipeline export` wrote, as Parquet.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@store_options
@spark_options
def import_(store: StoreOptions, directory: str, spark_on: SparkOptions, *, as_json: bool) -> None:
    """Bring an export back into an empty database, and compare it with the files.

    Messages keep their ids, order, bodies and queues, and the history its times. No node may run on
    the database, which must be empty; its tables are made. Exit code 1 if what arrived is not what
    the export has: then empty the database and begin again.
    """
    if "://" not in directory and not Path(directory, "messages").is_dir():
        raise WrongInput(f"{directory} has no messages: it is no Parquet export")
    settings = store.resolve(instead=_NO_FILES)
    require_extra()
    with opened(settings, needs_schema=False):
        reference, password = StoreReference.of(settings)
    with session(spark_on, {} if password is None else {PASSWORD_VARIABLE: password}) as spark:
        from orthia.pipeline.jobs.restore import restore
        from orthia.pipeline.sources.inputs import ExportInputs
        from orthia.pipeline.sources.store import Endpoint

        export = ExportInputs(spark, directory)
        contents = export.contents()
        brought = restore(spark, export, Endpoint(settings, reference), say=spark_on.say)
    rows = [vars(one) for one in brought]
    if as_json:
        print_json(
            {
                "tables": rows,
                "damaged": contents.damaged,
                "beside_a_node": contents.beside_a_node,
            }
        )
    else:
        show("Brought back, and equal to the export", rows, ("table", "rows", "left_out"))
    if contents.beside_a_node:
        click.echo(
            "orthia: a node may have served while the export was written: a message that moved"
            " from queue to queue meanwhile may be missing",
            err=True,
        )
    if contents.damaged:
        click.echo(
            f"orthia: left out {len(contents.damaged)} large messages whose bodies were damaged"
            f" in the old store: seq {', '.join(map(str, contents.damaged[:20]))}",
            err=True,
        )
        click.get_current_context().exit(ExitCode.INCOMPLETE)
