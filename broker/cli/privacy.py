"""Password input without echo, and files that only their owner can read."""

import os
import select
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, Final, TextIO, TypeVar

import click
from click.core import ParameterSource

from orthia.config.errors import ConfigurationError

_PRIVATE: Final = 0o077
_LONGEST: Final = 65_536
_Command = TypeVar("_Command", bound=Callable[..., Any])


def private_files(command: _Command) -> _Command:
    """Let ``command`` create files and directories with access for their owner only.

    The store holds other people's messages; create a directory beforehand to share it.
    """

    def with_private_files(*args: Any, **kwargs: Any) -> Any:
        former = os.umask(_PRIVATE)
        try:
            return command(*args, **kwargs)
        finally:
            os.umask(former)

    decorated: Any = wraps(command)(with_private_files)
    result: _Command = decorated
    return result


def ask_password(*, confirm: bool) -> str:
    """Return a password that is typed unseen, or the first line of an input that is no terminal.

    Raises ConfigurationError if there is none.
    """
    if sys.stdin.isatty():
        typed: str = click.prompt(
            "Password", hide_input=True, confirmation_prompt=confirm, err=True
        )
        return typed
    line = sys.stdin.readline(_LONGEST).rstrip("\r\n")
    if not line:
        raise ConfigurationError(
            "no password was given: there is no terminal to type it in, and the input is empty"
        )
    return line


def seen_on_command_line(instead: str) -> Any:
    """Return a callback that warns of a password given in an argument; ``instead`` says how else.

    Every user of the machine sees the arguments of its processes, and shells keep them.
    """

    def warn(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
        typed = ctx.get_parameter_source(param.name or "") is ParameterSource.COMMANDLINE
        if value is not None and typed:
            name = param.opts[0] if param.param_type_name == "option" else "the argument"
            warn_of_command_line(name, instead)
        return value

    return warn


def warn_of_command_line(name: str, instead: str) -> None:
    """Warn on standard error that a password was given where others can see it.

    A node warns before its log begins, and must not wait for the reader of standard error: the
    warning is dropped if a full pipe does not take it at once.
    """
    if not _takes_a_line(sys.stderr):
        return
    click.echo(
        f"orthia: warning: {name} shows a password to everybody on this machine, and to the shell's"
        f" history; {instead}",
        err=True,
    )


def _takes_a_line(stream: TextIO) -> bool:
    try:
        return bool(select.select([], [stream], [], 0)[1])
    except (OSError, TypeError, ValueError):  # no descriptor is under it, or none to wait for
        return True
