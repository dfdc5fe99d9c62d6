"""The recipes for schedulers in the docs are run by a shell, as their schedulers do it."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from orthia.broker.cli.pipeline.export import export
from orthia.broker.node.exit_codes import ExitCode
from orthia.config import load
from orthia.config.store_settings import DatabaseStoreSettings
from tests.journal.support import SqlJournalStore
from tests.pipeline.conftest import QUICK_ENVIRONMENT
from tests.pipeline.support import with_queues
from tests.support.broker_xml import broker_xml, database_store

PAGE: Final = Path(__file__).parents[2] / "docs" / "pipeline.md"
PROGRAM: Final = "/opt/orthia/bin/orthia"
TOLD: Final = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ)]))"


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """Give a directory that stands for the root: a configuration, and a program that says so."""
    for name in ("opt/orthia/bin", "etc/orthia", "data"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "etc/orthia/broker.xml").touch()
    program = tmp_path / PROGRAM[1:]
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c {shlex.quote(TOLD)} "$@"\n')
    program.chmod(0o755)
    return tmp_path


def ran(command: str, here: Path, *shell: str, **environment: str) -> tuple[dict[str, Any], Any]:
    """Run a recipe's line; return what the command understands of it, and its environment."""
    moved = re.sub(r"(?<![\w/])/(opt|etc|data)/", f"{here}/\\1/", command)
    done = subprocess.run(
        [*(shell or ("/bin/sh",)), "-c", moved],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env={"PATH": "/usr/bin:/bin", **environment},
    )
    arguments, seen = json.loads(done.stdout)
    assert arguments[:2] == ["pipeline", "export"]
    context = export.make_context("export", arguments[2:])
    return context.params, seen


def check(understood: dict[str, Any], here: Path) -> None:
    """Check that a run is an incremental one of the queue, into the directory of all recipes."""
    assert understood["incremental"] is True
    assert understood["queues"] == ("orders",)
    assert understood["target"] == str(here / "data/orders")
    assert understood["quiet"] is True


def test_the_line_for_cron(here: Path) -> None:
    """Cron gives all behind the user's name to /bin/sh; a percent sign would be a line's end."""
    (line,) = re.findall(r"^\*/15 .*$", PAGE.read_text(), re.MULTILINE)
    *_, user, command = line.split(maxsplit=6)
    assert (user, "%" in command) == ("orthia", False)
    understood, _ = ran(command, here)
    check(understood, here)
    # While a slow run has the lock the next one ends, and runs nothing.
    lock = here / "data/orders.lock"
    holding = f"flock -n {lock} sh -c {shlex.quote(command.replace('/data/', f'{here}/data/'))}"
    slow = subprocess.run(["/bin/sh", "-c", holding], capture_output=True, check=False, timeout=120)
    assert (slow.returncode, slow.stdout) == (1, b"")


def test_the_service_of_the_timer(here: Path) -> None:
    """Systemd runs ExecStart without a shell: a line of words, continued by a backslash."""
    (unit,) = re.findall(r"```ini\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (command,) = re.findall(r"^ExecStart=((?:.*\\\n)*.*)$", unit, re.MULTILINE)
    command = command.replace("\\\n", " ")
    assert not set(command) & set("$%;&|<>*?'\"`")  # which a shell or systemd would expand
    understood, _ = ran(command, here)
    check(understood, here)


def test_the_task_of_airflow(here: Path) -> None:
    """The operator is made of the text, its command run by bash with the environment it gives."""
    (code,) = [
        block
        for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
        if "BashOperator" in block
    ]
    made: list[dict[str, Any]] = []
    exec(compile(code, "dag.py", "exec"), {"BashOperator": lambda **given: made.append(given)})  # noqa: S102
    (task,) = made
    assert task["env"] == {"ORTHIA_JDBC_PASSWORD": "{{ var.value.orthia_jdbc_password }}"}
    assert "{{" not in task["bash_command"]
    understood, seen = ran(
        task["bash_command"], here, "/bin/bash", **(task["env"] | {"ORTHIA_JDBC_PASSWORD": "p"})
    )
    check(understood, here)
    assert understood["as_json"] is True
    assert seen["ORTHIA_JDBC_PASSWORD"] == "p"


@pytest.mark.extended
def test_the_recipes_end_as_they_say(here: Path) -> None:
    """As cron and Airflow run them: what fails writes nothing, and the same command goes on."""
    program = here / PROGRAM[1:]
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m orthia.broker.cli "$@"\n')
    configuration = broker_xml(here / "etc/orthia", database_store())
    written = here / "data/orders"
    (line,) = re.findall(r"^\*/15 .*$", PAGE.read_text(), re.MULTILINE)
    (airflow,) = re.findall(r'bash_command="(.*)"\n    "(.*)"', PAGE.read_text())

    def ended(command: str, shell: str) -> tuple[int, str]:
        moved = re.sub(r"(?<![\w/])/(opt|etc|data)/", f"{here}/\\1/", command)
        done = subprocess.run(
            [shell, "-c", moved],
            capture_output=True,
            text=True,
            check=False,
            timeout=800,
            env=os.environ | QUICK_ENVIRONMENT | {"ORTHIA_JDBC_PASSWORD": ""},
        )
        return done.returncode, done.stdout or done.stderr

    def by_cron() -> int:
        return ended(line.split(maxsplit=6)[-1], "/bin/sh")[0]

    # There is no database yet, which may change; then a configuration that somebody has to mend.
    assert by_cron() == ExitCode.UNAVAILABLE
    good = configuration.read_text()
    configuration.write_text(good.replace("<store>", "<nonsense/><store>"))
    assert by_cron() == ExitCode.CONFIGURATION
    assert not written.exists()
    configuration.write_text(good)
    settings = load(configuration).store
    assert isinstance(settings, DatabaseStoreSettings)
    store = SqlJournalStore(settings)
    journal = with_queues(store)
    seqs = store.append(journal, "one", "two")
    assert by_cron() == 0
    assert [one.name for one in written.glob("seq-*")] == [f"seq-{1:019d}-{seqs[-1]:019d}"]
    more = store.append(journal, "three")
    code, said = ended("".join(airflow), "/bin/bash")
    told = json.loads(said)
    assert (code, told["after_seq"], told["through_seq"]) == (0, seqs[-1], more[-1])
    # Without anything new a run succeeds, and there is no directory more.
    assert by_cron() == 0
    assert len(list(written.glob("seq-*"))) == 2
    store.close()
