"""What a command loads: nobody waits for a library that the command does not use."""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import click
import pytest

from orthia import config, nodemanager
from orthia.broker.cli.app import COMMANDS, orthia
from orthia.broker.cli.version import installed_version
from orthia.broker.node.exit_codes import CODES, ExitCode
from orthia.config.errors import OrthiaError
from tests.cli.test_failover_log import stopped_pair

_NEVER = (
    "alembic apscheduler cronsim cryptography h11 jwt lark prometheus_client pymysql pyspark rich"
    " uvloop wsproto"
)
"""What none of the commands below uses where its output is not a terminal."""
_NO_STORE = f"{_NEVER} sqlalchemy psycopg2 sqlite3 asyncio lxml"


def loaded_by(*arguments: str, exit_code: int = 0) -> set[str]:
    """Return the names of all modules that a process of ``orthia`` has loaded at its end."""
    program = (
        "import atexit, sys\n"
        "atexit.register(lambda: print(*sys.modules, file=sys.stderr))\n"
        "from orthia.broker.cli import main\n"
        "main()"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert finished.returncode == exit_code, finished.stderr
    return set(finished.stderr.split())


@pytest.mark.parametrize("argument", ["--version", "--help"])
def test_what_names_no_command_loads_none(argument: str) -> None:
    """The version and the list of commands need nothing but the command line itself."""
    loaded = loaded_by(argument)
    assert not loaded & {*_NO_STORE.split(), "email", "importlib.metadata", "ssl"}
    ours = {one for one in loaded if one.startswith("orthia.broker.cli.")}
    assert ours == {f"orthia.broker.cli.{one}" for one in ("app", "group", "version")}


@pytest.mark.parametrize(
    "words", ["status", "failover-log", "queue list", "db current", "produce", "consume", "live"]
)
def test_the_help_of_a_command_loads_no_store(words: str) -> None:
    """Options are shown without what they are for."""
    assert not loaded_by(*words.split(), "--help") & set(_NO_STORE.split())


@pytest.mark.parametrize(
    ("words", "exit_code"),
    [
        ("db current", 0),
        ("queue list", 0),
        ("failover-log", 0),
        ("status", ExitCode.NOBODY_LIVE),
    ],
)
def test_a_look_at_a_store_loads_no_broker(words: str, exit_code: int, sqlite_url: str) -> None:
    """Who reads a store needs its driver and the layer over it, and no node."""
    loaded = loaded_by(*words.split(), "--url", sqlite_url, exit_code=exit_code)
    assert "sqlalchemy" in loaded
    assert not loaded & {*_NEVER.split(), "lxml", "sqlalchemy.dialects.postgresql"}
    rooms = ["broker.core", "broker.protocols"]
    if words == "status":  # which scripts ask; where nobody is live it counts the outbox itself
        rooms += ["broker.connections", "broker.client"]
    assert not any(one.startswith(tuple(f"orthia.{room}" for room in rooms)) for one in loaded)


def test_a_summary_loads_no_spark(tmp_path: Path) -> None:
    """Neither Spark nor Arrow: a broker's host has neither."""
    log = stopped_pair(tmp_path / "log.jsonl")
    loaded = loaded_by("failover-log", "--summary", str(log))
    assert not loaded & {"pyspark", "pyarrow", "pandas", "numpy", "adbc_driver_postgresql"}


@pytest.mark.parametrize("words", ["audit", "failovers", "traffic", "export", "stream"])
def test_the_help_of_the_pipeline_loads_no_spark(words: str) -> None:
    """Options are shown at once, the command's own first."""
    loaded = loaded_by("pipeline", words, "--help")
    assert not loaded & {"pyspark", "pyarrow", "pandas", "numpy", "adbc_driver_postgresql"}


def test_the_list_of_commands_says_what_each_says_of_itself() -> None:
    """The summaries, which are listed without loading a command, are those of the commands."""
    context = click.Context(orthia)
    for name, summary in COMMANDS.items():
        command = orthia.get_command(context, name)
        assert command is not None
        assert (command.get_short_help_str(1_000), command.hidden) == (summary, False)


def test_every_exit_code_is_for_an_error_that_exists() -> None:
    """The classes that are named by text in the table of exit codes are errors of ours."""
    for full_name in CODES:
        module, _, name = full_name.rpartition(".")
        kind = getattr(__import__(module, fromlist=[name]), name)
        assert issubclass(kind, OrthiaError)
        assert (kind.__module__, kind.__qualname__) == (module, name)


@pytest.mark.parametrize("package", [config, nodemanager])
def test_a_package_has_what_it_offers(package: object) -> None:
    """Every name that a package offers is there when somebody asks; no other is."""
    for name in package.__all__:  # type: ignore[attr-defined]  # a module's
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'bogus'"):
        _ = package.bogus  # type: ignore[attr-defined]  # it is what is asked for


def test_the_version_is_that_of_what_is_installed() -> None:
    """The version that is read by the name of a directory is what importlib.metadata tells."""
    assert installed_version() == version("orthia")


@pytest.mark.parametrize("name", ["audit", "export", "failovers", "migrate", "replay", "traffic"])
def test_the_help_of_the_pipeline_begins_with_what_is_its_own(name: str) -> None:
    """Where the store is, and how Spark runs, is the same for all, and longer."""
    context = click.Context(orthia)
    group = orthia.get_command(context, "pipeline")
    assert isinstance(group, click.Group)
    command = group.get_command(context, name)
    assert command is not None
    options = [one.name for one in command.params if isinstance(one, click.Option)]
    assert options.index("as_json") < options.index("config_file") < options.index("master")
