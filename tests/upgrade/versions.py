"""The two versions whose nodes meet: this checkout, and an older one.

AGAINST in the environment names a checkout of the older version. It runs in this environment's
interpreter with its packages. Without AGAINST the older version is this one, too: that shows that
the scenes are right, and nothing about upgrades.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from enum import Enum
from pathlib import Path

from tests.process.nodes import NodeProcess, program_of

HERE = Path(__file__).parents[2]
IS_OF_TWO_VERSIONS = bool(os.environ.get("AGAINST"))
_CHECKOUT = Path(os.environ.get("AGAINST") or HERE).resolve()


class Version(Enum):
    """Which checkout a process is of."""

    OLDER = str(_CHECKOUT)
    NEWER = str(HERE)

    @property
    def environment(self) -> Mapping[str, str]:
        """What a process needs to find its modules there, and nowhere else."""
        return {"PYTHONSAFEPATH": "1", "PYTHONPATH": self.value}

    def of(self, node: NodeProcess) -> NodeProcess:
        """Have ``node`` be of this version from its next start on."""
        node.environment = self.environment
        node.program = program_of(Path(self.value))
        return node

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command of this version's ``orthia`` to its end."""
        return subprocess.run(
            [sys.executable, "-m", program_of(Path(self.value)), *arguments],
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )


def revisions(version: Version) -> set[str]:
    """Return the names of the schema's revisions that a version knows."""
    names = Path(version.value, "migrations", "versions").glob("r[0-9]*.py")
    return {name.name.removeprefix("r").partition("_")[0] for name in names}


HAVE_ONE_SCHEMA = revisions(Version.OLDER) == revisions(Version.NEWER)
"""Whether an older node can start beside a newer one."""


def newest_record(version: Version) -> int:
    """Return the newest record version of messages that a version of Orthia reads."""
    code = "from orthia.journal.model.message import NEWEST_VERSION as it; print(it)"
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **version.environment},
        stdout=subprocess.PIPE,
        check=True,
    )
    return int(found.stdout)


HAVE_ONE_RECORD = newest_record(Version.OLDER) == newest_record(Version.NEWER)
"""Whether an older node reads all messages that a newer one writes."""
