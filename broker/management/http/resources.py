"""The routes of ``/api/v1``, and their OpenAPI document, made of the table of operations."""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from orthia.broker.core.errors import NotLive
from orthia.broker.core.identity import Principal
from orthia.broker.management.abc import OperatorLogins
from orthia.broker.management.facade import Management
from orthia.broker.management.http.api import OPERATIONS, Created, Operation
from orthia.broker.management.http.arguments import Argument, of_body, of_query
from orthia.broker.management.http.call import (
    body,
    caller,
    note_login,
    path_part,
    query,
    refuse_foreign_site,
)
from orthia.broker.management.http.gateway import Gateway
from orthia.broker.management.http.pace import Pace
from orthia.broker.management.views import as_json

PREFIX: Final = "/api/v1"
WAITS_SECONDS: Final = 60.0
"""How long a request waits for its operation: creating and sending wait for the store."""
LOGIN_SECONDS: Final = 60.0
_NOT_STORED: Final = {"cache-control": "no-store"}


class Managed(NamedTuple):
    """A live node, as operators reach it; its methods are for the broker's loop."""

    management: Management
    logins: OperatorLogins


class Operators:
    """Who asks, and what they ask the broker's loop; called on the loop of HTTP."""

    def __init__(
        self,
        host: str,
        managed: Callable[[], Managed | None],
        gateway: Gateway,
        pace: Pace,
    ) -> None:
        """``host`` is where HTTP listens; ``managed`` returns None while the node is not live."""
        self._host = host
        self._managed = managed
        self._gateway = gateway
        self.pace = pace

    @property
    def are_served(self) -> bool:
        """Whether this node is live."""
        return self._managed() is not None

    async def admit(self, request: Request) -> None:
        """Log in whoever asks, before its body is read; raises what ``perform`` does.

        A body costs memory and time, which nobody gets without a login.
        """
        await self.perform(request, _nothing)

    async def perform(self, request: Request, work: Callable[[Management, Principal], Any]) -> Any:
        """Log in whoever asks, and return what ``work`` returns, which runs on the broker's loop.

        Raises BrokerError, NotLive where no broker is, LoopHangs.
        """
        refuse_foreign_site(request, self._host)
        managed = self._managed()
        if managed is None:
            raise NotLive("this node is not live: ask the node that serves clients")
        who = caller(request)

        async def answer() -> Any:
            principal = await managed.logins.log_in(who)
            note_login(request)
            return await work(managed.management, principal)

        return await self._gateway.run(answer, LOGIN_SECONDS + WAITS_SECONDS)


async def _nothing(node: Management, who: Principal) -> None:
    del node, who


def routes(operators: Operators) -> list[Route]:
    """Return the routes of the API."""
    by_path: dict[str, dict[str, Operation]] = {}
    for one in OPERATIONS:
        by_path.setdefault(one.path, {})[one.method] = one
    document = JSONResponse(openapi())

    async def describe(request: Request) -> Response:
        del request
        return document

    return [
        Route(f"{PREFIX}/openapi.json", describe),
        *(
            Route(PREFIX + path, _endpoint(methods, operators), methods=list(methods))
            for path, methods in by_path.items()
        ),
    ]


def _endpoint(
    operations: Mapping[str, Operation], operators: Operators
) -> Callable[[Request], Any]:
    async def answer(request: Request) -> Response:
        operation = operations["GET" if request.method == "HEAD" else request.method]
        parts = [path_part(request, name) for name in request.path_params]
        arguments = of_query(operation.query, query(request))
        if request.method not in ("GET", "HEAD"):
            await operators.admit(request)
            arguments |= of_body(operation.body, await body(request))
        found = await operators.perform(
            request, lambda node, who: operation.perform(node, who, *parts, **arguments)
        )
        headers = dict(_NOT_STORED)
        if callable(found):
            # Long lists are sorted beside both loops.
            found = await operators.pace.beside(found)
        if isinstance(found, Created):
            headers["location"] = f"{PREFIX}/{quote(found.location)}"
            found = found.view
        shown = found if isinstance(found, dict) else as_json(found)
        return JSONResponse(shown, operation.status, headers)

    return answer


def openapi() -> dict[str, Any]:
    """Return the OpenAPI document of the API."""
    paths: dict[str, dict[str, Any]] = {}
    for one in OPERATIONS:
        paths.setdefault(one.path, {})[one.method.lower()] = _described(one)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Orthia", "version": "1"},
        "servers": [{"url": PREFIX}],
        "security": [{"basic": []}, {"bearer": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "bearer": {"type": "http", "scheme": "bearer"},
            },
            "schemas": {
                "Problem": {
                    "type": "object",
                    "required": ["type", "title", "status", "detail"],
                    "properties": {
                        "type": {"type": "string"},
                        "title": {"type": "string"},
                        "status": {"type": "integer"},
                        "detail": {"type": "string"},
                    },
                }
            },
        },
    }


def _of_member(argument: Argument) -> dict[str, Any]:
    """Return the schema of a member of a body: null is as good as to leave it out."""
    schema = argument.schema()
    return schema if argument.required else {"anyOf": [schema, {"type": "null"}]}


def _described(operation: Operation) -> dict[str, Any]:
    names = [part[1:-1] for part in operation.path.split("/") if part.startswith("{")]
    described: dict[str, Any] = {
        "summary": operation.about,
        "operationId": operation.perform.__name__.removeprefix("_"),
        "parameters": [
            {"name": one, "in": "path", "required": True, "schema": {"type": "string"}}
            for one in names
        ]
        + [
            {
                "name": one.name,
                "in": "query",
                "required": one.required,
                "description": one.about,
                "schema": one.schema(),
            }
            for one in operation.query
        ],
        "responses": {
            str(operation.status.value): {
                "description": operation.status.phrase,
                "content": {"application/json": {"schema": {"type": "object"}}},
            },
            "default": {
                "description": "It was refused, or failed",
                "content": {
                    "application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}
                },
            },
        },
    }
    if operation.body:
        described["requestBody"] = {
            "required": any(one.required for one in operation.body),
            "content": {
                "application/json": {
                    "schema": {
                        "type": "object",
                        "additionalProperties": False,
                        "required": [one.name for one in operation.body if one.required],
                        "properties": {
                            one.name: _of_member(one) | {"description": one.about}
                            for one in operation.body
                        },
                    }
                }
            },
        }
    return described
