"""The command line: ``orthia``."""

import gc
import os
import signal
import sys


def main() -> None:
    """Run the command that the process' arguments name, and exit."""
    heeded = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heeded:
        # Loading a command takes a moment: Ctrl-C before there is anything to stop ends it.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.disable()  # what loads stays: to look through it again and again is a tenth of the time
    from orthia.broker.cli.app import orthia
    from orthia.broker.cli.group import say_os_error

    orthia.load(*sys.argv[1:2])
    gc.freeze()
    gc.enable()
    if heeded:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        orthia(prog_name="orthia")
    finally:
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            pass  # as click has it: whoever read has seen enough
        except OSError as error:
            # The interpreter would try once more at its end, and complain in its own words.
            os._exit(say_os_error(error))


__all__ = ["main"]
