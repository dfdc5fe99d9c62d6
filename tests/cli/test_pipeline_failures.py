"""How jobs of the pipeline end when they fail: one line, and a code for each kind of failure."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.exceptions import Exit

from orthia.broker.cli.pipeline.failures import explained, in_one_line
from orthia.broker.node.exit_codes import ExitCode
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.config.urls import DatabaseUrl
from orthia.journal.model.unit import Unit
from orthia.pipeline.errors import BadOption, ClusterUnreachable, MigrationFailed, MigrationRefused
from orthia.pipeline.masters import check_master, check_reachable
from tests.cli.conftest import Run
from tests.journal.support import QUEUE, SqlJournalStore, payload
from tests.pipeline.conftest import QUICK_ENVIRONMENT, QUICK_START
from tests.support.waiting import wait_until

pytestmark = pytest.mark.extended

IN_A_WORKER = """Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 times
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 5, in main
{error}

	at org.apache.spark.api.python.BasePythonRunner"""


@pytest.mark.parametrize(
    ("error", "line", "code"),
    [
        (BadOption("no such table"), "no such table", 64),
        (MigrationRefused("it is held"), "it is held", 69),
        (MigrationFailed("it differs"), "it differs", 1),
        (
            RuntimeError(
                IN_A_WORKER.format(
                    error="orthia.database.errors.StoreUnavailable: connect: refused"
                )
            ),
            "connect: refused",
            69,
        ),
        (
            RuntimeError(
                IN_A_WORKER.format(error="orthia.journal.errors.JournalDamaged: a.amq: torn")
            ),
            "a.amq: torn",
            74,
        ),
        (
            RuntimeError("[FAILED_READ_FILE.NO_HINT] Encountered error while reading a.parquet.\n"),
            "cannot be read: Encountered error while reading a.parquet.",
            65,
        ),
        (
            RuntimeError("calling o1.start.\n: java.io.IOException: No space left on device\n\tat"),
            "cannot write the output: No space left on device",
            74,
        ),
        (
            RuntimeError("[TASK_WRITE_FAILED] no\nCaused by: Mkdirs failed to create file:/x/y\n"),
            "cannot write the output: Mkdirs failed to create file:/x/y",
            74,
        ),
        (
            RuntimeError(": java.io.FileNotFoundException: /x/y (Permission denied)\n\tat"),
            "cannot write the output: /x/y (Permission denied)",
            74,
        ),
        (
            RuntimeError(": Checksum error: /x/_orthia.json at 0 exp: -4 got: 2\n\tat"),
            "/x/_orthia.json was changed, or is damaged: bring back the file, or export again",
            65,
        ),
        (
            RuntimeError(': UnsupportedFileSystemException: No FileSystem for scheme "s4"\n\tat'),
            'No FileSystem for scheme "s4": give Spark its package by --conf',
            64,
        ),
        (
            RuntimeError("calling o1.x.\n: java.lang.IllegalStateException: It was stopped.\n\tat"),
            "RuntimeError: It was stopped.; --verbose shows where",
            70,
        ),
        (
            RuntimeError("[STREAM_FAILED] terminated: Python worker failed to connect back."),
            "a worker of Spark did not start in 10 s: the machine is too busy; run this again",
            69,
        ),
        (KeyError("body"), "KeyError: 'body'; --verbose shows where", 70),
    ],
)
def test_a_failure_is_one_line_with_its_code(error: Exception, line: str, code: int) -> None:
    """Whoever raised it, driver, worker or Java; 1 is for faults that were found."""
    assert explained(error) == (line, code)


@pytest.mark.parametrize("verbose", [True, False])
def test_a_traceback_is_shown_to_those_who_ask(
    capsys: pytest.CaptureFixture[str], *, verbose: bool
) -> None:
    """And to nobody else."""
    with pytest.raises(Exit) as ended, in_one_line(verbose=verbose):
        raise KeyError("body")
    assert ended.value.exit_code == 70
    shown = capsys.readouterr().err
    assert ("Traceback" in shown) == verbose
    assert shown.endswith("orthia: KeyError: 'body'; --verbose shows where\n")


def test_what_ended_well_or_is_said_already_is_left_alone() -> None:
    """An exit code that a command chose, and what click says itself."""
    for error in (Exit(1), click.UsageError("no")):
        with pytest.raises(type(error)), in_one_line(verbose=False):
            raise error


@pytest.mark.parametrize(
    "master",
    [
        *("local", "local[4]", "local[*]", "local[*, 3]", "local-cluster[2,1,1024]", "yarn"),
        *("spark://a:7077", "spark://a:7077,b:7077", "k8s://https://a:443"),
    ],
)
def test_a_master_that_spark_knows(master: str) -> None:
    """Each form there is."""
    check_master(master)


@pytest.mark.parametrize("master", ["foo", "local[x]", "spark://a", "spark://", "mesos://a:1", ""])
def test_a_wrong_master_is_a_wrong_command_line(run: Run, tmp_path: Path, master: str) -> None:
    """Told before Java is started."""
    result = run("pipeline", "audit", "--from", tmp_path, "--master", master)
    assert result.exit_code == ExitCode.USAGE
    assert "expected local[*]" in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("name", ["", "/", "a*b", "x{1}", "[z]", "a?b"])
def test_a_directory_that_spark_takes_for_others_is_refused(run: Run, name: str) -> None:
    """A pattern reads whatever fits, another's export too; nothing at all is this directory."""
    store = ("--url", "sqlite:///none.db")
    for command in (
        ("export", *store, "--to", name),
        ("import", *store, "--from", name),
        ("audit", "--from", name),
        ("stream", *store, "--to", name, "--checkpoint", "there"),
        ("stream", *store, "--to", "there", "--checkpoint", name),
    ):
        result = run("pipeline", *command)
        assert result.exit_code == ExitCode.USAGE, command
        assert repr(name) in result.stderr


def test_a_cluster_that_is_not_there_has_its_code(run: Run, tmp_path: Path) -> None:
    """At once, and in one line beside what the command says of its progress."""
    (tmp_path / "messages").mkdir()
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        master = f"spark://127.0.0.1:{port}"
        result = run("pipeline", "audit", "--from", tmp_path, "--master", master, "-q")
        assert result.exit_code == ExitCode.NO_CLUSTER
        assert len(result.stderr.splitlines()) == 1
        assert f"127.0.0.1:{port}" in result.stderr
        listening.listen()
        check_reachable(f"spark://127.0.0.1:1,127.0.0.1:{port}")
    with pytest.raises(ClusterUnreachable):
        check_reachable("spark://127.0.0.1:1")


def test_a_directory_that_is_no_export_is_wrong_data(run: Run, tmp_path: Path) -> None:
    """Not a wrong command line, and nothing that is away for a while."""
    result = run("pipeline", "traffic", "--from", tmp_path)
    assert (result.exit_code, "no Parquet export" in result.stderr) == (ExitCode.WRONG_DATA, True)


@pytest.mark.timeout(600)
def test_ctrl_c_ends_a_job_in_one_line(tmp_path: Path) -> None:
    """Exit code 130, no traceback, no directory that is half an export, nobody left running."""
    url = f"sqlite:///{tmp_path / 'orthia.db'}"
    store = SqlJournalStore(DatabaseStoreSettings(DatabaseUrl.parse(url)))
    journal = store.open()
    unit = Unit()
    for _ in range(20_000):
        unit.add_message([QUEUE], payload("x" * 1_000))
    journal.append_unit(unit)
    store.settle(journal)
    store.close()
    target, said = tmp_path / "out", tmp_path / "said"
    with said.open("wb") as log:
        export = subprocess.Popen(
            [
                *(sys.executable, "-m", "orthia.broker.cli", "pipeline", "export", "--url", url),
                *("--to", str(target), "--master", "local[1]", "--partitions", "100"),
                *(f"--conf={name}={value}" for name, value in QUICK_START.items()),
            ],
            env={**os.environ, **QUICK_ENVIRONMENT},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            # Whoever runs the tests may have had Ctrl-C ignored, as shells do in the background.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
    try:
        wait_until(
            lambda: b"writing messages" in said.read_bytes(),
            timeout_seconds=300,
            what="the export writes",
        )
        os.killpg(export.pid, signal.SIGINT)
        assert export.wait(300) == ExitCode.INTERRUPTED, said.read_text()
    finally:
        if export.poll() is None:
            os.killpg(export.pid, signal.SIGKILL)
            export.wait(30)
    lines = [line for line in said.read_text().splitlines() if not line.startswith("WARNING")]
    lines = [line for line in lines if "JDK_JAVA_OPTIONS" not in line]
    assert lines[-1] == "orthia: ended by Ctrl-C"
    assert [line for line in lines if not line.startswith("orthia: ")] == []
    assert not target.exists()
    assert [path.name for path in tmp_path.iterdir() if "incomplete" in path.name] == []


@pytest.mark.parametrize("late", [RuntimeError("Answer from Java side is empty"), OSError("gone")])
def test_what_fails_in_tidying_up_after_ctrl_c_is_no_failure_of_the_job(
    late: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    """The operator ended it, and is told so."""
    late.__context__ = KeyboardInterrupt()
    with pytest.raises(Exit) as ended, in_one_line(verbose=False):
        raise late
    assert ended.value.exit_code == ExitCode.INTERRUPTED
    assert capsys.readouterr().err == "orthia: ended by Ctrl-C\n"


def test_a_reader_that_has_seen_enough_is_not_told_of_faults() -> None:
    """``audit | head -1``: the code of output that was not written, and nothing said."""
    script = (
        "from orthia.broker.cli.pipeline.failures import in_one_line\n"
        "import click\n"
        "with in_one_line(verbose=False):\n"
        "    while True:\n"
        "        print('faults')\n"
    )
    with subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import sys\ntry:\n  exec({script!r})\nexcept click.exceptions.Exit"
            " as ended:\n  sys.exit(ended.exit_code)",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as writer:
        assert writer.stdout is not None
        assert writer.stderr is not None
        writer.stdout.readline()
        writer.stdout.close()
        said = writer.stderr.read()
    assert (writer.returncode, said) == (ExitCode.IO_ERROR, b"")


@pytest.mark.parametrize(
    ("period", "what"),
    [
        (["--since", "1h", "--until", "2h"], "--since is not before --until"),
        (["--since", "2099-01-01"], "--since is not before now"),
        (["--since", "2099-01-01", "--until", "2099-02-01"], "--since is not before now"),
    ],
)
def test_a_period_in_which_nothing_happened_is_refused_before_spark_starts(
    run: Run, period: list[str], what: str
) -> None:
    """And before the logs, which are not there, are looked for: an empty report would please."""
    result = run("pipeline", "failovers", "logs", *period)
    assert (result.exit_code, result.stdout) == (64, "")
    assert what in result.stderr
