"""The thread that looks at a node's certificates: whether files changed, or the end is near."""

import threading
from datetime import UTC, datetime
from typing import Final

from orthia.broker.tls.certificates import Certificates
from orthia.config.clock import monotonic_seconds

LOOK_SECONDS: Final = 2.5
"""A file that changed is read at the second look that finds it so."""


class CertificateWatch:
    """Begins with the first look and ends with its process, or by ``stop``."""

    def __init__(self, certificates: Certificates, *, period_seconds: float = LOOK_SECONDS) -> None:
        self._certificates = certificates
        self._period_seconds = period_seconds
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Look from now on, if there is anything to look at; once is enough."""
        if self._thread is None and self._certificates:
            self._thread = threading.Thread(target=self._run, name="certificates", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._stopped.set()

    def _run(self) -> None:
        while True:
            self._certificates.look(datetime.now(UTC), monotonic_seconds())
            if self._stopped.wait(self._period_seconds):
                return
