"""The wheel as operators install it: with its pages, its example and its unit."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the wheel of a copy of this tree: a build leaves files behind."""
    directory = tmp_path_factory.mktemp("wheel")
    leave = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__", "instance")
    shutil.copytree(_ROOT, directory / "orthia", symlinks=True, ignore=leave)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation"]
    places = ["--outdir", str(directory), str(directory / "orthia")]
    subprocess.run([*command, *places], check=True, stdout=subprocess.DEVNULL)
    (made,) = directory.glob("*.whl")
    return made


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
    """What is imported or read is in ``orthia``, and nothing is anywhere else."""
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".data/" not in name}
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"orthia"}
    rooms = ("broker", "config", "database", "journal", "migrations", "nodemanager", "pipeline")
    needed = {
        f"orthia/{path.relative_to(_ROOT)}"
        for room in rooms
        for path in (_ROOT / room).rglob("*.*")
        if path.suffix != ".pyc"
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
    subprocess.run(
        [*command, str(outdir), str(outdir / source)], check=True, stdout=subprocess.DEVNULL
    )
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
