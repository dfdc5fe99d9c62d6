"""The files of users of a node that serves: what cannot be read changes nothing, and is told."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from orthia.broker.node.user_files import UserFiles
from orthia.config.errors import ConfigurationError
from tests.support.waiting import wait_until

REASON = "users:1: the password is empty; expected one"


@dataclass
class Module:
    """Has one file, and is looked at by nobody but the test."""

    file: Path
    reload: bool = False

    @property
    def files(self) -> tuple[Path, ...]:
        """That file."""
        return (self.file,)


@dataclass
class Watched:
    """A file with its watch; reading it raises ``error``, if there is one."""

    module: Module
    error: Exception | None = None
    reads: int = 0
    now_seconds: float = 0.0
    read_seconds: float = 0.0
    """How long reading takes, by a clock that nothing else moves."""
    told: list[tuple[str, ...]] = field(default_factory=list)
    files: UserFiles[Module, str] = field(init=False)

    def __post_init__(self) -> None:
        self.files = UserFiles(
            self.module, self._read, self.told.append, clock=lambda: self.now_seconds
        )

    def _read(self, module: Module) -> tuple[str, ...]:
        self.reads += 1
        self.now_seconds += self.read_seconds
        if self.error is not None:
            raise self.error
        return tuple(module.file.read_text().split())

    def look(self, times: int = 1) -> None:
        """Look at the file."""
        for _ in range(times):
            self.files.look()


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    """Give a file with one user."""
    file = tmp_path / "users"
    file.write_text("ada")
    return Watched(Module(file))


def test_a_change_is_taken_when_it_stands_still(watched: Watched) -> None:
    """And once."""
    assert watched.files.start() == ("ada",)
    watched.module.file.write_text("ada bob")
    watched.look()
    assert watched.told == []
    watched.look(3)
    assert watched.told == [("ada", "bob")]


@pytest.mark.parametrize("error", [ConfigurationError(REASON), RuntimeError("unforeseen")])
def test_whatever_reading_raises_changes_nothing(
    watched: Watched, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    """When the node opens, and later; one that nobody foresaw is told of with its kind."""
    watched.error = error
    assert watched.files.start() == ()
    watched.module.file.write_text("another")
    watched.look(2)
    assert watched.told == []
    first, last = caplog.messages[0], caplog.messages[-1]
    assert first.startswith("no user of the login module can log in until this is mended: ")
    assert last.startswith("the files of users changed, and nothing of them was applied")
    shown = REASON if isinstance(error, ConfigurationError) else "RuntimeError: unforeseen"
    assert first.endswith(shown)
    assert last.endswith(shown)


def test_without_memory_a_node_ends(watched: Watched) -> None:
    """It is not the file that is wrong then."""
    watched.error = MemoryError()
    with pytest.raises(MemoryError):
        watched.files.start()
    watched.module.file.write_text("another")
    watched.look()
    with pytest.raises(MemoryError):
        watched.look()


def test_what_could_not_be_read_is_read_again_until_it_can(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    """Although the file is as it was; each reason is told once for each change."""
    watched.files.start()
    watched.module.file.write_text("robert")  # of another length: the times may be as they were
    watched.error = ConfigurationError("users: cannot be read: Too many open files")
    watched.look(4)
    assert watched.reads == 1 + 3
    watched.error = ConfigurationError("users: cannot be read: Input/output error")
    watched.look(2)
    assert [one.rpartition(": ")[2] for one in caplog.messages] == [
        "Too many open files",
        "Input/output error",
    ]
    watched.error = None
    watched.look(3)
    assert watched.told == [("robert",)]
    assert len(caplog.messages) == 2
    watched.module.file.write_text("eve, too")
    watched.error = ConfigurationError("users: cannot be read: Input/output error")
    watched.look(3)
    assert len(caplog.messages) == 3


def test_what_a_node_could_not_read_when_it_opened_is_read_again(watched: Watched) -> None:
    """Nobody has to touch the file."""
    watched.error = ConfigurationError(REASON)
    assert watched.files.start() == ()
    watched.error = None
    watched.look(2)
    assert watched.told == [("ada",)]


@pytest.mark.parametrize(("read_seconds", "rest_seconds"), [(2.0, 20.0), (600.0, 60.0)])
def test_what_takes_long_to_read_is_not_read_all_the_time(
    watched: Watched, read_seconds: float, rest_seconds: float
) -> None:
    """The loop is to have its processor for itself; a file that changed is read at once."""
    watched.error, watched.read_seconds = ConfigurationError(REASON), read_seconds
    watched.files.start()
    watched.look(3)
    assert watched.reads == 1
    watched.now_seconds += rest_seconds
    watched.look(3)
    assert watched.reads == 2
    watched.module.file.write_text("another")
    watched.look(3)
    assert watched.reads == 3


def test_rights_that_are_given_are_a_change(watched: Watched) -> None:
    """What is in the file, its size and the time it was written are as they were."""
    watched.files.start()
    before = watched.module.file.stat()
    # The clock that files have goes in steps: the time is another one once a step is over.
    wait_until(lambda: _changed_rights(watched.module.file) > before.st_ctime_ns)
    after = watched.module.file.stat()
    assert (after.st_mtime_ns, after.st_ino) == (before.st_mtime_ns, before.st_ino)
    watched.look(2)
    assert watched.told == [("ada",)]


def _changed_rights(file: Path) -> int:
    file.chmod(0o640)
    return file.stat().st_ctime_ns
