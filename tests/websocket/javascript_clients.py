"""Clients of JavaScript: what they need on this machine, and how a test runs one."""

import json
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

HERE: Final = Path(__file__).parent / "javascript"
MODULES: Final = HERE / "node_modules"
_SECONDS: Final = 120
NODE: Final = shutil.which("node") or ""
CHROMIUM: Final = shutil.which("chromium") or shutil.which("chromium-browser") or ""
has_stompjs: Final = (MODULES / "@stomp" / "stompjs").is_dir()

needs_node: Final = pytest.mark.skipif(
    not (NODE and has_stompjs),
    reason="needs Node.js and @stomp/stompjs: install nodejs and npm, then run make setup-test-all",
)
needs_chromium: Final = pytest.mark.skipif(
    not (CHROMIUM and has_stompjs),
    reason="needs Chromium and @stomp/stompjs: install chromium, nodejs and npm, then run make"
    " setup-test-all",
)


@dataclass(frozen=True)
class Seen:
    """What a client tells of itself at its end."""

    messages: list[list[Any]]
    """Of each its kind, its bytes and whether it is what was sent."""
    errors: list[str]
    closes: list[int]
    version: str = ""
    heartbeat: str = ""
    subprotocol: str = ""
    extensions: str = ""
    origin: str = ""


@dataclass
class NodeClient:
    """@stomp/stompjs in Node."""

    options: dict[str, Any]
    process: subprocess.Popen[str] = field(init=False)

    def __enter__(self) -> "NodeClient":
        self.process = subprocess.Popen(
            [NODE, str(HERE / "node.mjs"), json.dumps(self.options)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def is_ready(self) -> None:
        """Wait until it did all it was to do."""
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def seen(self) -> Seen:
        """Return what it saw, at its end."""
        output, _ = self.process.communicate(timeout=_SECONDS)
        return Seen(**json.loads(output))
