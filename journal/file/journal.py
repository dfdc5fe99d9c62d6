"""Opens a journal on files, and keeps its files on a thread."""

import contextlib
import logging
from collections.abc import Callable
from enum import Enum
from queue import Empty

from orthia.config.clock import monotonic_seconds
from orthia.config.errors import OrthiaError
from orthia.config.store_settings import FileStoreSettings
from orthia.journal.engine.abc import Recovered
from orthia.journal.engine.threads import Backend, ThreadedJournal
from orthia.journal.engine.worker import Worker
from orthia.journal.errors import Fenced, JournalError
from orthia.journal.file.bodies import FileBodies
from orthia.journal.file.opening import OpenedFiles, open_files
from orthia.journal.file.store import FileStore
from orthia.journal.file.windows import FileWindows
from orthia.journal.journal import MessageJournal
from orthia.journal.limits import JournalLimits

LOGGER = logging.getLogger("orthia.journal")
_KEEP_SECONDS = 1.0
_SAY_AGAIN_SECONDS = 60.0
_JOIN_SECONDS = 5.0


class _Look(Enum):
    NOW = "now"


class FileKeeper:
    """Prepares, reuses and compacts files, on a thread of its own.

    A failure costs disk space, not messages: it is logged, again each minute, and retried, whatever
    the reason. Only a journal that another node has opened is left alone.
    """

    def __init__(self, opened: OpenedFiles, s: FileStoreSettings) -> None:
        self._opened = opened
        self._settings = s
        self._said: str | None = None
        self._say_again_seconds = 0.0
        self._worker: Worker[_Look] = Worker("journal-files", self._run)
        self.start = self._worker.start

    def wake(self) -> None:
        """Make it look now; any thread, never waits long."""
        self._worker.put(_Look.NOW)

    def stop(self) -> None:
        """End the thread after the current step."""
        self._worker.stop()
        self._worker.join(_JOIN_SECONDS)

    def keep(self) -> None:
        """Do all the upkeep that is due; raises JournalError."""
        self._opened.directory_lock.try_hold()
        # One file is being written; the rest of the minimum is kept ready.
        ready = max(1, self._settings.journal_min_files - 1)
        for files in self._opened.instances:
            files.reclaim()  # first: on a full disk nothing else is possible
            files.prepare(ready)
            if files.wants_compaction():
                freed = files.compact()
                LOGGER.info("compacted the journal in %s: %d fewer files", files.directory, freed)
                files.reclaim()

    def _run(self) -> None:
        while self._is_to_look():
            # Asked first: what this look postpones may be due again at its end.
            put_off = self._puts_something_off()
            try:
                self.keep()
            except Fenced:
                return  # the writer meets it too, and reports it
            except JournalError as error:
                self._say(str(error), None)
            except MemoryError:
                raise  # ends this thread and with it the node
            except Exception as error:  # noqa: BLE001 - without this thread the disk would fill up
                self._say(f"{type(error).__name__}: {error}", error)
            else:
                if self._said is not None and not put_off:
                    LOGGER.warning("upkeep of the journal files works again")
                    self._said = None

    def _puts_something_off(self) -> bool:
        return any(files.puts_off_compaction for files in self._opened.instances)

    def _is_to_look(self) -> bool:
        """Wait for a wake-up or the period; return False once it is told to stop."""
        with contextlib.suppress(Empty):
            self._worker.take(timeout=_KEEP_SECONDS)
            while True:  # several wake-ups cause one look
                self._worker.take_now()
        return not self._worker.stopping.is_set()

    def _say(self, problem: str, unexpected: Exception | None) -> None:
        now = monotonic_seconds()
        if problem != self._said or now >= self._say_again_seconds:
            LOGGER.error(
                "upkeep of the journal files in %s failed, so the journal takes more and more disk"
                " space: %s; retrying each second, a compaction each minute",
                self._settings.journal_directory,
                problem,
                exc_info=unexpected,
            )
            self._said, self._say_again_seconds = problem, now + _SAY_AGAIN_SECONDS


def open_file_journal(
    s: FileStoreSettings,
    *,
    token: int,
    still_valid: Callable[[], bool],
    post: Callable[[Callable[[], None]], None],
    on_failure: Callable[[OrthiaError], None],
    limits: JournalLimits | None = None,
) -> MessageJournal:
    """Fence the journal under ``token``, read it, reserve ids, and start the threads.

    ``post``, ``still_valid`` and ``on_failure`` are those of ``ThreadedJournal``. Blocks for
    as long as the files take to read. Raises Fenced, CorruptRecord, JournalDamaged, JournalInUse,
    JournalIOError.
    """
    limits = limits or JournalLimits()
    opened = open_files(s, token=token, id_block=limits.id_block)
    try:
        bodies = FileBodies(s, opened.large_references, opened.fence, opened.horizon)
    except JournalError:
        opened.close(seal=True)
        raise
    keeper = FileKeeper(opened, s)
    store = FileStore(
        opened,
        sync_transactional=s.journal_sync_transactional,
        sync_non_transactional=s.journal_sync_non_transactional,
        rolled=keeper.wake,
        closed=keeper.stop,
    )
    backend = Backend(
        store,
        FileWindows(opened.messages, opened.contents.messages),
        bodies,
        Recovered(opened.bound, opened.horizon),
        reusable=lambda: sum(files.free_bytes for files in opened.instances),
    )
    journal = ThreadedJournal(
        backend, still_valid=still_valid, post=post, on_failure=on_failure, limits=limits
    )
    keeper.start()
    keeper.wake()
    journal.start()
    return journal
