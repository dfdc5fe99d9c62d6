"""Processes of Orthia's command line, forked from one that has imported it.

To import is most of the processor time of a node's start, and the tests start hundreds of nodes.
What is forked runs the command line as ``python -m orthia.broker.cli`` does, with the arguments,
the environment, the directory and the output it is given. It is a process like any other, which can
be stopped and killed, and it ends as an interpreter ends.

Run as a program this is the process that forks. It ends with the process that started it, and what
it forked ends with it.
"""

import atexit
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Final

PROGRAM: Final = "orthia.broker.cli"
_IMPORTED: Final = (
    *(f"{PROGRAM}.{command}" for command in ("app", "backup", "live", "run")),
    "orthia.config.loader",
    "orthia.broker.node.service",
    "orthia.broker.node.node",
    "orthia.broker.node.critical_analyzer",
    "orthia.nodemanager.file_lock_manager",
    "orthia.nodemanager.in_vm_manager",
    "alembic.config",
    "alembic.command",
    "apscheduler.triggers.interval",
    "uvloop",
    *(f"sqlalchemy.dialects.{one}" for one in ("sqlite", "postgresql.psycopg2", "mysql.pymysql")),
    "psycopg2",
    "pymysql",
    "_strptime",
    "encodings.idna",
)
"""All but the first few a node imports when it comes to need them."""
_EARLY: Final = ("GLIBC", "LANG", "LC_", "LD_", "MALLOC", "OPENSSL", "PYTHON", "SSL_", "TZ")
"""How the names of variables begin that act when a program starts, or is imported."""
_LONGEST: Final = 2**18
_LOOK_SECONDS: Final = 0.1


class ForkedProcess:
    """A process that was forked; what the tests want of ``subprocess.Popen``."""

    def __init__(self, forker: "Forker", pid: int) -> None:
        self._forker = forker
        self.pid = pid

    @property
    def returncode(self) -> int | None:
        """The exit code as ``Popen`` has it; None before ``poll`` or ``wait`` saw it end."""
        return self._forker.ended.get(self.pid)

    def poll(self) -> int | None:
        """Return the exit code, None while the process runs."""
        self._forker.look(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code; raises ``subprocess.TimeoutExpired``."""
        until = None if timeout is None else time.monotonic() + timeout
        while (code := self.returncode) is None:
            left = _LOOK_SECONDS if until is None else until - time.monotonic()
            if left <= 0:
                raise subprocess.TimeoutExpired(PROGRAM, timeout or 0)
            self._forker.look(min(left, _LOOK_SECONDS))
        return code


class Forker:
    """The process that forks, as the tests have it: one for each of theirs, started when wanted."""

    _one: "Forker | None" = None

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._early = _early(os.environ)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                cwd=Path(__file__).parents[2],  # where tests is, wherever the first test has gone
            )
        self.ended: dict[int, int] = {}
        """Exit codes by process id."""
        atexit.register(self._end)

    @classmethod
    def for_environment(cls, environment: Mapping[str, str]) -> "Forker | None":
        """Return the one of this process, None if such an environment must be there at a start."""
        if cls._one is None:
            cls._one = cls()
        return cls._one if _early(environment) == cls._one._early else None

    def start(
        self, arguments: Sequence[str], environment: Mapping[str, str], output: int
    ) -> ForkedProcess:
        """Fork a process whose output and errors go to a descriptor."""
        request = [list(arguments), dict(environment), str(Path.cwd())]
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(request).encode()], [output])
            while (pid := self._take()) is None:
                pass
            self.ended.pop(pid, None)
        return ForkedProcess(self, pid)

    def look(self, seconds: float) -> None:
        """Learn of processes that ended, waiting so long for one."""
        with self._lock, selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            while selector.select(seconds):
                self._take()
                seconds = 0

    def _take(self) -> int | None:
        """Take an answer: of a process that was started, whose id is returned, or of one's end."""
        answer = self._socket.recv(_LONGEST)
        if not answer:
            raise RuntimeError("the process that forks is gone")
        pid, status = json.loads(answer)
        if status is None:
            return int(pid)
        self.ended[pid] = os.waitstatus_to_exitcode(status)
        return None

    def _end(self) -> None:
        self._socket.close()
        self._process.wait()


def start_program(
    command: Sequence[str],
    environment: Mapping[str, str],
    output: int,
    before: Callable[[], None] | None = None,
) -> "ForkedProcess | subprocess.Popen[bytes]":
    """Start a command whose output and errors go to a descriptor; fork it if it is Orthia's.

    What is to be done in the process ``before`` the command starts wants it executed.
    """
    forker = None
    if before is None and list(command[:3]) == [sys.executable, "-m", PROGRAM]:
        forker = Forker.for_environment(environment)
    if forker is not None:
        return forker.start(command[3:], environment, output)
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env=dict(environment),
        preexec_fn=before,
    )


def _early(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: environment[name] for name in environment if name.startswith(_EARLY)}


def _serve(connection: socket.socket) -> tuple[list[str], dict[str, str], str, int]:
    """Fork until a process is forked, in which this returns; where nobody asks any more, exit."""
    selector = selectors.DefaultSelector()
    selector.register(connection, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.data is not None:
                _, status = os.waitpid(key.data, 0)
                selector.unregister(key.fd)
                os.close(key.fd)
                _tell(connection, key.data, status)
                continue
            message, descriptors, _, _ = socket.recv_fds(connection, _LONGEST, 1)
            if not message:
                # Whoever asked was ended before it could end what it had started.
                for registered in selector.get_map().values():
                    if registered.data is not None:
                        signal.pidfd_send_signal(registered.fd, signal.SIGKILL)
                sys.exit()
            (output,) = descriptors
            pid = os.fork()
            if pid == 0:
                for registered in [*selector.get_map().values()]:
                    if registered.data is not None:
                        os.close(registered.fd)
                selector.close()
                connection.close()
                arguments, environment, directory = json.loads(message)
                return arguments, environment, directory, output
            os.close(output)
            selector.register(os.pidfd_open(pid), selectors.EVENT_READ, pid)
            _tell(connection, pid, None)


def _tell(connection: socket.socket, pid: int, status: int | None) -> None:
    try:
        connection.send(json.dumps([pid, status]).encode())
    except BrokenPipeError:
        sys.exit()


def _main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in _IMPORTED:
        import_module(name)
    arguments, environment, directory, output = _serve(socket.socket(fileno=int(sys.argv[1])))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for place in (1, 2):
        os.dup2(output, place)
    os.close(output)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    sys.argv[1:] = arguments
    sys.orig_argv[:] = [sys.executable, "-m", PROGRAM, *arguments]
    runpy.run_module(PROGRAM, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
