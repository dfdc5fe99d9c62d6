"""``mask``: a password as a broker.xml may have it."""

import os

import click

from orthia import config
from orthia.broker.cli.group import example
from orthia.broker.cli.privacy import ask_password, seen_on_command_line
from orthia.config.secrets import KEY_VARIABLE, codec_key


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
