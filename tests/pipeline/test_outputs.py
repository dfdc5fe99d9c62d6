"""A file that a command writes is there whole, or is what it was before."""

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from orthia.broker.cli.pipeline.failovers import _draw
from orthia.broker.cli.pipeline.failures import explained
from orthia.broker.node.exit_codes import ExitCode
from orthia.pipeline.errors import OutputFailed
from orthia.pipeline.jobs.outputs import whole_file

TABLES: dict[str, list[dict[str, object]]] = {"availability": []}


def names(directory: Path) -> list[str]:
    """Return what is in a directory, hidden files too."""
    return sorted(path.name for path in directory.iterdir())


def test_a_file_is_replaced_when_it_is_written(tmp_path: Path) -> None:
    """And not before; nothing else stays."""
    path = tmp_path / "page.html"
    path.write_text("old")
    with whole_file(path) as new:
        new.write_text("new")
        assert path.read_text() == "old"
    assert (path.read_text(), names(tmp_path)) == ("new", ["page.html"])


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), OSError(28, "full")])
def test_what_failed_leaves_the_old_file(tmp_path: Path, error: BaseException) -> None:
    """Whatever it failed with, Ctrl-C too."""
    path = tmp_path / "page.html"
    path.write_text("old")

    def write() -> None:
        with whole_file(path) as new:
            new.write_text("half")
            raise error

    with pytest.raises(type(error)):
        write()
    assert (path.read_text(), names(tmp_path)) == ("old", ["page.html"])


def test_two_files_are_written_together(tmp_path: Path) -> None:
    """The second cannot be: the first is what it was, and the error names the second."""
    page, picture = tmp_path / "page.html", tmp_path / "nowhere" / "picture.png"
    page.write_text("old")

    def write() -> None:
        with ExitStack() as written:
            written.enter_context(whole_file(page)).write_text("new")
            written.enter_context(whole_file(picture)).write_bytes(b"png")

    with pytest.raises(OSError, match="No such file") as caught:
        write()
    assert caught.value.filename == str(picture)
    assert (page.read_text(), names(tmp_path)) == ("old", ["page.html"])


FULL = """
import resource, signal, sys
from pathlib import Path
from orthia.pipeline.jobs.outputs import whole_file
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    with whole_file(Path(sys.argv[1])) as new:
        new.write_bytes(b"x" * 5000)
except OSError as error:
    print(error.filename)
"""


def test_a_disk_without_room_leaves_the_old_file(tmp_path: Path) -> None:
    """The file is cut short amid the writing, as on a full disk."""
    path = tmp_path / "page.html"
    path.write_text("old")
    command = [sys.executable, "-c", FULL, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == str(path)
    assert (path.read_text(), names(tmp_path)) == ("old", ["page.html"])


def test_a_page_that_cannot_be_written_is_said_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With exit code 74, and without the picture that could have been."""
    monkeypatch.setattr("orthia.pipeline.report.tables.chart_of", lambda _: None)
    monkeypatch.setattr("orthia.pipeline.report.tables.shown", lambda _: [])
    monkeypatch.setattr("orthia.pipeline.report.page.html", lambda *_: "page")
    page = tmp_path / "page.html"

    def fails(_: object, path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("orthia.pipeline.report.picture.png", fails)
    with pytest.raises(OutputFailed) as caught:
        _draw(TABLES, page, tmp_path / "picture.png")
    line, code = explained(caught.value)
    assert (code, names(tmp_path)) == (ExitCode.IO_ERROR, [])
    assert line == f"{tmp_path / 'picture.png'}: No space left on device: nothing was written"
