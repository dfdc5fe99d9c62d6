"""Clients of AMQP that nobody here wrote, and how a test runs a program that uses one."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

HERE: Final = Path(__file__).parent / "amqp"
GO: Final = HERE / "go" / "build" / "client"
RHEA: Final = HERE / "javascript" / "failover.mjs"
NODE: Final = shutil.which("node") or ""
SECONDS: Final = 240
"""How long a program may take, on a machine that does much else."""

needs_rhea: Final = pytest.mark.skipif(
    not (NODE and (RHEA.parent / "node_modules" / "rhea").is_dir()),
    reason="needs Node.js and rhea: install nodejs and npm, then run make test-amqp",
)
needs_go: Final = pytest.mark.skipif(
    not GO.exists(), reason="needs go-amqp: install Go (golang-go), then run make test-amqp"
)


def through(command: list[str], accepted: int, end: Callable[[], object]) -> dict[str, Any]:
    """Run a program; do ``end`` once so many messages are accepted. Return what it saw.

    It says "accepted N" for each message that is, and its last line is JSON.
    """
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as client:
        try:
            assert client.stdout is not None
            for line in iter(client.stdout.readline, f"accepted {accepted}\n"):
                assert line, f"it ended with {client.wait()}"
            end()
            output, _ = client.communicate(timeout=SECONDS)
        finally:
            client.kill()
    assert client.returncode == 0
    seen: dict[str, Any] = json.loads(output.splitlines()[-1])
    return seen
