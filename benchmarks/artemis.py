"""Artemis as a process with its JDBC store on a database of its own, for comparisons."""

import subprocess
from pathlib import Path
from urllib.parse import quote

from tests.support.servers import PASSWORD, USER, StoreServer, free_port
from tests.support.waiting import wait_until

_DRIVER = "org.postgresql.Driver"
_URL_IN_XML = "{url}?user={user}&amp;password={password}"
"""Of the database, as ``artemis create`` copies it into broker.xml."""
_STARTED = "AMQ221007"
"""The log line of a broker that is live."""


class Artemis:
    """A broker that serves AMQP on loopback, made by ``artemis create``.

    Its settings are the defaults, with the JDBC store in place of the journal in files; it asks for
    no login. The directory with Artemis has the driver of PostgreSQL in its ``lib``.
    """

    def __init__(self, home: Path, server: StoreServer, directory: Path) -> None:
        self.name = "artemis"
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self._instance = directory / "artemis"
        self._log = directory / "artemis.log"
        url = _URL_IN_XML.format(
            url=server.url(server.create_database()), user=USER, password=quote(PASSWORD)
        )
        command: list[str | Path] = [
            *(home / "bin" / "artemis", "create", self._instance, "--silent", "--no-web"),
            *("--user", "bench", "--password", "bench", "--allow-anonymous"),
            *("--host", "127.0.0.1", "--default-port", str(self.port)),
            *("--no-amqp-acceptor", "--no-hornetq-acceptor", "--no-mqtt-acceptor"),
            *("--no-stomp-acceptor", "--no-autotune"),
            *("--jdbc", "--jdbc-driver-class-name", _DRIVER, "--jdbc-connection-url", url),
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=120)

    def start(self) -> "Artemis":
        """Start it and wait until it serves."""
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [self._instance / "bin" / "artemis", "run"], stdout=log, stderr=log
            )
        wait_until(lambda: _STARTED in self._log.read_text(), what=self._log.read_text)
        return self

    def end(self) -> None:
        """End it."""
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
