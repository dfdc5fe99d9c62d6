"""Java programs, each in a directory beside this file with a ``pom.xml`` for its libraries."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

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


def compiled(name: str, directory: Path) -> str:
    """Compile the programs of a directory into another; return the class path to run them."""
    assert COMPILER is not None
    here = HERE / name
    classes = directory / "classes"
    sources = sorted(map(str, here.glob("*.java")))
    libraries = str(here / "build" / "*")
    subprocess.run(
        [COMPILER, "-Xlint:-options", "-cp", libraries, "-d", str(classes), *sources],
        check=True,
        timeout=120,
    )
    for one in here.glob("*.properties"):
        shutil.copy(one, classes)
    return f"{classes}:{libraries}"


def start(class_path: str, *arguments: str, **properties: object) -> subprocess.Popen[str]:
    """Start a program: its class and arguments, and its system properties, ``a_b`` for ``a.b``."""
    assert JAVA is not None
    said = [f"-D{key.replace('_', '.')}={value}" for key, value in properties.items()]
    return subprocess.Popen(
        [JAVA, "-XX:+UseSerialGC", *said, "-cp", class_path, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
