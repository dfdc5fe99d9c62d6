"""Build Orthia for pip (PEP 517): with setuptools, and with mypyc if the environment asks for it.

``ORTHIA_COMPILED`` asks: 0 to 3 is the optimization level of the C compiler. Unset, or ``no``, the
wheel is pure Python. An editable install is never compiled: machine code would hide changes in the
checkout. pip shows the progress only with ``--verbose``.

A wheel is built in a copy of the tree. So concurrent builds do not share files, a read-only
checkout can be installed, and nothing of an earlier build gets into the wheel.
"""

import ctypes
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator, Mapping
from configparser import ConfigParser
from contextlib import chdir, contextmanager
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
    "prepare_metadata_for_build_wheel",
]

_VARIABLE = "ORTHIA_COMPILED"
_FOR_SETUP = "_ORTHIA_MYPYC_LEVEL"
"""Tells setup.py to compile, or to name the compiled version; users do not set it."""
_FOLDERS = (
    *("benchmarks", "broker", "config", "database", "docs", "examples", "journal"),
    *("migrations", "nodemanager", "orthia", "pipeline", "tests/simulation", "tools"),
)
_FILES = (
    *("*.md", "*.in", "*.example", "PKG-INFO", "pyproject.toml", "setup.cfg", "setup.py"),
    "pyspark_orthia_*.py",
)
"""The sources of a wheel, where they exist: a source archive has the rooms in orthia/ only."""
_Settings = Mapping[str, Any] | None


def get_requires_for_build_wheel(config_settings: _Settings = None) -> list[str]:
    """Return what to install beyond pyproject.toml: to compile, mypy and packages with types."""
    requires: list[str] = build_meta.get_requires_for_build_wheel(config_settings)
    if _level() is None:
        return requires
    config = ConfigParser()
    config.read(Path("setup.cfg"), encoding="utf-8")
    used = config["options"]["install_requires"].splitlines()
    types = config["options.extras_require"]["compile"].splitlines()
    return [*requires, *filter(None, used), *filter(None, types)]


def prepare_metadata_for_build_wheel(
    metadata_directory: str, config_settings: _Settings = None
) -> str:
    """Write the metadata of the wheel that ``build_wheel`` would build; return its directory."""
    target = Path(metadata_directory).resolve()
    with _copy(None if _level() is None else "version"):
        name: str = build_meta.prepare_metadata_for_build_wheel(str(target), config_settings)
    return name


def build_wheel(
    wheel_directory: str,
    config_settings: _Settings = None,
    metadata_directory: str | None = None,
) -> str:
    """Build a wheel, compiled if ``ORTHIA_COMPILED`` asks for it; return its name."""
    level = _level()
    target = Path(wheel_directory).resolve()
    metadata = metadata_directory and str(Path(metadata_directory).resolve())
    with _copy(level) as copy:
        # Quiet, so that the progress is not lost among hundreds of lines of setuptools.
        name: str = build_meta.build_wheel(
            str(copy), {"--quiet": None, **(config_settings or {})}, metadata
        )
        if level is not None:
            _try(copy / name)
        target.mkdir(parents=True, exist_ok=True)
        shutil.move(copy / name, target / name)
    return name


@contextmanager
def _copy(for_setup: str | None) -> Iterator[Path]:
    """Work in a copy of the tree; ``for_setup`` tells its setup.py what to compile."""
    with TemporaryDirectory(prefix="orthia-build-") as name:
        copy = Path(name, "orthia")
        copy.mkdir()
        for pattern in _FILES:
            for file in Path().glob(pattern):
                shutil.copy(file, copy)
        leave = shutil.ignore_patterns("__pycache__", "node_modules", "build")
        for folder in map(Path, _FOLDERS):
            if folder.is_dir():
                shutil.copytree(folder, copy / folder, symlinks=True, ignore=leave)
        with chdir(copy):
            if for_setup is not None:
                os.environ[_FOR_SETUP] = for_setup
            try:
                yield copy
            finally:
                os.environ.pop(_FOR_SETUP, None)


def _try(wheel: Path) -> None:
    """Load the compiled modules: a compiler can succeed and write modules that do not load."""
    with zipfile.ZipFile(wheel) as archive:
        machine_code = [one for one in archive.namelist() if one.endswith(".so")]
        if not machine_code:
            raise SystemExit("The C compiler succeeded but wrote no modules")
        for one in machine_code:
            ctypes.PyDLL(archive.extract(one, wheel.parent / "tried"))


def _level() -> str | None:
    """Return the optimization level, or None to compile nothing."""
    said = os.environ.get(_VARIABLE) or "no"
    if said not in {"no", "0", "1", "2", "3"}:
        raise SystemExit(f"{_VARIABLE} is {said!r}: it may be no, or 0 to 3")
    if said == "no":
        return None
    _require_compiler()
    return said


def _require_compiler() -> None:
    """Raise SystemExit if the C compiler or Python's headers are missing."""
    named = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    try:
        command = [*shlex.split(named), "-E", "-I", sysconfig.get_path("include"), "-"]
        tried = subprocess.run(  # noqa: S603 - the compiler that setuptools would call
            command, input=b"#include <Python.h>\n", capture_output=True, check=False
        )
    except (OSError, ValueError) as error:
        # No program of that name, or a quotation without an end.
        raise SystemExit(_without(f"{named!r} cannot be called: {error}")) from error
    if tried.returncode != 0:
        raise SystemExit(_without(f"{named!r} does not find Python.h:\n{tried.stderr.decode()}"))


def _without(found: str) -> str:
    return (
        f"{_VARIABLE} asks for a C compiler and Python's headers, and {found}\n"
        "Debian has them in gcc, libc6-dev and python3-dev; without that variable nothing is"
        " compiled"
    )


if __name__ == "__main__":
    # As pip does, but with the progress shown.
    print(build_wheel(sys.argv[1]))
