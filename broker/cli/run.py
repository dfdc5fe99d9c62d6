"""``run``: the node that a broker.xml describes."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import click

from orthia.broker.cli.group import example
from orthia.broker.cli.node_options import log_options, run_node
from orthia.broker.cli.privacy import private_files
from orthia.broker.cli.settings_options import (
    load_settings,
    properties_option,
)
from orthia.broker.cli.unusable import unusable
from orthia.broker.node.logs import LogFormat
from orthia.broker.tls.check import exposed_keys
from orthia.config.configuration_file import ConfigurationFile
from orthia.config.exposure import exposure_warnings
from orthia.config.settings import Settings


@click.command(epilog=example("orthia run /srv/orthia/etc/broker.xml -D db.host=db1"))
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The broker.xml of the node; the same as FILE.",
)
@properties_option
@log_options
@private_files
def run(
    file: Path | None,
    config_file: Path | None,
    properties: tuple[tuple[str, str], ...],
    log_format: str,
    *,
    verbose: bool,
) -> None:
    """Run the node that a broker.xml describes; its ha-policy says whether live or backup.

    The password of its database may come from the environment, as ORTHIA_JDBC_PASSWORD: that wins
    over the file's.
    """
    chosen = file or config_file
    if chosen is None or (file and config_file):
        raise click.UsageError("Say which broker.xml, once: orthia run FILE, or --config FILE.")
    configuration = ConfigurationFile(partial(_load, chosen, dict(properties)))
    run_node(
        configuration.read(), LogFormat(log_format), verbose=verbose, configuration=configuration
    )


def _load(file: Path, properties: dict[str, str], reads: Callable[[Path], None]) -> Settings:
    settings = load_settings(file, properties, unusable, reads)
    told = (*settings.warnings, *exposure_warnings(settings), *exposed_keys(settings))
    return replace(settings, warnings=told)
