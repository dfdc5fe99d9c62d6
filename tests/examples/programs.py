"""A producer and a consumer of examples/, their output, and what it says of their orders."""

import os
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.support.waiting import wait_until

EXAMPLES: Final = Path(__file__).parents[2] / "examples"
COUNT: Final = 200
_LINE: Final = re.compile(r"\b(stored|got|again) order (\d+)")


@dataclass
class Program:
    """A program that runs, and whose output goes to a file."""

    process: subprocess.Popen[bytes]
    output: Path

    @property
    def said(self) -> str:
        """Return its output so far."""
        return self.output.read_text(errors="replace")

    def orders(self, what: str) -> Counter[int]:
        """Return how often it said ``what``, stored or got, of each order."""
        return Counter(int(order) for verb, order in _LINE.findall(self.said) if verb == what)

    def wait_for(self, what: str, count: int) -> None:
        """Wait until it said ``what`` of ``count`` orders; fails at once if the program fails."""
        wait_until(
            lambda: len(self.orders(what)) >= count or self.process.poll() not in (None, 0),
            what=lambda: f"{what} {count} orders: {self.said[-2000:]}",
        )
        assert len(self.orders(what)) >= count, self.said


@dataclass
class Programs:
    """The programs of one test."""

    directory: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    running: list[Program] = field(default_factory=list)

    def start(self, command: Sequence[str], cwd: Path = EXAMPLES) -> Program:
        """Start a program."""
        output = self.directory / f"program-{len(self.running)}.log"
        with output.open("wb") as file:
            process = subprocess.Popen(
                command,
                cwd=cwd,
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        self.running.append(Program(process, output))
        return self.running[-1]


@contextmanager
def programs(directory: Path, environment: Mapping[str, str] | None = None) -> Iterator[Programs]:
    """Give programs that are ended with the block."""
    made = Programs(directory, environment or {})
    try:
        yield made
    finally:
        for program in made.running:
            if program.process.poll() is None:
                program.process.send_signal(signal.SIGKILL)
            program.process.wait()
