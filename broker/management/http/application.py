"""The application of the HTTP server: its routes, its errors, its pace."""

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import BaseRoute

from orthia.broker.management.http.gateway import LoopHangs
from orthia.broker.management.http.pace import Pace
from orthia.broker.management.http.problems import failed, not_routed, refused
from orthia.config.errors import OrthiaError


def application(*routes: BaseRoute) -> Starlette:
    """Return the application that serves ``routes``."""
    return Starlette(
        routes=list(routes),
        middleware=[Middleware(Pace)],
        exception_handlers={
            HTTPException: not_routed,
            LoopHangs: refused,
            OrthiaError: refused,
            Exception: failed,
        },
    )
