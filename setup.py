"""What setup.cfg cannot say: mypyc compiles the modules that are marked for it, where it is to.

tools/build_backend.py, which runs this, decides that, and how far the C compiler optimizes.
The version of what is compiled ends in ``+compiled``: ``orthia --version`` and the line a node
starts with say so.
"""

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from configparser import ConfigParser
from pathlib import Path
from typing import Any

from setuptools import setup
from setuptools.command.build_ext import build_ext

_LEVEL = os.environ.get("_ORTHIA_MYPYC_LEVEL")


def _say(progress: str) -> None:
    sys.stderr.write(f"{progress}\n")


class _InParallel(build_ext):  # type: ignore[misc]  # whose types mypy does not see
    """Compile the files of an extension side by side; setuptools does so with extensions only."""

    def build_extensions(self) -> None:
        """Build them all, and say how far it is."""
        files = {file for extension in self.extensions for file in extension.sources}
        compile_in_turn = self.compiler.compile
        lock = threading.Lock()
        done = 0

        def compile_one(source: str, arguments: dict[str, Any]) -> list[str]:
            nonlocal done
            objects: list[str] = compile_in_turn([source], **arguments)
            with lock:
                done += 1
                if done % 10 == 0 or done == len(files):
                    _say(f"Compiled {done} of {len(files)} files of C")
            return objects

        def compile_all(sources: list[str], **arguments: Any) -> list[str]:
            with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
                found = pool.map(lambda source: compile_one(source, arguments), sources)
                return [one for objects in found for one in objects]

        self.compiler.compile = compile_all
        super().build_extensions()


def _options() -> dict[str, Any]:
    """Return what a compiled Orthia has beyond setup.cfg."""
    config = ConfigParser()
    config.read("setup.cfg", encoding="utf-8")
    # Not by egg_info's tag_build, which setuptools writes into a source archive as it is there.
    options: dict[str, Any] = {"version": f"{config['metadata']['version']}+compiled"}
    if _LEVEL == "version":
        return options
    sys.path.insert(0, str(Path.cwd()))
    from mypyc.build import mypycify

    from tools.compiled import marked

    modules = marked(Path())
    _say(f"Translating {len(modules)} modules to C with mypyc, about a quarter of a minute")
    # A file of C for each module, which are compiled side by side. As one file they take half as
    # much processor time again, of one processor; as an extension each, twice as much and more.
    options["ext_modules"] = mypycify(
        modules, opt_level=str(_LEVEL), debug_level="0", multi_file=True, group_name="orthia"
    )
    options["cmdclass"] = {"build_ext": _InParallel}
    return options


setup(**({} if _LEVEL is None else _options()))
