"""Builds Orthia for pip (PEP 517): with setuptools, and with mypyc where there is a compiler.

What is hot is compiled if a C compiler and Python's headers are there; if that fails, the wheel is
pure Python all the same. ``ORTHIA_COMPILED`` in the environment has the last word: ``no`` compiles
nothing, and 0 to 3, how far the C compiler optimizes, has the build fail where compiling fails.
An editable install is never compiled: machine code would hide what is changed in the checkout.

A wheel is built in a copy of the tree: builds at the same time have nothing in common, a checkout
that cannot be written to can be installed, and nothing of an earlier build is packed.

There is no ``prepare_metadata_for_build_wheel``: the version says whether a wheel is compiled, and
that is known once it is built. pip builds it then to read the version, and installs what it built.
"""

import ctypes
import os
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from configparser import ConfigParser
from contextlib import chdir
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (
    build_editable,
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
]

_VARIABLE = "ORTHIA_COMPILED"
_FOR_SETUP = "_ORTHIA_MYPYC_LEVEL"
"""Set in the process in which setup.py is to compile, and in no other: users do not set it."""
_OPTIMIZED = "2"
_FOLDERS = (
    *("benchmarks", "broker", "config", "database", "docs", "journal", "migrations"),
    *("nodemanager", "orthia", "pipeline", "tests/simulation", "tools"),
)
_FILES = ("*.md", "*.in", "*.example", "PKG-INFO", "pyproject.toml", "setup.cfg", "setup.py")
"""What is built of, as far as it is there: in a source archive the rooms are in orthia/ only."""
_PR_SET_PDEATHSIG = 1
_Settings = Mapping[str, Any] | None


def has_compiler() -> bool:
    """Tell whether there is what compiles an extension: a compiler, and this Python's headers."""
    if sys.implementation.name != "cpython":
        return False
    named = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    try:
        command = [*shlex.split(named), "-E", "-I", sysconfig.get_path("include"), "-"]
        tried = subprocess.run(  # noqa: S603 - the compiler that setuptools would call
            command, input=b"#include <Python.h>\n", capture_output=True, check=False
        )
    except (OSError, ValueError):
        return False  # there is none of that name, or it is none: a quotation without an end
    # `true` and its like end well, too.
    return tried.returncode == 0 and b"PyObject" in tried.stdout


def get_requires_for_build_wheel(config_settings: _Settings = None) -> list[str]:
    """Return what pyproject.toml does not say: to compile, mypy and whatever it reads types of."""
    requires: list[str] = build_meta.get_requires_for_build_wheel(config_settings)
    if _level() is None:
        return requires
    config = ConfigParser()
    config.read(Path("setup.cfg"), encoding="utf-8")
    used = config["options"]["install_requires"].splitlines()
    tests = config["options.extras_require"]["test"].splitlines()
    types = [one for one in tests if one.startswith(("mypy", "types-")) or one.endswith("-stubs")]
    return [*requires, *filter(None, used), *types]


def build_wheel(
    wheel_directory: str,
    config_settings: _Settings = None,
    metadata_directory: str | None = None,
) -> str:
    """Build a wheel, compiled if it can be; return its name."""
    level = _level()
    target = Path(wheel_directory).resolve()
    metadata = metadata_directory and str(Path(metadata_directory).resolve())
    with TemporaryDirectory(prefix="orthia-build-") as name:
        directory = Path(name)
        if level is None:
            return _wheel(directory / "pure", target, config_settings, metadata)
        arguments = (directory / "compiled", target, config_settings, metadata)
        try:
            # A process of its own: the kernel ends one that wants too much memory, mypyc too.
            context = get_context("fork")
            with ProcessPoolExecutor(1, context, _end_with, (os.getpid(),)) as process:
                return process.submit(_compiled_wheel, level, *arguments).result()
        except (Exception, SystemExit) as error:
            # SystemExit is how setuptools ends for what a compiler reports, and for an interrupt.
            if os.environ.get(_VARIABLE) or str(error) == "interrupted":
                raise
            print(f"Not compiled, but pure Python: {error!r}", file=sys.stderr)
        return _wheel(directory / "pure", target, config_settings, metadata)


def _end_with(parent: int) -> None:
    """Have the kernel end this process when ``parent`` ends, however it does."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # it ended before the kernel knew


def _compiled_wheel(
    level: str, directory: Path, target: Path, settings: _Settings, metadata: str | None
) -> str:
    os.environ[_FOR_SETUP] = level
    name = _wheel(directory, directory, settings, metadata)
    with zipfile.ZipFile(directory / name) as wheel:
        machine_code = [one for one in wheel.namelist() if one.endswith(".so")]
        if not machine_code:
            raise SystemExit("the compiler ended well, and wrote nothing")
        for one in machine_code:
            ctypes.PyDLL(wheel.extract(one, directory / "tried"))
    shutil.move(directory / name, target / name)
    return name


def _wheel(directory: Path, target: Path, settings: _Settings, metadata: str | None) -> str:
    directory.mkdir()
    for pattern in _FILES:
        for file in Path().glob(pattern):
            shutil.copy(file, directory)
    leave = shutil.ignore_patterns("__pycache__")
    for folder in map(Path, _FOLDERS):
        if folder.is_dir():
            shutil.copytree(folder, directory / folder, symlinks=True, ignore=leave)
    with chdir(directory):
        name: str = build_meta.build_wheel(str(target), settings, metadata)
    return name


def _level() -> str | None:
    """Return how far to optimize, or None where nothing is compiled."""
    said = os.environ.get(_VARIABLE)
    if not said:
        return _OPTIMIZED if has_compiler() else None
    if said not in {"no", "0", "1", "2", "3"}:
        raise SystemExit(f"{_VARIABLE} is {said!r}: it may be no, or 0 to 3")
    return None if said == "no" else said


if __name__ == "__main__":
    print(_level() or "no")
