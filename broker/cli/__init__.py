"""The command line: ``orthia``."""

import gc
import io
import os
import signal
import sys
from typing import Final

from orthia.config.characters import is_unicode

_GARBAGE_THRESHOLD: Final = 50_000
"""Allocations between two garbage collections; a node sets its own threshold."""


def main() -> None:
    """Run the command that the process' arguments name, and exit."""
    _open_what_is_closed()
    _escape_what_cannot_be_shown()
    heeded = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heeded:
        # Loading a command takes a moment: Ctrl-C before there is anything to stop ends it.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.disable()  # loaded modules stay: scanning them repeatedly takes a tenth of the time
    from orthia.broker.cli.app import orthia
    from orthia.broker.cli.group import say_os_error
    from orthia.broker.node.exit_codes import ExitCode

    orthia.load(*sys.argv[1:2])
    gc.freeze()
    gc.set_threshold(_GARBAGE_THRESHOLD)
    gc.enable()
    if heeded:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        orthia(prog_name="orthia")
    finally:
        try:
            sys.stdout.flush()
        except OSError as error:
            # The interpreter would flush again at exit, and print an error of its own.
            # A closed pipe is no error to report: its reader has seen enough.
            is_quiet = isinstance(error, BrokenPipeError)
            os._exit(ExitCode.IO_ERROR if is_quiet else say_os_error(error))


def _open_what_is_closed() -> None:
    """Open /dev/null in place of closed standard streams.

    Otherwise the next opened file, perhaps a database, would get their number, and warnings.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
            os.set_inheritable(number, True)  # noqa: FBT003 - as the system has it
    if sys.stdin is None:
        sys.stdin = os.fdopen(0)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w")
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w")


def _escape_what_cannot_be_shown() -> None:
    r"""Write names that the encoding of the output lacks as escapes, such as ``\u8ba2``.

    An encoding error would cut off the output. UTF-8 can encode every valid name; what it cannot
    encode is no name, and is reported.
    """
    if isinstance(sys.stdout, io.TextIOWrapper) and not is_unicode(sys.stdout.encoding):
        sys.stdout.reconfigure(errors="backslashreplace")


__all__ = ["main"]
