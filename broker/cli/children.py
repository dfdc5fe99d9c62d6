"""Nodes as child processes of a command: started by the CLI, their output relayed, and ended."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from orthia.broker.cli.settings_options import PASSWORD_VARIABLE, split_password
from orthia.config.settings import Role
from orthia.config.urls import DatabaseUrl

STOP_SECONDS: Final = 30.0
"""How long a node may take to stop in order before it is killed."""

_LAST_LINES_SECONDS: Final = 5.0


@dataclass
class Child:
    """One ``orthia live`` or ``orthia backup``."""

    role: Role
    port: int
    options: Sequence[str]
    relay: Callable[[str, str], None]
    """Gets the child's name and each line it prints, on a thread of its own."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables beyond our own: a password, which other users would see in a command line."""
    process: "subprocess.Popen[str] | None" = field(default=None, init=False)
    _relaying: threading.Thread | None = field(default=None, init=False, repr=False)

    @property
    def name(self) -> str:
        """The node's name: its role."""
        return self.role.value

    @property
    def command(self) -> list[str]:
        """The arguments after ``orthia``, as a person would type them."""
        return [self.role.value, "--port", str(self.port), *self.options]

    @property
    def full_environment(self) -> dict[str, str]:
        """Our own environment and what the child has beyond it."""
        return {**os.environ, **self.environment}

    @property
    def running(self) -> "subprocess.Popen[str]":
        """The process; it must have been started."""
        if self.process is None:
            raise RuntimeError(f"{self.name} was not started")
        return self.process

    @property
    def exit_code(self) -> int | None:
        """The exit code; None while it runs, negative after a signal."""
        return self.running.poll()

    def start(self) -> None:
        """Start the process; in a group of its own, so that Ctrl-C comes from us, in order."""
        self.process = subprocess.Popen(  # noqa: S603 - our own program and options
            [sys.executable, "-m", "orthia.broker.cli", *self.command],
            env=self.full_environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._relaying = threading.Thread(target=self._relay_lines, daemon=True)
        self._relaying.start()

    def _relay_lines(self) -> None:
        stream = self.running.stdout
        if stream is not None:
            with stream:
                for line in stream:
                    self.relay(self.name, line.rstrip("\n"))

    def kill(self) -> None:
        """End the process as ``kill -9`` does."""
        self.running.kill()
        self._wait()

    def _wait(self) -> int:
        """Wait for the end of the process and for its last lines."""
        code = self.running.wait()
        if self._relaying is not None:
            self._relaying.join(_LAST_LINES_SECONDS)
        return code

    def stop(self) -> int:
        """End the process in order, or by force if it takes too long; return its exit code."""
        process = self.running
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()
        return self._wait()


@contextmanager
def children(*nodes: Child) -> Iterator[None]:
    """End every child that was started with the block: all at once, then each for sure."""
    try:
        yield
    finally:
        started = [node for node in nodes if node.process is not None]
        for node in started:
            if node.exit_code is None:
                node.running.terminate()
        for node in started:
            node.stop()


def store_arguments(url: DatabaseUrl) -> tuple[list[str], dict[str, str]]:
    """Return the options and the environment with which a child reaches the database at ``url``."""
    bare, password = split_password(url)
    return ["--url", bare], {} if password is None else {PASSWORD_VARIABLE: password}


def how_it_ended(exit_code: int) -> str:
    """Return an exit code in words."""
    return f"was killed by signal {-exit_code}" if exit_code < 0 else f"exited with {exit_code}"
