"""Builds Orthia for pip (PEP 517): with setuptools, and with mypyc where there is a compiler.

What is hot is compiled if a C compiler and Python's headers are there; if that fails, the wheel is
pure Python all the same. ``ORTHIA_COMPILED`` in the environment has the last word: ``no`` compiles
nothing, and 0 to 3, how far the C compiler optimizes, has the build fail where compiling fails.
An editable install is never compiled: machine code would hide what is changed in the checkout.

There is no ``prepare_metadata_for_build_wheel``: the version says whether a wheel is compiled, and
that is known once it is built. pip builds it then to read the version, and installs what it built.
"""

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from configparser import ConfigParser
from multiprocessing import get_context
from pathlib import Path
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
    return tried.returncode == 0


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
    arguments = (wheel_directory, config_settings, metadata_directory)
    if level is None:
        return _wheel(*arguments)
    try:
        # A process of its own: the kernel ends one that wants too much memory, and mypyc itself.
        with ProcessPoolExecutor(1, mp_context=get_context("fork")) as process:
            return process.submit(_compiled_wheel, level, *arguments).result()
    except (Exception, SystemExit) as error:
        # SystemExit is how setuptools ends for whatever a compiler reports, and for an interrupt.
        if _VARIABLE in os.environ or str(error) == "interrupted":
            raise
        print(f"Not compiled, but pure Python: {error!r}", file=sys.stderr)
    finally:
        # What setuptools leaves says that this is compiled: also of what runs in the checkout.
        for said in Path().glob("*.egg-info"):
            shutil.rmtree(said)
    return _wheel(*arguments)


def _compiled_wheel(
    level: str, directory: str, settings: _Settings, metadata_directory: str | None
) -> str:
    os.environ[_FOR_SETUP] = level
    return _wheel(directory, settings, metadata_directory)


def _wheel(directory: str, settings: _Settings, metadata_directory: str | None) -> str:
    # What an earlier build left would be packed, too, or taken for what is to be compiled.
    for pattern in ("lib*", "temp.*", "bdist.*"):
        for left in Path("build").glob(pattern):
            shutil.rmtree(left)
    name: str = build_meta.build_wheel(directory, settings, metadata_directory)
    return name


def _level() -> str | None:
    """Return how far to optimize, or None where nothing is compiled."""
    said = os.environ.get(_VARIABLE)
    if said is None:
        return _OPTIMIZED if has_compiler() else None
    if said not in {"no", "0", "1", "2", "3"}:
        raise SystemExit(f"{_VARIABLE} is {said!r}: it may be no, or 0 to 3")
    return None if said == "no" else said


if __name__ == "__main__":
    print(_level() or "no")
