"""The application of the HTTP server: its routes, its errors, its pace."""

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from orthia.broker.management.http.gateway import LoopHangs
from orthia.broker.management.http.pace import Pace, Paced
from orthia.broker.management.http.problems import failed, not_routed, refused
from orthia.config.errors import OrthiaError


class EncodedPaths:
    """Leaves the path of a request to the API as it was sent; an ASGI application.

    So that a name in it may have a slash, as ``%2F``.
    """

    def __init__(self, application: ASGIApp) -> None:
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on with its path as it was sent."""
        if scope["path"].startswith("/api/v1/"):
            scope = {**scope, "path": scope["raw_path"].decode("ascii")}
        await self._application(scope, receive, send)


def application(*routes: BaseRoute, pace: Pace) -> Starlette:
    """Return the application that serves ``routes`` at a ``pace``."""
    made = Starlette(
        routes=list(routes),
        middleware=[Middleware(Paced, pace=pace), Middleware(EncodedPaths)],
        exception_handlers={
            HTTPException: not_routed,
            LoopHangs: refused,
            OrthiaError: refused,
            Exception: failed,
        },
    )
    # A path with a slash too many is none: a redirection would lead to whatever host is named.
    made.router.redirect_slashes = False
    return made
