"""The root command: errors on one line of standard error, exit codes from ``sysexits.h``."""

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import click
from click.exceptions import Exit

from orthia.broker.node.exit_codes import MEANINGS, ExitCode, code_of
from orthia.config.characters import outside_utf8
from orthia.config.errors import OrthiaError

_WHOLE: Final = 1_000
"""More characters than any summary has."""


_OTHER_OPTIONS: Final[Mapping[str, str]] = {
    "--name": "The name follows the command itself: `{path} NAME`.",
    "--queueName": "The name follows the command itself: `{path} NAME`.",
    "--anycast": "Say --routing-type anycast.",
    "--multicast": "Say --routing-type multicast.",
    "--durable": "What is created is durable unless there is --non-durable.",
    "--url": "Say where the live node serves HTTP: --management http://HOST:PORT.",
    "--broker": "Say where the live node serves HTTP: --management http://HOST:PORT.",
}
"""What Artemis' command line and our other commands call otherwise."""
_RECEIVE: Final = "`orthia consume` receives messages; this shows who does, and ends them."


class CommandGroup(click.Group):
    """Lists its commands with whole summaries; click cuts them to one line each."""

    def __init__(self, *args: Any, meant: Mapping[str, str] | None = None, **kwargs: Any) -> None:
        """``meant`` says, by names that other brokers have, what is typed here instead."""
        super().__init__(*args, **kwargs)
        self._meant = meant or {}

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is typed; for a name of another broker say what is meant."""
        meant = self._meant.get(args[0])
        if meant is not None:
            ctx.fail(f"No such command {args[0]!r}: {meant}.")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; for an option of another broker say what is meant."""
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            where = error.ctx
            if where is None:
                raise
            path = where.command_path
            hint = _OTHER_OPTIONS.get(error.option_name)
            if isinstance(where.command, click.Group) and path.endswith(" consumer"):
                hint = _RECEIVE
            if hint is None:
                raise
            said = f"No such option: {error.option_name}. {hint.format(path=path)}"
            raise click.UsageError(said, where) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each command's name and the first sentence of its help."""
        with formatter.section("Commands"):
            formatter.write_dl(self.summaries(ctx))

    def summaries(self, ctx: click.Context) -> list[tuple[str, str]]:
        """Return the name and the summary of each command that is not hidden."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        return [
            (name, command.get_short_help_str(_WHOLE))
            for name, command in commands
            if command is not None and not command.hidden
        ]


class OrthiaGroup(CommandGroup):
    """Ends with our exit codes, never with a traceback for an error of ours."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the options before the command; without colours if NO_COLOR says so."""
        if not wants_colour():
            ctx.color = False
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
    except UnicodeEncodeError as error:
        unfit = outside_utf8(error.object)
        if unfit is None:
            raise
        sources = "an argument, a variable of the environment or standard input"
        click.echo(f"orthia: {sources} has {unfit}", err=True)
        raise Exit(ExitCode.USAGE) from error
    except UnicodeDecodeError as error:
        unfit = f"the byte 0x{error.object[error.start]:02X}, which is no {error.encoding.upper()}"
        click.echo(f"orthia: standard input or a file has {unfit}", err=True)
        raise Exit(ExitCode.USAGE) from error
    except (KeyboardInterrupt, EOFError, click.Abort) as error:  # Abort: at a prompt
        raise Exit(ExitCode.INTERRUPTED) from error
    except BrokenPipeError as error:
        # Quietly: whoever read the output has seen enough, and no more of it is tried.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise Exit(ExitCode.IO_ERROR) from error
    except OSError as error:
        raise Exit(say_os_error(error)) from error


def say_os_error(error: OSError) -> ExitCode:
    """Say what the operating system refused, and to what; return the exit code for it."""
    reason = error.strerror or str(error)
    if error.filename is None:
        click.echo(f"orthia: cannot write the output: {reason}", err=True)
        return ExitCode.IO_ERROR
    click.echo(f"orthia: {error.filename} cannot be used: {reason}", err=True)
    if error.errno in _FULL:
        return ExitCode.IO_ERROR
    return ExitCode.CONFIGURATION


_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
"""What passes, or is of the device: not of how Orthia is set up."""


def wants_colour() -> bool:
    """Return whether output to a terminal may have colours: see no-color.org."""
    return not os.environ.get("NO_COLOR")


def styled(text: str, **style: Any) -> str:
    """Return ``text`` as ``click.style`` does, where colours are wanted; on any thread."""
    return click.style(text, **style) if wants_colour() else text


def example(*lines: str) -> str:
    """Return an epilog that shows how the command is used."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)
