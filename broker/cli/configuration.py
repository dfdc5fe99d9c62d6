"""``check`` and ``mask``: a broker.xml before it is used, and the passwords in it."""

import os
from dataclasses import asdict
from pathlib import Path

import click

from orthia import config
from orthia.broker.cli.group import example
from orthia.broker.cli.privacy import ask_password, seen_on_command_line
from orthia.broker.cli.rendering import print_json, print_table
from orthia.broker.cli.settings_options import properties_option
from orthia.broker.node.exit_codes import ExitCode
from orthia.config.errors import ConfigurationError
from orthia.config.exposure import exposure_warnings
from orthia.config.secrets import KEY_VARIABLE, codec_key
from orthia.nodemanager.exclusive import installed_lockers


@click.command(epilog=example("orthia check broker.xml -D db.host=db1"))
@click.argument("file", type=click.Path(path_type=Path))
@properties_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def check(file: Path, properties: tuple[tuple[str, str], ...], *, as_json: bool) -> None:
    """Validate a broker.xml and show every setting in effect, passwords hidden.

    Exit code 78, and one line a problem, when a node could not use it. Nothing is connected to.
    """
    try:
        settings = config.load(
            file, system_properties=dict(properties), installed_lockers=installed_lockers()
        )
    except ConfigurationError as error:
        if not as_json:
            raise
        print_json({"valid": False, "problems": str(error).splitlines()})
        click.get_current_context().exit(ExitCode.CONFIGURATION)
    effective = config.render(settings)
    warnings = [*settings.warnings, *exposure_warnings(settings)]
    if as_json:
        print_json(
            {
                "valid": True,
                "not_applied": list(settings.not_applied),
                "warnings": warnings,
                "settings": [asdict(one) for one in effective],
            }
        )
        return
    print_table(
        ("setting", "value", "unit", ""),
        (
            (one.path.removeprefix("core/"), one.value, one.unit, "default" * one.is_default)
            for one in effective
        ),
    )
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
    if not settings.not_applied:
        click.echo(f"{file} is valid", err=True)
        return
    click.echo(
        f"\n{file} is valid, BUT THIS CHANGES WHAT HAPPENS TO YOUR MESSAGES: Orthia does not do"
        " what Artemis does with it. What happens instead:",
        err=True,
    )
    for one in settings.not_applied:
        click.echo(f"  {one}", err=True)


@click.command(epilog=example("orthia mask", 'echo "$PASSWORD" | orthia mask'))
@click.argument(
    "password",
    required=False,
    callback=seen_on_command_line("leave it out, and type it or give it on standard input"),
)
def mask(password: str | None) -> None:
    """Print a password as ENC(...) for a broker.xml.

    It is typed unseen, or read from standard input where that is no terminal. As an argument others
    can see it.

    The built-in key is public: masking is against a glance over the shoulder only, unless a key of
    your own is in ARTEMIS_DEFAULT_SENSITIVE_STRING_CODEC_KEY, here and where the node runs.
    """
    if password is None:
        password = ask_password(confirm=True)
    key = codec_key({}, os.environ)
    click.echo(config.mask(str(password), key))
    if key is None:
        click.echo(f"masked with the built-in, public key; {KEY_VARIABLE} is not set", err=True)
