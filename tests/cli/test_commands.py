"""What holds for every command: help, examples, exit codes, errors."""

import errno
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import click
import pytest

from orthia.broker.cli.app import orthia
from orthia.broker.cli.group import styled
from orthia.broker.cli.rendering import print_table, program
from orthia.broker.client.connection import BrokerUnreachable
from orthia.broker.client.traffic import Consumer, Producer
from orthia.broker.node.exit_codes import MEANINGS
from orthia.config.errors import ConfigurationError, OrthiaError
from orthia.database import StoreUnavailable
from orthia.nodemanager import LockAcquisitionTimeout
from tests.cli.conftest import PROGRAM, Run, all_commands, finished


@pytest.mark.parametrize("words", [words for words, _ in all_commands()], ids=" ".join)
def test_the_help_of_every_command_shows_an_example(run: Run, words: tuple[str, ...]) -> None:
    """Whoever asks a command for help sees it used."""
    result = run(*words, "--help")
    assert result.exit_code == 0
    assert re.search(r"Example:\n\s+orthia " + " ".join(words[:1]), result.output)


def test_help_lists_the_exit_codes(run: Run) -> None:
    """The codes a service manager needs are in the help and in the manual."""
    listed = run("--help").output.partition("Exit codes:")[2]
    manual = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
    for code, meaning in MEANINGS.items():
        assert f"{code.value}" in listed.split()
        assert f"| {code.value} | {meaning} |" in manual


def test_the_manual_names_every_command() -> None:
    """A command that is not in the manual is not there for its reader."""
    manual = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
    for words, _ in all_commands():
        assert "orthia " + " ".join(words) in manual


def test_version(run: Run) -> None:
    """``--version`` prints name and version."""
    assert re.fullmatch(r"orthia \d+\.\d+\.\d+\n", run("--version").output)


@pytest.mark.parametrize(
    "words", [["--bogus"], ["bogus"], ["status", "--bogus"], ["status"], ["check"]]
)
def test_a_wrong_command_line_exits_with_64(run: Run, words: list[str]) -> None:
    """A command line that cannot be understood is EX_USAGE."""
    result = run(*words)
    assert result.exit_code == 64
    assert "Error:" in result.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigurationError("bad\nworse"), 78),
        (StoreUnavailable("bad\nworse"), 69),
        (BrokerUnreachable("bad\nworse"), 69),
        (LockAcquisitionTimeout("bad\nworse"), 75),
        (OrthiaError("bad\nworse"), 70),
    ],
)
def test_an_error_of_ours_is_a_line_and_an_exit_code(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: OrthiaError, code: int
) -> None:
    """A user sees what happened, each problem on a line, and no traceback."""

    def fail() -> None:
        raise error

    monkeypatch.setitem(orthia.commands, "fail", click.Command("fail", callback=fail))
    result = run("fail")
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr == "orthia: bad\northia: worse\n"


def test_a_process_exits_with_the_code(tmp_path: Path) -> None:
    """The real program ends with the code a service manager acts on."""
    missing = tmp_path / "none.xml"
    done = finished("run", "--config", str(missing))
    assert done.returncode == 78
    assert str(missing).encode() in done.stderr
    assert b"Traceback" not in done.stderr


def ended(program: str, *arguments: str) -> "subprocess.CompletedProcess[bytes]":
    """Run a Python program that calls the command line, and return how it ended."""
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, timeout=120, check=False)


def test_ctrl_c_while_the_commands_load_is_no_traceback() -> None:
    """There is nothing to stop yet: the process ends as any other does."""
    done = ended("""if True:
        import importlib.abc, os, signal, sys
        class Interrupting(importlib.abc.MetaPathFinder):
            def find_spec(self, name, path, target=None):
                if name == "orthia.broker.cli.app":
                    os.kill(os.getpid(), signal.SIGINT)
        sys.meta_path.insert(0, Interrupting())
        # The tests may run in a shell's background, where Ctrl-C is ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        from orthia.broker.cli import main
        main()
    """)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, b"")


def test_ctrl_c_in_a_command_has_its_exit_code(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever started it can tell that it was not done."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("orthia.broker.cli.mask.codec_key", interrupted)
    result = run("mask", "x")
    assert result.exit_code == 130
    assert "Traceback" not in result.output


def test_ctrl_c_at_a_prompt_has_the_same_exit_code(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A password that is not typed in the end makes no node; click calls it Abort."""
    terminal = SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("orthia.broker.cli.privacy.sys", terminal)
    result = run("create", tmp_path / "node", "--user", "ada")
    assert result.exit_code == 130
    assert not (tmp_path / "node" / "etc" / "broker.xml").exists()


@pytest.mark.parametrize(
    "command", [["--help"], ["db", "ddl", "--url", "mysql://h/d"], ["mask", "x"]]
)
def test_a_full_output_is_one_line(command: list[str]) -> None:
    """It says that the output could not be written, not where in the program that was."""
    program = "import sys; from orthia.broker.cli import main; sys.stdout = open('/dev/full', 'w')"
    done = ended(f"{program}; main()", *command)
    assert done.returncode == 74
    *_, last = done.stderr.decode().splitlines()
    assert last == "orthia: cannot write the output: No space left on device"
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "password", "code", "told"),
    [
        ([], b"\xff", 78, "the password has the byte 0xFF, which is no UTF-8"),
        (["--jdbc-password", b"\xc3"], b"", 78, "the password has the byte 0xC3"),
        (["--jdbc-user", b"a\xe9"], b"x", 64, "an argument, a variable of the environment or"),
    ],
)
def test_bytes_that_are_no_utf8_are_one_line(
    arguments: list[str | bytes], password: bytes, code: int, told: str
) -> None:
    """It names the byte, and is no traceback out of the driver."""
    url = "jdbc:postgresql://127.0.0.1:1/orthia"
    said = os.fsdecode(password)
    done = finished("status", "--url", url, *arguments, ORTHIA_JDBC_PASSWORD=said)
    *_, last = done.stderr.decode().splitlines()
    assert told in last
    assert b"Traceback" not in done.stderr
    assert done.returncode == code


@pytest.mark.parametrize("handling", ["strict", "surrogateescape"])
def test_standard_input_that_is_no_utf8_is_one_line(handling: str) -> None:
    """Whatever Python makes of its bytes."""
    done = finished("mask", given=b"pass\xff\n", PYTHONIOENCODING=f"utf-8:{handling}")
    *_, last = done.stderr.decode().splitlines()
    assert "standard input" in last
    assert "the byte 0xFF, which is no UTF-8" in last
    assert (done.returncode, done.stdout) == (64, b"")


def test_who_has_seen_enough_of_an_output_is_told_nothing() -> None:
    """It has the code of an output that was not written, however much of that was read."""
    with subprocess.Popen(
        [*PROGRAM, "docs", "limits"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None
        assert writer.stderr is not None
        writer.stdout.close()
        said = writer.stderr.read()
    assert (writer.returncode, said) == (74, b"")


@pytest.mark.parametrize("descriptors", ["1", "2", "0 1 2"])
def test_an_output_that_is_closed_is_written_nowhere(descriptors: str) -> None:
    """Not into the file that has its number: a supervisor may close what nobody reads."""
    closed = " ".join(f"{number}>&-" for number in descriptors.split())
    command = f"{sys.executable} -m orthia.broker.cli --version {closed}"
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("produce", "--size", "99999999999"), "'--size': 99999999999 is not in the range 0<=x<="),
        (("produce", "--rate", "nan"), "'--rate': nan is not a number"),
        (("consume", "--timeout", "inf"), "'--timeout': inf is not a number"),
        (("produce", "--reconnect-timeout", "nan"), "'--reconnect-timeout': nan is not a number"),
    ],
)
def test_a_number_that_is_none_or_too_great_is_refused(
    run: Run, words: tuple[str, ...], complaint: str
) -> None:
    """By the option's name."""
    result = run(*words)
    assert result.exit_code == 64
    assert complaint in result.output


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("produce", "--count", "3"), 130),
        (("consume", "--count", "3"), 130),
        (("consume",), 0),
    ],
)
def test_traffic_that_ctrl_c_ends_tells_what_was_done(
    run: Run, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], code: int
) -> None:
    """And whether that was all: who asked for no number has what there was."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    for kind in (Producer, Consumer):
        monkeypatch.setattr(kind, "run", interrupted)
    result = run(*words)
    assert result.exit_code == code, result.output
    assert "interrupted" in result.output
    assert "confirmed 0" in result.output


def test_a_directory_without_permission_is_one_line(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name and what the operating system said; a service manager does not try again."""
    refused = PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "data"))

    def refuse(*_: object, **__: object) -> None:
        raise refused

    monkeypatch.setattr("pathlib.Path.mkdir", refuse)
    monkeypatch.setattr("pathlib.Path.exists", refuse)
    url = f"sqlite:///{tmp_path}/x.db"
    for command in (["live"], ["pair"], ["status", "--url", url], ["db", "current", "--url", url]):
        result = run(*command)
        assert result.exit_code == 78
        assert result.stderr == f"orthia: {tmp_path}/data cannot be used: Permission denied\n"


@pytest.mark.parametrize("words", [[], ["data"], ["db"], ["queue"], ["pipeline"]])
def test_a_group_lists_whole_summaries(run: Run, words: list[str]) -> None:
    """Most of them ended in the middle of a sentence."""
    shown = run(*words, "--help").output
    commands = shown[shown.index("Commands:") : shown.index("Example:")]
    assert "... " not in commands
    assert "...\n" not in commands


def test_no_color_is_heeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """On threads too, where click knows of no command."""
    assert styled("x", fg="red") != "x"
    monkeypatch.setenv("NO_COLOR", "1")
    assert styled("x", fg="red") == "x"


@pytest.mark.parametrize(
    ("typed", "on_path", "shown"),
    [
        ("/opt/orthia/bin/orthia", "/opt/orthia/bin", "orthia"),
        ("/opt/orthia/bin/orthia", "", "/opt/orthia/bin/orthia"),
        (".venv/bin/orthia", "", ".venv/bin/orthia"),
        ("/x/orthia/broker/cli/__main__.py", "", f"{sys.executable} -m orthia.broker.cli"),
    ],
)
def test_a_printed_command_is_typed_as_this_one_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: str, on_path: str, shown: str
) -> None:
    """Without its directory the shell would not find it."""
    if on_path:
        found = tmp_path / "orthia"
        found.write_text("")
        found.chmod(0o700)
        typed = str(found)
        monkeypatch.setenv("PATH", str(tmp_path))
    else:
        monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setattr("sys.argv", [typed])
    assert program() == shown


@pytest.mark.parametrize("columns", [80, 200])
def test_a_table_breaks_no_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int
) -> None:
    """A holder id is to be copied from the narrowest terminal."""
    holder = "node-a@some-host:12345:6b0c7a31-0000-4000-8000-000000000001"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    print_table(("lock", "holder", "token", "expires"), [("live", holder, 1, "in 12.3 s")] * 2)
    shown = capsys.readouterr().out
    assert shown.count(holder) == 2
    assert shown.count("lock") == (2 if columns == 80 else 1)
