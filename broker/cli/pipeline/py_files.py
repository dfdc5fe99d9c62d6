"""``pipeline py-files``: the archive that brings Orthia to executors that do not have it."""

from pathlib import Path

import click

from orthia.broker.cli.group import example
from orthia.broker.cli.pipeline.failures import in_one_line
from orthia.pipeline.requirements import require_extra


@click.command(
    name="py-files",
    epilog=example(
        "orthia pipeline py-files orthia.zip",
        "orthia pipeline audit --config broker.xml --master spark://master.example:7077 \\",
        "    --conf spark.submit.pyFiles=orthia.zip",
        "spark-submit --py-files orthia.zip job.py",
    ),
)
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path))
def py_files(path: Path) -> None:
    """Write Orthia into an archive that Spark sends to the executors with a job.

    The executors need no Orthia then, but the packages that it imports there: `orthia docs
    pipeline` names them. Replaces PATH.
    """
    with in_one_line(verbose=False):
        require_extra()
        from orthia.pipeline.jobs.outputs import whole_file
        from orthia.pipeline.py_files import write_archive

        with whole_file(path) as file:
            count = write_archive(file)
        click.echo(f"{path}: {count} files")
