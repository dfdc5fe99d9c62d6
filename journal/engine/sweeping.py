"""Sweeps rows of MESSAGE_TIMES that no message needs, once, when a node becomes live.

A row that counts failed deliveries of a message has no due time at which anything would meet it.
Rows left behind, by a version that did not delete them with their queue or by a node that died, are
deleted here in short steps, on a thread that ends with the last step.
"""

import contextlib
import logging

from orthia.database import StoreError
from orthia.journal.engine.abc import LeftTimes
from orthia.journal.engine.worker import Worker
from orthia.journal.errors import Fenced

LOGGER = logging.getLogger("orthia.journal")
PAUSE_SECONDS = 0.02
"""Between two steps, so that the database has time for the journal."""
RETRY_SECONDS = 5.0


class TimesSweeper:
    """Sweeps once, on a thread of its own."""

    def __init__(self, left: LeftTimes) -> None:
        self._left = left
        self._worker: Worker[None] = Worker("journal-times-sweeper", self._run, ended=left.close)
        self.start = self._worker.start
        self.stop = self._worker.stop
        self.join = self._worker.join

    def _run(self) -> None:
        with contextlib.suppress(Fenced):  # the next live node sweeps
            self._sweep()

    def _sweep(self) -> None:
        count, place, pause = 0, 0, 0.0
        while not self._worker.stopping.wait(pause):
            try:
                gone, following = self._left.sweep(place)
            except StoreError as error:
                pause = RETRY_SECONDS
                LOGGER.warning(
                    "sweeping attempts of deleted messages failed: %s; retrying in %d s",
                    error,
                    pause,
                )
                continue
            count, pause = count + gone, PAUSE_SECONDS
            if following is None:
                break
            place = following
        if count:
            LOGGER.info("deleted the delivery attempts of %d messages that no longer exist", count)
