"""The files of users and roles of a live node: read when it opens, and again when they change."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, Protocol, TypeVar

from orthia.config.errors import ConfigurationError

LOGGER = logging.getLogger("orthia.broker")
PERIOD_SECONDS: Final = 1.0
_JOIN_SECONDS: Final = 5.0


class _LoginModule(Protocol):
    """What has files that are looked at."""

    @property
    def files(self) -> tuple[Path, ...]:
        """The files."""

    @property
    def reload(self) -> bool:
        """Whether they are looked at while the node serves."""


_Module = TypeVar("_Module", bound=_LoginModule)
_User = TypeVar("_User")
_Signature = tuple[tuple[int, int, int] | None, ...]


class UserFiles(Generic[_Module, _User]):
    """Looks every second; ``told`` gets all users when a file changed, on the thread of the watch.

    A file that cannot be read changes nothing: who could log in still can. And a change counts when
    nothing changed for a second after it: an editor may empty a file before it writes it.
    """

    def __init__(
        self,
        module: _Module | None,
        read: Callable[[_Module], tuple[_User, ...]],
        told: Callable[[tuple[_User, ...]], None],
        period_seconds: float = PERIOD_SECONDS,
    ) -> None:
        """``module`` names the files, which ``read`` reads; with None there are none."""
        self._module = module
        self._read_users = read
        self._told = told
        self._period_seconds = period_seconds
        self._stopped = threading.Event()
        self._read: _Signature | None = None
        """Of the files as they were when they were last read."""
        self._seen: _Signature | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> tuple[_User, ...]:
        """Return the users, read on the caller's thread, and begin to look for changes.

        None, and an error in the log, if the files cannot be read: the node has the lock by now,
        and serves those whom ``broker.xml`` names until they can.
        """
        module = self._module
        if module is None:
            return ()
        self._read = self._seen = _signature(module)
        users: tuple[_User, ...] = ()
        try:
            users = self._read_users(module)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - logged; the node has the lock
            self._told_wrong("no user of the login module can log in until this is mended", error)
        if module.reload:
            self._thread = threading.Thread(target=self._run, name="user-files", daemon=True)
            self._thread.start()
        return users

    def stop(self) -> None:
        """Look no more; any thread but the loop's."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        while not self._stopped.wait(self._period_seconds):
            self.look()

    def look(self) -> None:
        """Read the files if they changed, and stand still since the last look."""
        module = self._module
        if module is None:
            return
        found = _signature(module)
        if found != self._read and found == self._seen:
            self._read = found
            self._reload(module)
        self._seen = found

    def _reload(self, module: _Module) -> None:
        try:
            users = self._read_users(module)
        except MemoryError:
            raise  # the node is to end with this thread
        except Exception as error:  # noqa: BLE001 - logged; no file is to end a node that serves
            self._told_wrong(
                "the files of users changed and are not taken, the users stay as they were until"
                " this is mended",
                error,
            )
            return
        self._told(users)

    @staticmethod
    def _told_wrong(what: str, error: Exception) -> None:
        if isinstance(error, ConfigurationError):
            LOGGER.error("%s: %s", what, error)
        else:
            LOGGER.error("%s: %s: %s", what, type(error).__name__, error, exc_info=error)


def _signature(module: _LoginModule) -> _Signature:
    return tuple(_of_file(path) for path in module.files)


def _of_file(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
