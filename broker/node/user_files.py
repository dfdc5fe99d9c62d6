"""The files of users and roles of a live node: read when it opens, and again when they change."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, Protocol, TypeVar

from orthia.config.clock import monotonic_seconds
from orthia.config.errors import ConfigurationError
from orthia.config.file_states import FileState, state_of

LOGGER = logging.getLogger("orthia.broker")
PERIOD_SECONDS: Final = 1.0
_JOIN_SECONDS: Final = 5.0
_REST: Final = 10
"""A read that failed is tried again after this many times as long as it took: of 100,000 users it
takes seconds, and the loop would share its processor with that for good."""
_MOST_REST_SECONDS: Final = 60.0
"""A file system that stood still is no reason to leave a removed user in for long."""


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
_Signature = tuple[FileState | None, ...]


class UserFiles(Generic[_Module, _User]):
    """Looks every second; ``told`` gets all users when a file changed, on the thread of the watch.

    A file that cannot be read changes nothing: who could log in still can. It is read again until
    it can be: what was in the way, as a lack of descriptors, may be no matter of the file. And a
    change counts when nothing changed for a second after it: an editor may empty a file before it
    writes it.
    """

    def __init__(
        self,
        module: _Module | None,
        read: Callable[[_Module], tuple[_User, ...]],
        told: Callable[[tuple[_User, ...]], None],
        period_seconds: float = PERIOD_SECONDS,
        clock: Callable[[], float] = monotonic_seconds,
    ) -> None:
        """``module`` names the files, which ``read`` reads; with None there are none."""
        self._module = module
        self._read_users = read
        self._told = told
        self._period_seconds = period_seconds
        self._clock = clock
        self._stopped = threading.Event()
        self._read: _Signature | None = None
        """Of the files as they were when they were last read."""
        self._seen: _Signature | None = None
        self._refused: str | None = None
        """Why they could not be read the last time, if they could not."""
        self._rest_until_seconds = 0.0
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
        users = self._users(
            module, "no user of the login module can log in until this is mended", is_new=True
        )
        if module.reload:
            self._thread = threading.Thread(target=self._run, name="user-files", daemon=True)
            self._thread.start()
        return () if users is None else users

    def stop(self) -> None:
        """Stop watching; any thread but the loop's."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        while not self._stopped.wait(self._period_seconds):
            self.look()

    def look(self) -> None:
        """Read the files if they changed, or could not be read, and stand still."""
        module = self._module
        if module is None:
            return
        found = _signature(module)
        is_new = found != self._read
        is_due = self._refused is not None and self._clock() >= self._rest_until_seconds
        if found == self._seen and (is_new or is_due):
            self._read = found
            users = self._users(
                module,
                "the files of users changed, and nothing of them was applied; users stay as they"
                " were until this is corrected",
                is_new=is_new,
            )
            if users is not None:
                self._told(users)
        self._seen = found

    def _users(self, module: _Module, refused: str, *, is_new: bool) -> tuple[_User, ...] | None:
        """Return what is read; None, and an error in the log, if nothing can be.

        It is logged once for each change and each reason.
        """
        started_seconds = self._clock()
        try:
            users = self._read_users(module)
        except MemoryError:
            raise  # the node is to end with this thread
        except Exception as error:
            # No file may end a node that serves.
            ended_seconds = self._clock()
            rest_seconds = min(_REST * (ended_seconds - started_seconds), _MOST_REST_SECONDS)
            self._rest_until_seconds = ended_seconds + rest_seconds
            is_told = isinstance(error, ConfigurationError)
            reason = str(error) if is_told else f"{type(error).__name__}: {error}"
            if is_new or reason != self._refused:
                LOGGER.error("%s: %s", refused, reason, exc_info=None if is_told else error)  # noqa: TRY400 - the reason is said
            self._refused = reason
            return None
        self._refused = None
        return users


def _signature(module: _LoginModule) -> _Signature:
    return tuple(state_of(path) for path in module.files)
