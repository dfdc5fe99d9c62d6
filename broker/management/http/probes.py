"""Probes and metrics: ``/live``, ``/ready``, ``/role`` and ``/metrics``.

A passive backup is live (200) and not ready (503, with the reason): an orchestrator sends it no
clients and does not kill it. A node whose event loop hangs is not live. The metrics are rendered on
a thread of their own; see ``orthia.broker.management.http.exposition``.
"""

import json
from contextlib import suppress
from http import HTTPStatus
from typing import Final

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from orthia.broker.core.errors import AuthenticationFailed
from orthia.broker.management.abc import HealthSource, Verdict
from orthia.broker.management.http.call import credentials, refuse_foreign_host
from orthia.broker.management.http.exposition import Exposition, RenderingError
from orthia.broker.management.http.gateway import Gateway, LoopHangs
from orthia.broker.management.http.problems import CHALLENGE
from orthia.config.exposure import is_loopback
from orthia.config.secrets import Secret
from orthia.config.settings import HealthSettings

_NOT_STORED: Final = {"cache-control": "no-store"}


class Probes:
    """Answers from one node."""

    def __init__(self, settings: HealthSettings, source: HealthSource, gateway: Gateway) -> None:
        self._settings = settings
        self._source = source
        self.gateway = gateway
        self._exposition = Exposition(source.registry)

    def routes(self) -> list[Route]:
        """Return the routes; others than GET and HEAD are refused."""
        return [
            Route("/live", self._live),
            Route("/ready", self._ready),
            Route("/role", self._role),
            Route("/metrics", self._metrics),
        ]

    def close(self) -> None:
        """Render nothing more."""
        self._exposition.close()

    async def _live(self, request: Request) -> Response:
        del request
        try:
            await self.gateway.beat()
        except LoopHangs as error:
            return _verdict(Verdict(ok=False, reason=str(error)))
        return _verdict(self._source.liveness())

    async def _ready(self, request: Request) -> Response:
        del request
        return _verdict(self._source.readiness())

    async def _role(self, request: Request) -> Response:
        if (refusal := self.refusal(request)) is not None:
            return refusal
        body = json.dumps(self._source.describe_role(), default=str).encode()
        return Response(body + b"\n", headers=_NOT_STORED, media_type="application/json")

    async def _metrics(self, request: Request) -> Response:
        if (refusal := self.refusal(request)) is not None:
            return refusal
        try:
            metrics = await self._exposition.latest()
        except RenderingError as error:
            return _plain(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        return Response(metrics, headers=_NOT_STORED | {"content-type": CONTENT_TYPE_PLAIN_0_0_4})

    def refusal(self, request: Request, *, by_browser: bool = False) -> Response | None:
        """Return the refusal of a request that may see the probes only; None if it may see all.

        ``by_browser`` the token may also be the password of any user: browsers ask for no other.
        """
        token = self._settings.token
        if token is not None:
            given = request.headers.getlist("authorization")
            if len(given) == 1 and _is_token(given[0], token):
                return None
            if by_browser:
                return self._browser_refusal(request, token)
            refusal = _plain(
                HTTPStatus.UNAUTHORIZED,
                "expected Authorization: Bearer, with the token of <health>",
            )
            refusal.headers["www-authenticate"] = 'Bearer realm="orthia"'
            return refusal
        if self._settings.allow_anonymous or is_loopback(self._settings.host):
            if "host" in request.headers:  # a browser always says it
                refuse_foreign_host(request, self._settings.host)
            return None
        return _plain(
            HTTPStatus.FORBIDDEN,
            "only /live and /ready are for everybody: this node's <health> has no <token>",
        )

    def knows(self, request: Request) -> bool:
        """Return whether a request has the token of <health>, so is of no user."""
        return self._settings.token is not None and self.refusal(request, by_browser=True) is None

    @staticmethod
    def _browser_refusal(request: Request, token: Secret) -> Response | None:
        with suppress(AuthenticationFailed):
            passcode = credentials(request)[1]
            if passcode is not None and token.matches(passcode):
                return None
        refusal = _plain(
            HTTPStatus.UNAUTHORIZED, "expected the token of <health> as the password of any user"
        )
        refusal.headers.update(CHALLENGE)
        return refusal


def _is_token(header: str, token: Secret) -> bool:
    scheme, _, given = header.partition(" ")
    return scheme.lower() == "bearer" and token.matches(given.strip())


def _verdict(verdict: Verdict) -> Response:
    status = HTTPStatus.OK if verdict.ok else HTTPStatus.SERVICE_UNAVAILABLE
    return _plain(status, verdict.reason)


def _plain(status: HTTPStatus, text: str) -> Response:
    return PlainTextResponse(f"{text}\n", status, _NOT_STORED)
