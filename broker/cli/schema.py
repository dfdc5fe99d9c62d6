"""``db upgrade``, ``db current`` and ``db ddl``: the schema, for an operator or a DBA."""

import click

import migrations
from broker.cli.group import example
from broker.cli.opening import opened
from broker.cli.rendering import print_json
from broker.cli.settings_options import StoreOptions, store_options
from broker.exit_codes import ExitCode


@click.group(epilog=example("orthia db upgrade --config broker.xml"))
def db() -> None:
    """Look after the tables in the database."""


@db.command(epilog=example("orthia db upgrade --config broker.xml"))
@store_options
def upgrade(store: StoreOptions) -> None:
    """Create the tables, or bring them up to date; harmless when they are."""
    settings = store.resolve()
    with opened(settings, needs_schema=False) as database:
        before = migrations.current(database, settings)
        migrations.upgrade(database, settings)
        after = migrations.current(database, settings)
    if before == after:
        click.echo(f"{settings.jdbc_connection_url} is up to date at revision {after}")
    else:
        click.echo(f"{settings.jdbc_connection_url}: {before or 'empty'} -> revision {after}")


@db.command(epilog=example("orthia db current --url sqlite:///instance/orthia.db"))
@store_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def current(store: StoreOptions, *, as_json: bool) -> None:
    """Show the schema's revision; exit code 1 when it is not this version's."""
    settings = store.resolve()
    path = settings.jdbc_connection_url.sqlite_path
    revision = None
    if path is None or path.exists():  # opening an SQLite file that is not there would make it
        with opened(settings, needs_schema=False) as database:
            revision = migrations.current(database, settings)
    head = migrations.head()
    if as_json:
        print_json({"revision": revision, "known": head, "up_to_date": revision == head})
    else:
        click.echo(f"revision {revision or 'none'}, this version of Orthia knows {head}")
    if revision != head:
        click.get_current_context().exit(ExitCode.INCOMPLETE)


@db.command(epilog=example("orthia db ddl --url postgresql://localhost/orthia > orthia.sql"))
@store_options
def ddl(store: StoreOptions) -> None:
    """Print the SQL that sets up an empty database; connects nowhere."""
    click.echo(migrations.ddl(store.resolve()).rstrip())
