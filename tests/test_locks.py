"""What ``make`` installs: all that setup.cfg asks for, each of one version, by its hash."""

import configparser
import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement

_ROOT = Path(__file__).parent.parent


def locked(name: str) -> dict[str, list[Requirement]]:
    """Return the packages of a lock by name; one may have several versions, for several Pythons."""
    text = (_ROOT / name).read_text().replace("\\\n", " ")
    found: dict[str, list[Requirement]] = {}
    for line in text.splitlines():
        requirement, *hashes = re.split(r"\s+--hash=", line.strip())
        assert hashes, f"{requirement} of {name} has no hash"
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", one) for one in hashes), requirement
        read = Requirement(requirement)
        found.setdefault(read.name.lower(), []).append(read)
    return found


def asked_for(*extras: str) -> list[Requirement]:
    """Return what setup.cfg asks for."""
    config = configparser.ConfigParser(interpolation=None)
    config.read(_ROOT / "setup.cfg")
    texts = [config["options"]["install_requires"]]
    texts += [config["options.extras_require"][extra] for extra in extras]
    lines = [line.partition("#")[0].strip() for text in texts for line in text.splitlines()]
    return [Requirement(line) for line in lines if line]


@pytest.mark.parametrize(
    ("name", "extras"),
    [
        ("requirements.lock", ()),
        ("requirements-compile.lock", ("compile",)),
        ("requirements-test.lock", ("compile", "test", "pipeline")),
    ],
)
def test_a_lock_has_what_setup_cfg_asks_for(name: str, extras: tuple[str, ...]) -> None:
    """Each package in a version that is allowed; nothing is found by its name alone."""
    lock = locked(name)
    for wanted in asked_for(*extras):
        pinned = lock[re.sub(r"[-_.]+", "-", wanted.name.lower())]
        for one in pinned:
            (version,) = one.specifier
            assert version.operator == "=="
            assert wanted.specifier.contains(version.version), wanted


def test_a_lock_names_no_index() -> None:
    """Packages come from wherever pip is configured to find them."""
    for path in _ROOT.glob("requirements*.lock"):
        assert not re.search("://|--(extra-)?index", path.read_text()), path.name


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-compile.lock"])
def test_the_locks_agree(name: str) -> None:
    """A node in the tests runs on what a node anywhere else runs on, compiled by the same."""
    tested = locked("requirements-test.lock")
    for package, pinned in locked(name).items():
        assert {str(one.specifier) for one in pinned} == {
            str(one.specifier) for one in tested[package]
        }, package
