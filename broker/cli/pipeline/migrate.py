"""``pipeline migrate``: a stopped pair's store moves to another database."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Final

import click

from orthia.broker.cli.group import example
from orthia.broker.cli.pipeline.options import SparkOptions, reachable, session, spark_options
from orthia.broker.cli.pipeline.output import show
from orthia.broker.cli.rendering import print_json
from orthia.broker.cli.settings_options import (
    TARGET_PASSWORD_VARIABLE,
    URL,
    StoreOptions,
    store_options,
)
from orthia.config import load
from orthia.config.secrets import codec_key, read_secret
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.config.urls import DatabaseUrl
from orthia.pipeline.sources.store import StoreReference

_NO_FILES: Final = (
    "migrate copies from one database to another: to leave a file journal, let its consumers empty"
    " it, or send an export of it to the new pair with `orthia pipeline replay`"
)


@click.command(
    epilog=example(
        "orthia pipeline migrate --url sqlite:///instance/orthia.db \\",
        "    --to-config new/broker.xml",
    )
)
@click.option(
    "--to-config",
    type=click.Path(exists=True, dir_okay=False),
    help="A broker.xml that names the new store.",
)
@click.option(
    "--to-url",
    type=URL,
    help=f"URL of the new store, instead of --to-config. Set {TARGET_PASSWORD_VARIABLE} for its"
    " password.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@store_options
@spark_options
def migrate(
    store: StoreOptions,
    to_config: str | None,
    to_url: DatabaseUrl | None,
    spark_on: SparkOptions,
    *,
    as_json: bool,
) -> None:
    """Copy a stopped pair's store to another database, and compare counts and checksums.

    Both nodes must be stopped: a lease that is held is refused. The new database must be empty; the
    old one is only read. Exit code 1 if what arrived is not what was sent.
    """
    if (to_config is None) == (to_url is None):
        raise click.UsageError("Say where to: --to-config FILE or --to-url URL.")
    source = store.resolve(instead=_NO_FILES)
    if to_url is not None:
        target = DatabaseStoreSettings(to_url)
    else:
        target = load(Path(str(to_config))).database_store
    given = os.environ.get(TARGET_PASSWORD_VARIABLE)
    if given:
        target = replace(target, jdbc_password=read_secret(given, codec_key({}, os.environ)))
    old, passwords = reachable(source)
    new, secret = StoreReference.of(target, TARGET_PASSWORD_VARIABLE)
    if secret is not None:
        passwords[new.password_variable] = secret
    with session(spark_on, passwords) as spark:
        from orthia.pipeline.jobs.migrate import migrate as copy
        from orthia.pipeline.sources.store import Endpoint

        checked = copy(
            spark,
            Endpoint(source, old),
            Endpoint(target, new),
            partitions=spark_on.partitions,
            say=spark_on.say,
        )
    rows = [vars(one) for one in checked]
    if as_json:
        print_json({"tables": rows})
        return
    show("Copied, and equal in both stores", rows, ("table", "rows", "checksum"))
