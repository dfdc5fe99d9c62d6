"""``db upgrade``, ``db current`` and ``db ddl``: the schema, for an operator or a DBA."""

import click

from orthia.broker.cli.group import CommandGroup, example
from orthia.broker.cli.opening import opened
from orthia.broker.cli.privacy import private_files
from orthia.broker.cli.rendering import print_json
from orthia.broker.cli.settings_options import StoreOptions, store_options
from orthia.broker.node.exit_codes import ExitCode


@click.group(cls=CommandGroup, epilog=example("orthia db upgrade --config broker.xml"))
def db() -> None:
    """Look after the tables in the database."""


@db.command(epilog=example("orthia db upgrade --config broker.xml"))
@store_options
@private_files
def upgrade(store: StoreOptions) -> None:
    """Create the tables, bring them up to date, put back what is missing of them.

    Harmless when nothing is to be done. A table that was lost is made anew, empty; tokens go on
    above all that were ever given out.
    """
    from orthia import migrations

    settings = store.resolve()
    url = settings.jdbc_connection_url
    with opened(settings, needs_schema=False) as database:
        before = migrations.current(database, settings)
        repaired = migrations.repair(database, settings)
        after = migrations.current(database, settings)
    for lost in repaired:
        click.echo(f"repaired: {lost}")
    if repaired:
        click.echo(f"{url} is whole again, at revision {after}; start its nodes")
    elif before == after:
        click.echo(f"{url} is up to date at revision {after}")
    else:
        click.echo(f"{url}: {before or 'empty'} -> revision {after}")


@db.command(epilog=example("orthia db current --url sqlite:///instance/orthia.db"))
@store_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def current(store: StoreOptions, *, as_json: bool) -> None:
    """Show the schema's revision and what is missing or altered of its tables, routines and rows.

    Exit code 1 when it is not this version's, or not whole.
    """
    from orthia import migrations

    settings = store.resolve()
    path = settings.jdbc_connection_url.sqlite_path
    revision = None
    damage: list[str] = []
    if path is None or path.exists():  # opening an SQLite file that is not there would make it
        with opened(settings, needs_schema=False) as database:
            revision = migrations.current(database, settings)
            damage = migrations.damage(database, settings)
            damage += migrations.altered(database, settings)
    head = migrations.head()
    sound = revision == head and not damage
    if as_json:
        document = {"revision": revision, "known": head, "up_to_date": sound, "damage": damage}
        print_json(document)
    else:
        click.echo(f"revision {revision or 'none'}, this version of Orthia knows {head}")
        for lost in damage:
            click.echo(lost)
        if damage:
            click.echo(
                "`orthia db upgrade` puts rows back, makes tables anew, empty, and functions and"
                " procedures as they were"
            )
    if not sound:
        click.get_current_context().exit(ExitCode.INCOMPLETE)


@db.command(epilog=example("orthia db ddl --url postgresql://localhost/orthia > orthia.sql"))
@store_options
@click.option(
    "--from",
    "since",
    metavar="REVISION",
    help="Print what a database of this revision lacks, in place of all."
    "  [`orthia db current` tells it]",
)
def ddl(store: StoreOptions, *, since: str | None) -> None:
    """Print the SQL that sets up an empty database, or upgrades one; connects nowhere."""
    from orthia import migrations

    try:
        script = migrations.ddl(store.resolve(), since)
    except ValueError as error:
        raise click.UsageError(f"--from: {error}.") from error
    if not script:
        click.echo(f"-- revision {since} is this version's: nothing is to be done")
        return
    click.echo(script.rstrip())
