"""The files of users of a node that serves: what cannot be read changes nothing, and is told."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from orthia.broker.node.user_files import UserFiles
from orthia.config.errors import ConfigurationError

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
    told: list[tuple[str, ...]] = field(default_factory=list)
    files: UserFiles[Module, str] = field(init=False)

    def __post_init__(self) -> None:
        self.files = UserFiles(self.module, self._read, self.told.append)

    def _read(self, module: Module) -> tuple[str, ...]:
        self.reads += 1
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
    assert last.startswith("the files of users changed and are not taken, the users stay as they")
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
