"""What a run of the tests leaves that is killed, the next one removes."""

import os
import subprocess
import sys
import time
from pathlib import Path

from tests.support.leftovers import make_directory, remove_left

MAKE = """
import sys
from pathlib import Path
from tests.support.leftovers import make_directory
directory, _ = make_directory(Path(sys.argv[1]))
(directory / "file").touch()
print(directory, flush=True)
sys.stdin.read()
"""


def test_what_a_process_that_is_gone_left_is_removed(tmp_path: Path) -> None:
    """And nothing that somebody has, or may be about to have, or that is not of the tests."""
    with subprocess.Popen(
        [sys.executable, "-c", MAKE, str(tmp_path)],
        cwd=Path(__file__).parents[1],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as maker:
        assert maker.stdout is not None
        made = Path(os.fsdecode(maker.stdout.readline().strip()))
        young, descriptor = make_directory(tmp_path)
        os.close(descriptor)
        another = tmp_path / "orthia-node"
        another.mkdir()
        long_ago = time.time() - 86_400
        for one in (made, another):
            os.utime(one, (long_ago, long_ago))
        remove_left(tmp_path)
        assert sorted(tmp_path.iterdir()) == sorted([made, young, another])
        maker.kill()
    remove_left(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([young, another])
