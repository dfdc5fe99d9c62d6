"""Errors of the API as problem details in JSON (RFC 9457)."""

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from orthia.broker.core.errors import (
    AuthenticationFailed,
    BrokerError,
    DestinationRefused,
    LimitExceeded,
    LoginNotChecked,
    NotAuthorized,
    NotLive,
)
from orthia.broker.core.selectors import SelectorRefused
from orthia.broker.management.errors import AlreadyThere, NotFound, WrongArgument
from orthia.broker.management.http.call import BodyLate, ForeignSite, NotJson
from orthia.broker.management.http.gateway import LoopHangs

LOGGER = logging.getLogger("orthia.broker")
_STATUS: Final[Mapping[type[Exception], HTTPStatus]] = {
    AuthenticationFailed: HTTPStatus.UNAUTHORIZED,
    LoginNotChecked: HTTPStatus.SERVICE_UNAVAILABLE,
    NotAuthorized: HTTPStatus.FORBIDDEN,
    NotLive: HTTPStatus.SERVICE_UNAVAILABLE,
    LoopHangs: HTTPStatus.SERVICE_UNAVAILABLE,
    NotFound: HTTPStatus.NOT_FOUND,
    AlreadyThere: HTTPStatus.CONFLICT,
    WrongArgument: HTTPStatus.BAD_REQUEST,
    SelectorRefused: HTTPStatus.BAD_REQUEST,
    DestinationRefused: HTTPStatus.BAD_REQUEST,
    ForeignSite: HTTPStatus.FORBIDDEN,
    BodyLate: HTTPStatus.REQUEST_TIMEOUT,
    NotJson: HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    LimitExceeded: HTTPStatus.TOO_MANY_REQUESTS,
    BrokerError: HTTPStatus.CONFLICT,
}
CHALLENGE: Final = {"www-authenticate": 'Basic realm="orthia", charset="UTF-8"'}


def status_of(error: Exception) -> HTTPStatus:
    """Return the HTTP status of an error, by its nearest class."""
    for kind in type(error).__mro__:
        if kind in _STATUS:
            return _STATUS[kind]
    return HTTPStatus.INTERNAL_SERVER_ERROR


def problem(
    status: HTTPStatus, detail: str, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """Return a response that says in ``detail`` what is wrong."""
    return JSONResponse(
        {"type": "about:blank", "title": status.phrase, "status": status.value, "detail": detail},
        status,
        headers,
        media_type="application/problem+json",
    )


async def refused(request: Request, error: Exception) -> Response:
    """Return the response to a request that the broker refused."""
    del request
    status = status_of(error)
    headers = CHALLENGE if status is HTTPStatus.UNAUTHORIZED else None
    return problem(status, str(error), headers)


async def not_routed(request: Request, error: Exception) -> Response:
    """Return the response to a request that no route takes."""
    status, headers = HTTPStatus.NOT_FOUND, None
    if isinstance(error, HTTPException):
        status = HTTPStatus(error.status_code)
        headers = {name: _in_order(value) for name, value in (error.headers or {}).items()}
    if not request.url.path.startswith("/api/"):
        if status is HTTPStatus.NOT_FOUND:
            text = "there is no such page; try /console/, /live, /ready, /role, /metrics or /api/v1"
        elif status is HTTPStatus.METHOD_NOT_ALLOWED:
            text = f"{request.method} is not for this page"
        else:
            text = str(error)
        return PlainTextResponse(f"{text}\n", status, headers)
    return problem(status, f"{request.method} {request.url.path}: {status.phrase}", headers)


def _in_order(methods: str) -> str:
    """Return the methods of ``Allow``, which Starlette names in any order, by name."""
    return ", ".join(sorted(methods.split(", ")))


async def failed(request: Request, error: Exception) -> Response:
    """Log an error of this node's own, and return the response to the request that met it."""
    LOGGER.error(
        "answering %s %s failed: %r; the request is answered with 500",
        request.method,
        request.url.path,
        error,
        exc_info=error,
    )
    return problem(HTTPStatus.INTERNAL_SERVER_ERROR, "this node failed; its log says how")
