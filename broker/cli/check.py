"""``check``: a broker.xml before it is used."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import click

from orthia import config
from orthia.broker.cli.group import example
from orthia.broker.cli.rendering import print_json, print_table
from orthia.broker.cli.settings_options import properties_option
from orthia.broker.cli.unusable import unknown_users, unusable
from orthia.broker.node.exit_codes import ExitCode
from orthia.broker.node.login_files import check_login_files
from orthia.broker.tls.check import ending_certificates, exposed_keys
from orthia.config.errors import ConfigurationError
from orthia.config.exposure import exposure_warnings
from orthia.config.rendering import EffectiveSetting
from orthia.config.settings import Settings
from orthia.nodemanager.locks.custom import installed_lockers


@click.command(epilog=example("orthia check broker.xml -D db.host=db1"))
@click.argument("file", type=click.Path(path_type=Path))
@properties_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def check(file: Path, properties: tuple[tuple[str, str], ...], *, as_json: bool) -> None:
    """Validate a broker.xml and show every setting in effect, passwords hidden.

    Exit code 78, and one line a problem, when a node could not use it or no client could log in.
    The keys, certificates and users that it names are read; nothing is connected to.
    """
    try:
        settings = config.load(
            file,
            system_properties=dict(properties),
            installed_lockers=installed_lockers(),
            further=lambda found: (*unusable(found), *unknown_users(found)),
        )
        nobody = check_login_files(settings)
    except ConfigurationError as error:
        if not as_json:
            raise
        print_json({"valid": False, "problems": str(error).splitlines()})
        click.get_current_context().exit(ExitCode.CONFIGURATION)
    effective = config.render(settings)
    warnings = [
        *settings.warnings,
        *exposure_warnings(settings),
        *exposed_keys(settings),
        *ending_certificates(settings, datetime.now(UTC)),
    ]
    if as_json:
        print_json(
            {
                "valid": nobody is None,
                "problems": [] if nobody is None else [nobody],
                "not_applied": list(settings.not_applied),
                "warnings": warnings,
                "settings": [asdict(one) for one in effective],
            }
        )
    else:
        _print(file, settings, effective, warnings, nobody)
    if nobody is not None:
        click.get_current_context().exit(ExitCode.CONFIGURATION)


def _print(
    file: Path,
    settings: Settings,
    effective: Sequence[EffectiveSetting],
    warnings: Sequence[str],
    nobody: str | None,
) -> None:
    """Print every setting in effect, and on standard error what is to be said of the file."""
    print_table(
        ("setting", "value", "unit", ""),
        (
            (one.path.removeprefix("core/"), one.value, one.unit, "default" * one.is_default)
            for one in effective
        ),
    )
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
    if not settings.not_applied and nobody is None:
        click.echo(f"{file} is valid", err=True)
    if settings.not_applied:
        state = "is valid" if nobody is None else "can be read"
        click.echo(
            f"\n{file} {state}, BUT THIS CHANGES WHAT HAPPENS TO YOUR MESSAGES: Orthia does not"
            " do what Artemis does with it. What happens instead:",
            err=True,
        )
    for one in settings.not_applied:
        click.echo(f"  {one}", err=True)
    if nobody is not None:
        click.echo(f"{file}: {nobody}", err=True)
