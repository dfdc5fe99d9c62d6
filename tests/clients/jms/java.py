"""Java programs, each in a directory beside this file with a ``pom.xml`` for its libraries."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from tests.support.waiting import wait_until

HERE: Final = Path(__file__).parent
JAVA, COMPILER = shutil.which("java"), shutil.which("javac")
RUNS_ALL: Final = os.environ.get("AMQP_SUITES") == "all"
"""Whether whole suites run, as in ``make test-amqp``, or a slice of them."""


def missing(name: str) -> bool:
    """Return whether the programs of a directory cannot be run here."""
    return JAVA is None or COMPILER is None or not (HERE / name / "build" / "copied").exists()


def reason(target: str) -> str:
    """Return what is to be done where something is missing; ``target`` of make brings it."""
    return f"there are no libraries of Java: install maven and a JDK, then run make {target}"


class Program:
    """The programs of a directory, compiled, and what the one that runs has printed."""

    def __init__(self, name: str, directory: Path, *others: Path) -> None:
        """Compile into ``directory``, with source files of ``others``."""
        assert COMPILER is not None
        here = HERE / name
        self.classes = directory / "classes"
        self._libraries = str(here / "build" / "*")
        self._output = directory / "output"
        self._running: subprocess.Popen[bytes] | None = None
        sources = sorted(str(one) for one in (*here.rglob("*.java"), *others))
        compiler = [COMPILER, "-parameters", "-nowarn", "-cp", self._libraries]
        compiler += ["-d", str(self.classes)]
        subprocess.run([*compiler, *sources], check=True, timeout=120)
        for one in here.glob("*.properties"):
            shutil.copy(one, self.classes)

    def start(self, main: str, *arguments: str, **properties: str) -> None:
        """Start the class ``main``; ``properties`` are the system's, ``a_b`` for ``a.b``."""
        assert JAVA is not None
        said = [f"-D{key.replace('_', '.')}={value}" for key, value in properties.items()]
        class_path = f"{self.classes}:{self._libraries}"
        with self._output.open("wb") as output:
            self._running = subprocess.Popen(
                [JAVA, "-XX:+UseSerialGC", *said, "-cp", class_path, main, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    @property
    def printed(self) -> str:
        """What it has printed so far, errors among it."""
        return self._output.read_text()

    def wait_printed(self, text: str, seconds: float) -> None:
        """Wait until it has printed something."""
        assert self._running is not None
        running = self._running
        wait_until(
            lambda: text in self.printed or running.poll() is not None,
            timeout_seconds=seconds,
            what=f"the program prints {text!r}",
        )
        assert text in self.printed, self.printed

    def end(self, seconds: float) -> list[str]:
        """Wait until it ends, as it must without an error; return the lines it printed."""
        assert self._running is not None
        try:
            code = self._running.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the program goes on running:\n{self.printed}") from None
        finally:
            self.kill()
        assert code == 0, self.printed
        return self.printed.splitlines()

    def kill(self) -> None:
        """End it, whatever it is doing."""
        if self._running is not None:
            self._running.kill()
            self._running.wait(60)
