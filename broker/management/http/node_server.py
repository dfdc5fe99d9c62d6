"""What a node serves over HTTP, put together."""

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from time import monotonic

from starlette.requests import Request
from starlette.responses import Response

from orthia.broker.management.abc import HealthSource
from orthia.broker.management.attributes import NodeSeen
from orthia.broker.management.http import jolokia
from orthia.broker.management.http.application import application
from orthia.broker.management.http.console.live import Streams
from orthia.broker.management.http.console.pages import Console
from orthia.broker.management.http.gateway import Gateway
from orthia.broker.management.http.pace import Pace, followed
from orthia.broker.management.http.probes import Probes
from orthia.broker.management.http.resources import Managed, Operators, routes
from orthia.broker.management.http.server import HttpServer, LoopErrorHandler, Secure
from orthia.config.settings import HealthSettings

_ANY = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared, not bound


class NodeServer:
    """The HTTP server of one node."""

    def __init__(
        self,
        settings: HealthSettings,
        source: HealthSource,
        loop: asyncio.AbstractEventLoop,
        failed: LoopErrorHandler | None = None,
        managed: Callable[[], Managed | None] = lambda: None,
        failover_logs: Path | None = None,
        secure: Secure | None = None,
        ha_policy: str = "Shared Store Primary",
    ) -> None:
        """``loop`` is the broker's; ``failed`` handles what nothing on the server's has caught.

        ``managed`` returns what operators may do, while the node is live; ``failover_logs`` is the
        directory of the failover log, of which the console shows the end; ``secure`` adds TLS;
        ``ha_policy`` is what the node is configured to be, by Artemis' name.
        """
        self._settings = settings
        self._began = monotonic()
        self._source = source
        self._ha_policy = ha_policy
        gateway = Gateway(loop)
        self.probes = Probes(settings, source, gateway)
        pace = Pace()
        operators = Operators(settings.host, managed, gateway, pace)
        console = Console(
            settings.host,
            operators,
            self.probes,
            source.describe_role,
            failover_logs,
            Streams(Pace(followed())),
        )
        served = application(
            *self.probes.routes(),
            *routes(operators),
            *jolokia.routes(operators, self._passive),
            *console.routes(),
            pace=pace,
        )
        self.server = HttpServer(settings, served, failed=failed, secure=secure)

    def _passive(self, request: Request) -> NodeSeen | Response:
        """Return what Jolokia tells of a node that is not live, to whom ``/role`` is told."""
        refusal = self.probes.refusal(request, by_browser=True)
        if refusal is not None:
            return refusal
        role = self._source.describe_role()
        return NodeSeen(
            str(role["name"]),
            is_live=False,
            is_backup=role["role"] == "backup",
            ha_policy=self._ha_policy,
            uptime_ms=int((monotonic() - self._began) * 1_000),
        )

    def start(self) -> None:
        """Listen and serve; raises HealthError if the address cannot be bound."""
        self.server.start()

    @property
    def console_url(self) -> str:
        """Where a browser on this host finds the console, after ``start``."""
        host = self._settings.host
        if host in _ANY:
            host = "127.0.0.1" if host == "0.0.0.0" else "::1"  # noqa: S104 - compared, not bound
        return f"{self._url(host)}/console/"

    @property
    def published_url(self) -> str:
        """Where commands find the API, which the node publishes, after ``start``."""
        host = socket.gethostname() if self._settings.host in _ANY else self._settings.host
        return self._settings.advertised_url or self._url(host)

    def _url(self, host: str) -> str:
        shown = f"[{host}]" if ":" in host else host
        scheme = "http" if self._settings.tls is None else "https"
        return f"{scheme}://{shown}:{self.server.port}"

    def close(self) -> None:
        """Stop listening and end every connection."""
        self.server.close()
        self.probes.close()
