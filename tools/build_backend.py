"""Builds Orthia for pip (PEP 517): with setuptools, and with mypyc where that is asked for.

``ORTHIA_COMPILED`` in the environment asks: 0 to 3 is how far the C compiler optimizes. Unset, or
``no``, the wheel is pure Python. An editable install is never compiled: machine code would hide
what is changed in the checkout. pip shows how far it is with ``--verbose`` only.

A wheel is built in a copy of the tree: builds at the same time have nothing in common, a checkout
that cannot be written to can be installed, and nothing of an earlier build is packed.
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
"""Set while setup.py is to compile or to name what is compiled; users do not set it."""
_FOLDERS = (
    *("benchmarks", "broker", "config", "database", "docs", "examples", "journal"),
    *("migrations", "nodemanager", "orthia", "pipeline", "tests/simulation", "tools"),
)
_FILES = ("*.md", "*.in", "*.example", "PKG-INFO", "pyproject.toml", "setup.cfg", "setup.py")
"""What is built of, as far as it is there: in a source archive the rooms are in orthia/ only."""
_Settings = Mapping[str, Any] | None


def get_requires_for_build_wheel(config_settings: _Settings = None) -> list[str]:
    """Return what pyproject.toml does not say: to compile, mypy and whatever it reads types of."""
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
    """Build a wheel, compiled if that is asked for; return its name."""
    level = _level()
    target = Path(wheel_directory).resolve()
    metadata = metadata_directory and str(Path(metadata_directory).resolve())
    with _copy(level) as copy:
        # Of setuptools' hundreds of lines none, so that those that say how far it is are seen.
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
    """Be in a copy of the tree, with ``for_setup`` for its setup.py."""
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
    """Load what was compiled: a compiler may end well, and have written what cannot be loaded."""
    with zipfile.ZipFile(wheel) as archive:
        machine_code = [one for one in archive.namelist() if one.endswith(".so")]
        if not machine_code:
            raise SystemExit("The C compiler ended well, and wrote nothing")
        for one in machine_code:
            ctypes.PyDLL(archive.extract(one, wheel.parent / "tried"))


def _level() -> str | None:
    """Return how far to optimize, or None where nothing is compiled."""
    said = os.environ.get(_VARIABLE) or "no"
    if said not in {"no", "0", "1", "2", "3"}:
        raise SystemExit(f"{_VARIABLE} is {said!r}: it may be no, or 0 to 3")
    if said == "no":
        return None
    _require_compiler()
    return said


def _require_compiler() -> None:
    """Raise SystemExit where no extension can be compiled: for want of a compiler or of headers."""
    named = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    try:
        command = [*shlex.split(named), "-E", "-I", sysconfig.get_path("include"), "-"]
        tried = subprocess.run(  # noqa: S603 - the compiler that setuptools would call
            command, input=b"#include <Python.h>\n", capture_output=True, check=False
        )
    except (OSError, ValueError) as error:
        # There is none of that name, or it is none: a quotation without an end.
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
    # What pip does, but it shows how far that is.
    print(build_wheel(sys.argv[1]))
