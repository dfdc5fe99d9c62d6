"""Ends a failed job of the pipeline with one line and an exit code for the kind of failure.

A job fails in the driver, in a worker or in Java, and each reports it in a page or two of its own.
An operator needs one line of it; ``--verbose`` shows the rest.
"""

import importlib
import logging
import os
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

import click
from click.exceptions import Exit

from orthia.broker.node.exit_codes import ExitCode, code_of, code_of_kind
from orthia.config.errors import OrthiaError

_WORKER_ERROR: Final = re.compile(r"^(orthia(?:\.\w+)*)\.(\w+): (.+)$", re.MULTILINE)
"""The last line of a worker's traceback, when the error was one of ours."""
_JAVAS_OWN: Final = re.compile(r"^: (?:[\w$]+\.)*[\w$]+(?:Exception|Error): ", re.MULTILINE)
_DAMAGED: Final = re.compile(
    r"\[(?:FAILED_READ_FILE|CANNOT_READ_FILE_FOOTER|PATH_NOT_FOUND|UNABLE_TO_INFER_SCHEMA)[\w.]*\]"
    r" ?([^\n]*)"
)
_CLUSTER_GONE: Final = re.compile(r"All masters are unresponsive|Master removed our application")
_TOO_BUSY: Final = "Python worker failed to connect back"
_FULL: Final = re.compile(r"No space left on device|Disk quota exceeded")
_UNWRITABLE: Final = re.compile(
    r"(?:Mkdirs failed to create|Parent path is not a directory)[^\n]*"
    r"|[^\s:]* ?\((?:Permission denied|Read-only file system)\)"
)
_CHANGED: Final = re.compile(r"Checksum error: (.+?) at \d+ exp:")
"""Of a small file, which Hadoop keeps a checksum of beside it."""
_NO_FILE_SYSTEM: Final = re.compile(r'No FileSystem for scheme "[^"\n]*"')
_BY_CTRL_C: Final = "ended by Ctrl-C"
_SEEN_MORE: Final = "; --verbose shows where"


@contextmanager
def in_one_line(*, verbose: bool) -> Iterator[None]:
    """End the command with one line of standard error, and the exit code of what went wrong.

    ``verbose`` shows the traceback first.
    """
    with _py4j_quiet(quiet=not verbose):
        try:
            yield
        except (click.ClickException, Exit, click.Abort):
            raise
        except BrokenPipeError as error:
            _end_quietly(error)
        except KeyboardInterrupt as error:
            _say(error, _BY_CTRL_C, ExitCode.INTERRUPTED, verbose=verbose)
        except OSError as error:
            if _interrupted(error):
                _say(error, _BY_CTRL_C, ExitCode.INTERRUPTED, verbose=verbose)
            if verbose:
                traceback.print_exc()
            if isinstance(error, ConnectionError):
                line = f"Spark's process is gone: {error}"
                _say(error, line, ExitCode.SOFTWARE, verbose=False)
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told in one line
            line, code = explained(error)
            if _interrupted(error):
                line, code = _BY_CTRL_C, ExitCode.INTERRUPTED
            _say(error, line, code, verbose=verbose)


def _interrupted(error: BaseException) -> bool:
    """Return whether an error came of a Ctrl-C: while what it ended was tidied up."""
    before = error.__context__
    while before is not None and not isinstance(before, KeyboardInterrupt):
        before = before.__context__
    return before is not None


def explained(error: Exception) -> tuple[str, ExitCode]:
    """Return what an operator is told of an error, and the exit code."""
    if isinstance(error, OrthiaError):
        return str(error), code_of(error)
    text = str(error)
    ours = _WORKER_ERROR.findall(text)
    if ours:
        module, name, line = ours[-1]
        return str(line), code_of_kind(_kind(module, name))
    damaged = _DAMAGED.search(text)
    if damaged is not None:
        return f"cannot be read: {damaged[1] or damaged[0]}", ExitCode.WRONG_DATA
    if _CLUSTER_GONE.search(text):
        return "Spark's cluster ended the job, or went away", ExitCode.NO_CLUSTER
    if _TOO_BUSY in text:
        line = "a worker of Spark did not start in 10 s: the machine is too busy; run this again"
        return line, ExitCode.UNAVAILABLE
    changed = _CHANGED.search(text)
    if changed is not None:
        line = f"{changed[1]} was changed, or is damaged: bring back the file, or export again"
        return line, ExitCode.WRONG_DATA
    full = _FULL.search(text) or _UNWRITABLE.search(text)
    if full is not None:
        return f"cannot write the output: {full[0]}", ExitCode.IO_ERROR
    unknown = _NO_FILE_SYSTEM.search(text)
    if unknown is not None:
        return f"{unknown[0]}: give Spark its package by --conf", ExitCode.USAGE
    return f"{_where(error)}: {_first_line(text)}{_SEEN_MORE}", ExitCode.SOFTWARE


def _where(error: Exception) -> str:
    """Return who raised an error: Spark, or a mistake of ours by its class."""
    module = type(error).__module__.partition(".")[0]
    return "Spark" if module in ("pyspark", "py4j") else type(error).__name__


def _first_line(text: str) -> str:
    # py4j begins with what it called; what came of it is behind a colon.
    text = _JAVAS_OWN.split(text, 1)[-1]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else "it does not say why"


def _kind(module: str, name: str) -> type[OrthiaError]:
    try:
        found: object = getattr(importlib.import_module(module), name, None)
    except ImportError:
        found = None
    if isinstance(found, type) and issubclass(found, OrthiaError):
        return found
    return OrthiaError


def _say(error: BaseException, text: str, code: ExitCode, *, verbose: bool) -> NoReturn:
    if verbose:
        traceback.print_exception(error)
    for line in text.splitlines():
        click.echo(f"orthia: {line}", err=True)
    raise Exit(code) from error


def _end_quietly(error: BrokenPipeError) -> NoReturn:
    """Exit after the reader closed the pipe, with the code of unwritten output.

    click's own code would mean that faults were found.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    # Python writes what is left when it ends, and would tell of the pipe then.
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
    raise Exit(ExitCode.IO_ERROR) from error


@contextmanager
def _py4j_quiet(*, quiet: bool) -> Iterator[None]:
    """Silence py4j, which logs to the root logger."""
    if not quiet:
        yield
        return
    root = logging.getLogger()
    nowhere = logging.NullHandler()
    had = root.handlers[:]
    root.handlers[:] = [nowhere]
    try:
        yield
    finally:
        root.handlers[:] = had
