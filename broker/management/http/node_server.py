"""What a node serves over HTTP, put together."""

import asyncio

from orthia.broker.management.abc import HealthSource
from orthia.broker.management.http.application import application
from orthia.broker.management.http.gateway import Gateway
from orthia.broker.management.http.probes import Probes
from orthia.broker.management.http.server import HttpServer, LoopErrorHandler
from orthia.config.settings import HealthSettings


class NodeServer:
    """The HTTP server of one node."""

    def __init__(
        self,
        settings: HealthSettings,
        source: HealthSource,
        loop: asyncio.AbstractEventLoop,
        failed: LoopErrorHandler | None = None,
    ) -> None:
        """``loop`` is the broker's; ``failed`` handles what nothing on the server's has caught."""
        gateway = Gateway(loop)
        self.probes = Probes(settings, source, gateway)
        self.server = HttpServer(settings, application(*self.probes.routes()), failed=failed)

    def start(self) -> None:
        """Listen and serve; raises HealthError if the address cannot be bound."""
        self.server.start()

    def close(self) -> None:
        """Stop listening and end every connection."""
        self.server.close()
        self.probes.close()
