"""The wheel as operators install it: with its pages, its example and its unit."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.extended

_ROOT = Path(__file__).parents[1]
_BUILDERS = frozenset({"ORTHIA_COMPILED", "CC"})
_PURE = os.environ | {"ORTHIA_COMPILED": "no"}
_LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")


def copied(directory: Path) -> Path:
    """Return a copy of this tree in ``directory``: a build leaves files behind."""
    leave = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__", "instance")
    return shutil.copytree(_ROOT, directory / "orthia", symlinks=True, ignore=leave)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the wheel of this tree in pure Python, and the copy it was built of beside it."""
    directory = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation"]
    places = ["--outdir", str(directory), str(copied(directory))]
    subprocess.run([*command, *places], check=True, stdout=subprocess.DEVNULL, env=_PURE)
    (made,) = directory.glob("*.whl")
    return made


_MYPYC = """
from setuptools import Extension

def mypycify(modules, **options):
    with open("compiled.c", "w") as file:
        file.write({module!r})
    return [Extension("orthia.compiled", ["compiled.c"])]
"""


@dataclass
class Build:
    """What is built of a copy, where a stand-in for mypyc writes one small module."""

    directory: Path
    module: str
    """The C of it."""
    mypyc: str = _MYPYC

    def command(self, hook: str) -> list[str]:
        """Return what a front end such as pip runs for ``hook`` in the copy."""
        program = f"import build_backend as b; print(b.{hook})"
        return [sys.executable, "-W", "ignore", "-c", program]

    def environment(self) -> dict[str, str]:
        """Return the environment for it, of which what the caller builds with is no part."""
        path = f"{self.directory / 'stand-in'}:{self.directory / 'orthia' / 'tools'}"
        kept = {name: said for name, said in os.environ.items() if name not in _BUILDERS}
        return kept | {"PYTHONPATH": path, "TMPDIR": str(self.directory)}

    def write(self) -> Path:
        """Write the copy, if it is not there yet, and return its place."""
        source = self.directory / "orthia"
        stand_in = self.directory / "stand-in" / "mypyc"
        if not source.exists():
            copied(self.directory)
            stand_in.mkdir(parents=True)
            (stand_in / "__init__.py").touch()
            (stand_in / "build.py").write_text(self.mypyc.format(module=self.module))
        return source

    def run(self, hook: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Have the build back end do what a front end such as pip asks for."""
        return subprocess.run(
            self.command(hook),
            cwd=self.write(),
            env=self.environment() | environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def wheel(self, **environment: str) -> str:
        """Return the name of the wheel that is built."""
        done = self.run(f"build_wheel({str(self.directory)!r})", **environment)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()[-1]


_MODULE = """
#include <Python.h>
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "compiled", NULL, -1, NULL};
PyMODINIT_FUNC PyInit_compiled(void) { return PyModule_Create(&module); }
"""


def test_a_wheel_is_compiled_where_that_is_asked_for(tmp_path: Path) -> None:
    """Its name says so, and mypy is required; without ``ORTHIA_COMPILED`` it is pure Python."""
    build = Build(tmp_path, _MODULE)
    for said in ("", "no"):
        assert build.wheel(ORTHIA_COMPILED=said).endswith("-py3-none-any.whl")
    assert "+compiled-cp3" in build.wheel(ORTHIA_COMPILED="2")
    # By these a program that runs in the checkout, which is not compiled, would say that it is.
    assert not list((tmp_path / "orthia").glob("*.egg-info"))
    for said, requires_mypy in (("2", True), ("no", False), ("", False)):
        asked = build.run("get_requires_for_build_wheel()", ORTHIA_COMPILED=said)
        assert ("'mypy'" in asked.stdout) == requires_mypy


def test_metadata_says_whether_a_wheel_is_compiled(tmp_path: Path) -> None:
    """It is written before anything is compiled, and pip compares it with the wheel's."""
    build = Build(tmp_path, _MODULE, mypyc="raise ImportError('nothing is compiled for this')")
    hook = f"prepare_metadata_for_build_wheel({str(tmp_path)!r})"
    assert "+compiled" in build.run(hook, ORTHIA_COMPILED="2").stdout
    assert "+compiled" not in build.run(hook).stdout
    assert not list((tmp_path / "orthia").glob("*.egg-info"))


def test_every_marked_module_is_compiled(tmp_path: Path) -> None:
    """mypyc is given those whose first line says so, wherever they are, and no other."""
    mypyc = """
def mypycify(modules, **options):
    raise SystemExit("given " + " ".join(modules))
"""
    build = Build(tmp_path, _MODULE, mypyc=mypyc)
    done = build.run(f"build_wheel({str(tmp_path)!r})", ORTHIA_COMPILED="2")
    (given,) = (line for line in done.stderr.splitlines() if line.startswith("given "))
    rooms = [_ROOT / room for room in ("broker", "config", "database", "journal", "nodemanager")]
    text = {path: path.read_text() for room in rooms for path in room.rglob("*.py")}
    assert given.split()[1:] == sorted(
        f"orthia/{path.relative_to(_ROOT)}"
        for path, lines in text.items()
        if lines.startswith("# mypyc compiles this module.\n")
    )
    assert any("core/queue" in one for one in given.split())


def test_what_cannot_be_compiled_fails(tmp_path: Path) -> None:
    """Whoever asked for it is told what is wrong, and before mypyc works if that can be."""
    build = Build(tmp_path, _MODULE)
    hook = f"build_wheel({str(tmp_path)!r})"
    for missing in ("/bin/false", "/no/compiler", "cc 'no end"):
        done = build.run(hook, CC=missing, ORTHIA_COMPILED="2")
        assert done.returncode != 0
        assert f"{missing!r}" in done.stderr
        assert "gcc, libc6-dev and python3-dev" in done.stderr
        assert build.wheel(CC=missing).endswith("-py3-none-any.whl")
    refused = build.run("get_requires_for_build_wheel()", ORTHIA_COMPILED="yes")
    assert "ORTHIA_COMPILED is 'yes': it may be no, or 0 to 3" in refused.stderr
    broken = Build(tmp_path / "broken", "#error this is no module\n").run(hook, ORTHIA_COMPILED="2")
    assert broken.returncode != 0
    assert "this is no module" in broken.stderr
    assert not list(tmp_path.glob("*compiled*.whl"))


def test_an_editable_install_is_never_compiled(tmp_path: Path) -> None:
    """Machine code would hide what is changed in the checkout."""
    build = Build(tmp_path, _MODULE, mypyc="raise ImportError('there is no mypyc')")
    into = f"({str(tmp_path)!r})"
    hooks = ["get_requires_for_build_editable()", "get_requires_for_build_sdist()"]
    hooks += [f"prepare_metadata_for_build_editable{into}", f"build_editable{into}"]
    for hook in hooks:
        for said in ("no", "2"):
            built = build.run(hook, ORTHIA_COMPILED=said)
            assert built.returncode == 0, built.stderr
            assert "+compiled" not in built.stdout.splitlines()[-1]
    assert not list((tmp_path / "orthia").rglob("*.so"))


def test_nothing_is_left_in_the_checkout_and_nothing_of_it_packed(tmp_path: Path) -> None:
    """What setuptools once built there, or lists, is not what is there now."""
    build = Build(tmp_path, _MODULE)
    source = build.write()
    left = source / "build" / "lib" / "orthia"
    left.mkdir(parents=True)
    (left / "left.py").touch()
    before = sorted(source.rglob("*"))
    for said in ("2", "no"):
        with zipfile.ZipFile(tmp_path / build.wheel(ORTHIA_COMPILED=said)) as archive:
            assert "orthia/left.py" not in archive.namelist()
    after = [path for path in sorted(source.rglob("*")) if "__pycache__" not in path.parts]
    assert after == before


def test_a_checkout_may_be_built_several_times_at_once(tmp_path: Path) -> None:
    """Each has its own copy: shared, one would pack or remove what another writes."""
    build = Build(tmp_path, _MODULE)
    source = build.write()
    names = [f"into{number}" for number in range(3)]
    building = []
    for name in names:
        (tmp_path / name).mkdir()
        command = build.command(f"build_wheel({str(tmp_path / name)!r})")
        building.append(
            subprocess.Popen(
                command,
                cwd=source,
                env=build.environment() | {"ORTHIA_COMPILED": "2"},
                stdout=subprocess.DEVNULL,
            )
        )
    assert [one.wait(240) for one in building] == [0, 0, 0]
    held = []
    for name in names:
        (made,) = (tmp_path / name).iterdir()
        with zipfile.ZipFile(made) as archive:
            assert archive.testzip() is None
            held.append(sorted(archive.namelist()))
    assert held[0] == held[1] == held[2]


def test_a_compiler_that_writes_nothing_is_none(tmp_path: Path) -> None:
    """Nor one whose modules cannot be loaded: what is called compiled would not be."""
    hook = f"build_wheel({str(tmp_path)!r})"
    idle = Build(tmp_path, _MODULE).run(hook, CC="true", ORTHIA_COMPILED="2")
    assert idle.returncode != 0
    unloadable = Build(
        tmp_path / "other", _MODULE + "extern void nowhere(void);void (*called)(void) = nowhere;"
    )
    done = unloadable.run(hook, ORTHIA_COMPILED="2")
    assert done.returncode != 0
    assert "undefined symbol: nowhere" in done.stderr


class Checkout:
    """A small checkout, for which a wheel with machine code was made.

    ``queue`` is compiled; beside it is a module that is not, and one of which it has a constant.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        core = directory / "broker" / "core" / "queue"
        core.mkdir(parents=True)
        self.queue = core / "queue.py"
        self.queue.write_text(
            "# mypyc compiles this module.\nfrom orthia.broker.core.queue.limits import MOST\n"
        )
        (core / "limits.py").write_text("MOST = 1\n")
        (core / "routing.py").touch()
        (directory / "orthia").mkdir()
        (directory / "orthia" / "broker").symlink_to("../broker")
        with zipfile.ZipFile(directory / "made.whl", "w") as wheel:
            for path in core.iterdir():
                wheel.write(path, f"orthia/broker/core/queue/{path.name}")
            wheel.writestr(f"orthia/broker/core/queue/queue{_EXTENSION}", "machine code")
            wheel.writestr("orthia-0.1.0+compiled.dist-info/METADATA", "Version: 0.1.0+compiled")

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the program by which make keeps and uses what is compiled."""
        return subprocess.run(
            [sys.executable, str(_ROOT / "tools" / "compiled.py"), *arguments],
            cwd=self.directory,
            capture_output=True,
            text=True,
            check=False,
        )

    def used(self) -> Path:
        """Return where what is used is; fails where it is said that it is out of date."""
        done = self.run("use")
        assert not done.stderr
        return Path(done.stdout.strip())


_EXTENSION = str(sysconfig.get_config_var("EXT_SUFFIX"))


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """Give a checkout that keeps what was compiled of it."""
    made = Checkout(tmp_path)
    assert made.run("use").stdout == "\n"
    assert made.run("keep", "made.whl").returncode == 0
    return made


def test_make_run_takes_what_is_compiled_and_the_rest_from_the_checkout(checkout: Checkout) -> None:
    """A change of what is not compiled acts; new modules are there, removed ones are not."""
    core = checkout.used() / "orthia" / "broker" / "core" / "queue"
    assert (core / f"queue{_EXTENSION}").read_text() == "machine code"
    (checkout.queue.with_name("routing.py")).write_text("CHANGED = True\n")
    (checkout.queue.with_name("added.py")).touch()
    checkout.used()
    assert (core / "routing.py").read_text() == "CHANGED = True\n"
    assert (core / "added.py").exists()
    (checkout.queue.with_name("added.py")).unlink()
    checkout.used()
    assert not (core / "added.py").is_symlink()


@pytest.mark.parametrize("changed", ["queue.py", "limits.py", "newly_marked.py"])
def test_make_run_is_pure_python_when_what_is_compiled_has_changed(
    checkout: Checkout, changed: str
) -> None:
    """It says what has changed, and what compiles it again; undone, it is compiled again."""
    path = checkout.queue.with_name(changed)
    before = path.read_text() if path.exists() else ""
    # A constant is of a module that is not compiled itself.
    mark = "" if changed == "limits.py" else "# mypyc compiles this module.\n"
    path.write_text(f"{mark}MOST = 2\n")
    done = checkout.run("use")
    assert done.stdout == "\n"
    (line,) = done.stderr.splitlines()
    assert f"orthia/broker/core/queue/{changed} changed" in line
    assert "`make compiled`" in line
    path.write_text(before)
    assert checkout.used().is_dir()


def test_a_wheel_without_machine_code_of_a_marked_module_is_not_kept(checkout: Checkout) -> None:
    """What was kept before stays."""
    with zipfile.ZipFile(checkout.directory / "pure.whl", "w") as wheel:
        wheel.write(checkout.queue, "orthia/broker/core/queue/queue.py")
    done = checkout.run("keep", "pure.whl")
    assert "orthia/broker/core/queue/queue.py" in done.stderr
    assert done.returncode != 0
    assert checkout.used().is_dir()


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    """Give a directory with the wheel installed in it."""
    prefix = wheel.parent / "prefix"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    options = ["--no-warn-script-location", "--disable-pip-version-check", "--ignore-installed"]
    subprocess.run([*command, *options, "--prefix", str(prefix), str(wheel)], check=True)
    return prefix


def orthia(installed: Path, *arguments: str) -> str:
    """Run the installed ``orthia`` and return what it printed."""
    base = {"base": str(installed), "platbase": str(installed)}
    return subprocess.run(
        [sys.executable, "-m", "orthia.broker.cli", *arguments],
        env=os.environ | {"PYTHONPATH": sysconfig.get_path("purelib", "posix_prefix", vars=base)},
        cwd=installed,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout


def test_the_wheel_has_every_module_and_no_test(wheel: Path) -> None:
    """What is imported or read is in ``orthia``, but for the modules that Spark looks for."""
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".data/" not in name}
    found = {name for name in names if "/" not in name}
    assert found == {path.name for path in _ROOT.glob("pyspark_orthia_*.py")}
    assert len(found) == 4
    assert {name.partition("/")[0].partition("-")[0] for name in names - found} == {"orthia"}
    rooms = ("broker", "config", "database", "journal", "migrations", "nodemanager", "pipeline")
    needed = {
        f"orthia/{path.relative_to(_ROOT)}"
        for room in rooms
        for path in (_ROOT / room).rglob("*.*")
        # Where other workers' files come and go, by names of their own before they are whole.
        if "__pycache__" not in path.parts
    }
    assert {"orthia/py.typed", "orthia/config/configuration.xsd"} <= names
    assert needed <= names


def test_the_source_archive_makes_the_same_wheel(wheel: Path) -> None:
    """The links in it are folders, as whoever unpacks it may not have links."""
    command = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir"]
    outdir = wheel.parent / "archive"
    subprocess.run(
        [*command, str(outdir), str(wheel.parent / "orthia")],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    (made,) = outdir.glob("*.tar.gz")
    with tarfile.open(made) as archive:
        assert not [one.name for one in archive if one.islnk() or one.issym()]
        if hasattr(tarfile, "data_filter"):  # which Python has from 3.11.4 on
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(outdir)  # noqa: S202 - what this test has made
    source = made.name.removesuffix(".tar.gz")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir"]
    command += [str(outdir), str(outdir / source)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=_PURE)
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(outdir / wheel.name) as other:
        assert {*other.namelist()} == {*one.namelist()}


def test_the_installed_command_shows_every_page(installed: Path) -> None:
    """The pages of docs/, the example and the unit, each as it is in the source tree."""
    root = Path(orthia(installed, "docs", "--path").strip())
    assert root.is_relative_to(installed)
    listed = orthia(installed, "docs")
    for path in [*(_ROOT / "docs").glob("*.*"), _ROOT / "broker.xml.example"]:
        assert (root / path.relative_to(_ROOT)).read_bytes() == path.read_bytes()
        assert path.name.removesuffix(".md") in listed
    unit = Path(orthia(installed, "docs", "--path", "orthia@.service").strip())
    assert unit.read_bytes() == (_ROOT / "docs" / "orthia@.service").read_bytes()


def test_links_between_installed_pages_hold(installed: Path) -> None:
    """A page that one is sent to is there."""
    root = Path(orthia(installed, "docs", "--path").strip())
    pages = list(root.rglob("*.md"))
    assert len(pages) > 20
    broken = [
        f"{page.relative_to(root)}: {target}"
        for page in pages
        for target in _LINK.findall(page.read_text(encoding="utf-8"))
        if not (page.parent / target).exists()
    ]
    assert not broken, broken
