"""The root command: errors on one line of standard error, exit codes from ``sysexits.h``."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
from click.exceptions import Exit

from broker.exit_codes import MEANINGS, ExitCode, code_of
from config.errors import OrthiaError


class OrthiaGroup(click.Group):
    """Ends with our exit codes, never with a traceback for an error of ours."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the options before the command."""
        with _our_exit_codes():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        with _our_exit_codes():
            return super().invoke(ctx)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Explain the exit codes under the list of commands."""
        super().format_epilog(ctx, formatter)
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code.value), meaning) for code, meaning in MEANINGS.items()])


@contextmanager
def _our_exit_codes() -> Iterator[None]:
    try:
        yield
    except click.UsageError as error:
        error.show()
        raise Exit(ExitCode.USAGE) from error
    except OrthiaError as error:
        for line in str(error).splitlines():
            click.echo(f"orthia: {line}", err=True)
        raise Exit(code_of(error)) from error


def example(*lines: str) -> str:
    """Return an epilog that shows how the command is used."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)
