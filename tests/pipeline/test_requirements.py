"""What is said when Java or the extra is not there, and that a broker needs neither."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from orthia.pipeline.errors import MissingRequirement
from orthia.pipeline.requirements import java_home, require_extra, require_names
from tests.cli.conftest import Run, run

__all__ = ["run"]


def java(home: Path, version: str) -> Path:
    """Make something that says it is this Java; return its home."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    program.chmod(0o755)
    return home


def test_the_java_that_is_configured_is_used(tmp_path: Path) -> None:
    """JAVA_HOME wins over the PATH."""
    configured, other = java(tmp_path / "a", "21.0.2"), java(tmp_path / "b", "17.0.15")
    environment = {"JAVA_HOME": str(configured), "PATH": f"{other / 'bin'}"}
    assert java_home(environment) == configured


def test_a_java_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    """Java 8 in JAVA_HOME does not hide the 17 on the PATH."""
    old, new = java(tmp_path / "old", "1.8.0_392"), java(tmp_path / "new", "17.0.15")
    assert java_home({"JAVA_HOME": str(old), "PATH": str(new / "bin")}) == new


def test_without_java_the_command_that_installs_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names what was found, what is needed, and how to get it."""
    monkeypatch.setattr("orthia.pipeline.requirements._JVM_DIRECTORY", tmp_path / "none")
    old = java(tmp_path / "old", "11.0.1")
    with pytest.raises(MissingRequirement, match=r"Java 11.*apt-get install default-jre") as caught:
        java_home({"JAVA_HOME": str(old), "PATH": str(tmp_path)})
    assert "Java 17 or newer" in str(caught.value)


def test_a_java_that_does_not_start_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An option it refuses, in JDK_JAVA_OPTIONS say, is not told as a Java that is not there."""
    monkeypatch.setattr("orthia.pipeline.requirements._JVM_DIRECTORY", tmp_path / "none")
    home = java(tmp_path / "java", "17.0.1")
    (home / "bin" / "java").write_text(
        "#!/bin/sh\necho 'NOTE: Picked up JDK_JAVA_OPTIONS: -XX:+Nonsense' >&2\n"
        "echo \"Error: VM option 'Nonsense' is not known\" >&2\nexit 1\n"
    )
    with pytest.raises(MissingRequirement, match=r"ended with 1 .*'Nonsense' is not known"):
        java_home({"JAVA_HOME": str(home), "PATH": str(tmp_path)})


def test_without_the_extra_the_command_that_installs_it_is_told(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``orthia pipeline`` is there without Spark, and says what it needs."""
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "orthia.pipeline.requirements.importlib.util.find_spec",
        lambda name: None if name == "pyspark" else find(name),
    )
    with pytest.raises(MissingRequirement, match=r"-m pip install '\.\[pipeline\]'"):
        require_extra()
    result = run("pipeline", "failovers", "nowhere")
    assert result.exit_code == 69
    assert "WHEEL[pipeline]" in result.stderr
    assert run("pipeline", "--help").exit_code == 0


def test_the_command_line_starts_without_spark() -> None:
    """A broker's host has none of it, and a node does not pay for it."""
    heavy = ("pyspark", "pyarrow", "pandas", "numpy", "matplotlib")
    code = f"import orthia.broker.cli, sys; print([n for n in {heavy} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("spoil", "line"),
    [
        ("pwd.getpwuid", r"orthia:x:\d+:\d+::/tmp:/usr/sbin/nologin` to /etc/passwd"),
        ("socket.getaddrinfo", r"127\.0\.0\.1 \S+` to /etc/hosts, or set SPARK_LOCAL_IP"),
    ],
)
def test_a_user_or_a_host_without_a_name_is_told_the_line_to_add(
    monkeypatch: pytest.MonkeyPatch, spoil: str, line: str
) -> None:
    """Java ends with a page of its own otherwise."""

    def nothing(*_: object) -> None:
        raise KeyError if spoil.startswith("pwd") else OSError

    require_names({})
    monkeypatch.setattr(spoil, nothing)
    with pytest.raises(MissingRequirement, match=line):
        require_names({})
    if spoil.startswith("socket"):
        require_names({"SPARK_LOCAL_IP": "127.0.0.1"})
