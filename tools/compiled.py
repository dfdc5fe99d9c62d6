"""The compiled modules of a checkout: find them, keep them, and use them for ``make run``.

mypyc compiles each module whose first line is ``MARK``. ``make compiled`` builds a wheel of them
and calls ``keep``, which puts the machine code of the wheel into ``.venv/compiled``. ``make run``
calls ``use``, which prints the PYTHONPATH for it. Modules that are not compiled are links to the
checkout there, so that changes act. Machine code whose sources have changed since is not used.
"""

import hashlib
import os
import re
import shutil
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from pathlib import Path

MARK = "# mypyc compiles this module.\n"

_KEPT = Path(".venv", "compiled")
_SOURCES = "sources.sha256"
"""The digests of the compiled sources, in the format of ``sha256sum --check``."""
_IMPORT = re.compile(r"^ *from (orthia(?:\.\w+)+) import", re.MULTILINE)


def marked(root: Path) -> list[str]:
    """Return the modules of ``orthia`` below ``root`` that are marked, as relative paths."""
    return sorted(str(path.relative_to(root)) for path in _modules(root) if _is_marked(path))


def check(root: Path) -> list[str]:
    """Return the marked modules below ``root``; raise SystemExit if one is not compiled."""
    modules = marked(root)
    pure = [module for module in modules if not _machine_code(root / module).exists()]
    if pure or not modules:
        raise SystemExit(f"Marked to be compiled, and not compiled: {' '.join(pure) or 'nothing'}")
    return modules


def keep(wheel: Path) -> None:
    """Put the machine code of ``wheel`` where ``use`` finds it, and remove the earlier one.

    Raises SystemExit if a marked module of the wheel has none.
    """
    new = _KEPT.with_name("compiled.new")
    shutil.rmtree(new, ignore_errors=True)
    try:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(new)
        compiled = check(new)
        lines = [f"{_digest(new / source)}  {source}\n" for source in _inputs(new, compiled)]
        for path in list(_files(new / "orthia")):
            if path.suffix != ".so":
                path.unlink()
        for pages in new.glob("*.data"):
            shutil.rmtree(pages)
        (new / _SOURCES).write_text("".join(lines), encoding="utf-8")
        shutil.rmtree(_KEPT, ignore_errors=True)
        new.rename(_KEPT)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def use() -> str:
    """Return the PYTHONPATH of the compiled modules; empty if there are none or they are outdated.

    If they are outdated, standard error says why.
    """
    try:
        lines = (_KEPT / _SOURCES).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return ""
    compiled_of = {source: digest for digest, _, source in (one.partition("  ") for one in lines)}
    changed = [source for source, digest in compiled_of.items() if _digest(Path(source)) != digest]
    changed += [module for module in marked(Path()) if module not in compiled_of]
    if not changed and not _machine_code(_KEPT / "orthia/broker/core/queue/queue.py").exists():
        changed = ["the Python of .venv"]
    if changed:
        others = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        print(
            f"Running in pure Python: {changed[0]}{others} changed after `make compiled`;"
            " that command compiles it again",
            file=sys.stderr,
        )
        return ""
    _link(Path("orthia"), _KEPT / "orthia")
    return str(_KEPT.absolute())


def _modules(root: Path) -> Iterator[Path]:
    return (path for path in _files(root / "orthia") if path.suffix == ".py")


def _files(directory: Path) -> Iterator[Path]:
    """Yield all files below; in a checkout the rooms are links, which ``rglob`` does not follow."""
    for found, _, names in os.walk(directory, followlinks=True):
        yield from (Path(found, name) for name in names)


def _is_marked(path: Path) -> bool:
    with path.open(encoding="utf-8") as file:
        return file.readline() == MARK


def _machine_code(module: Path) -> Path:
    """Return the path of a module's machine code for the running Python."""
    return module.with_suffix(str(sysconfig.get_config_var("EXT_SUFFIX")))


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except FileNotFoundError:
        return ""


def _inputs(root: Path, compiled: list[str]) -> list[str]:
    """Return the sources of the machine code: the modules, and modules whose constants they use.

    mypyc writes the value of a ``Final`` of another module into the code that imports it.
    """
    found = set(compiled)
    for module in compiled:
        for name in _IMPORT.findall((root / module).read_text(encoding="utf-8")):
            path = name.replace(".", "/")
            found |= {one for one in (f"{path}.py", f"{path}/__init__.py") if (root / one).exists()}
    return sorted(found)


def _link(source: Path, directory: Path) -> None:
    """Link everything in ``source`` that ``directory`` lacks into ``directory``.

    Several ``make run`` may do this at once.
    """
    there = {one.name: one for one in directory.iterdir()}
    for one in there.values():
        if one.is_symlink() and not one.exists():
            one.unlink(missing_ok=True)
    for one in source.iterdir():
        place = directory / one.name
        if place.is_dir() and not place.is_symlink():
            _link(one, place)
        elif one.name not in there and one.name != "__pycache__":
            try:
                place.symlink_to(one.resolve())
            except FileExistsError:
                continue


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["keep", wheel]:
            keep(Path(wheel))
        case ["use"]:
            print(use())
        case ["check"]:
            check(Path())
        case _:
            raise SystemExit("python -m tools.compiled keep WHEEL | use | check")
