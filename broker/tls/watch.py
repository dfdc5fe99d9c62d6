"""The thread that watches a node's certificates: changed files, and expiry."""

import threading
from datetime import UTC, datetime
from typing import Final

from orthia.broker.tls.certificates import Certificates
from orthia.config.clock import monotonic_seconds

LOOK_SECONDS: Final = 2.5
"""The period of looks; a changed file is read at the second look that finds it changed."""


class CertificateWatch:
    """Watches from ``start`` until ``stop``, or the end of the process."""

    def __init__(self, certificates: Certificates, *, period_seconds: float = LOOK_SECONDS) -> None:
        self._certificates = certificates
        self._period_seconds = period_seconds
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start watching, if there is a certificate; further calls have no effect."""
        if self._thread is None and self._certificates:
            self._thread = threading.Thread(target=self._run, name="certificates", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self._stopped.set()

    def _run(self) -> None:
        while True:
            self._certificates.look(datetime.now(UTC), monotonic_seconds())
            if self._stopped.wait(self._period_seconds):
                return
