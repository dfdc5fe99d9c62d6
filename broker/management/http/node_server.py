"""What a node serves over HTTP, put together."""

import asyncio
from collections.abc import Callable

from orthia.broker.management.abc import HealthSource
from orthia.broker.management.http import jolokia
from orthia.broker.management.http.application import application
from orthia.broker.management.http.console.pages import Console
from orthia.broker.management.http.gateway import Gateway
from orthia.broker.management.http.probes import Probes
from orthia.broker.management.http.resources import Managed, Operators, routes
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
        managed: Callable[[], Managed | None] = lambda: None,
    ) -> None:
        """``loop`` is the broker's; ``failed`` handles what nothing on the server's has caught.

        ``managed`` returns what operators may do, while the node is live.
        """
        gateway = Gateway(loop)
        self.probes = Probes(settings, source, gateway)
        operators = Operators(settings.host, managed, gateway)
        console = Console(settings.host, operators, self.probes, source.describe_role)
        served = application(
            *self.probes.routes(),
            *routes(operators),
            *jolokia.routes(operators),
            *console.routes(),
        )
        self.server = HttpServer(settings, served, failed=failed)

    def start(self) -> None:
        """Listen and serve; raises HealthError if the address cannot be bound."""
        self.server.start()

    def close(self) -> None:
        """Stop listening and end every connection."""
        self.server.close()
        self.probes.close()
