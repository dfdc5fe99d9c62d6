"""One request of the API: where it comes from, who asks, and what it says.

Whoever can have a browser send a request must not act as the person in front of it: what changes
something is JSON, comes from no other site, and names the host that this node has.
"""

import asyncio
import base64
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from starlette.requests import ClientDisconnect, Request

from orthia.broker.core.errors import AuthenticationFailed, BrokerError, LimitExceeded
from orthia.broker.management.abc import Caller
from orthia.broker.management.errors import WrongArgument
from orthia.broker.management.http.bounds import CERTIFICATE, LOGGED_IN
from orthia.broker.management.json_text import read_json
from orthia.broker.quoting import quoted
from orthia.config.exposure import is_loopback

MAX_BODY_BYTES: Final = 2 * 1024 * 1024
BODY_SECONDS: Final = 30.0
_MOST_PARAMETERS: Final = 64
_SAFE: Final = frozenset({"GET", "HEAD"})
_SAME_SITE: Final = frozenset({"same-origin", "none"})


class ForeignSite(BrokerError):  # noqa: N818 - named for what is the case
    """A page of another site had a browser send the request."""


class BodyLate(BrokerError):  # noqa: N818 - named for what is the case
    """The body has not arrived in time."""


class NotJson(BrokerError):  # noqa: N818 - named for what is the case
    """The body is of another kind than JSON."""


def credentials(request: Request) -> tuple[str | None, str | None]:
    """Return login and passcode of a request; raises AuthenticationFailed.

    ``Bearer`` has a token, which is a passcode of whoever it names.
    """
    given = request.headers.getlist("authorization")
    if not given:
        return None, None
    scheme, _, value = given[0].partition(" ")
    if len(given) == 1 and scheme.lower() == "bearer":
        return None, value.strip()
    if len(given) == 1 and scheme.lower() == "basic":
        try:
            login, colon, passcode = (
                base64.b64decode(value.strip(), validate=True).decode().partition(":")
            )
        except ValueError:  # neither base64 nor UTF-8
            colon = ""
        if colon:
            return login, passcode
    raise AuthenticationFailed("expected one Authorization header: Basic with user:password")


def caller(request: Request) -> Caller:
    """Return who sends a request; raises AuthenticationFailed for credentials of no known kind."""
    login, passcode = credentials(request)
    client = request.client
    address, port = ("", None) if client is None else (client.host, client.port)
    return Caller(address, port, login, passcode, certificate(request))


def certificate(request: Request) -> bytes | None:
    """Return the verified certificate of a request's client as DER; None without one."""
    read: Callable[[], bytes | None] | None = request.scope.get("state", {}).get(CERTIFICATE)
    return None if read is None else read()


def note_login(request: Request) -> None:
    """Note that the client of a request has logged in; any thread."""
    note: Callable[[], None] | None = request.scope.get("state", {}).get(LOGGED_IN)
    if note is not None:
        note()


def authority(url: str) -> str | None:
    """Return host and port of a URL that a client sent, as it has them; None if it is no URL."""
    try:
        return urlsplit(url).netloc
    except ValueError:
        return None


def host_name(named: str) -> str:
    """Return the name in a ``Host`` header, without its port; "" if there is none."""
    try:
        return urlsplit(f"//{named}").hostname or ""
    except ValueError:
        return ""


def refuse_foreign_host(request: Request, host: str) -> None:
    """Raise ForeignSite if a request to a loopback ``host`` names another.

    So does a browser on this machine whose page has its own name lead here.
    """
    name = host_name(request.headers.get("host", ""))
    if is_loopback(host) and not (name == "localhost" or is_loopback(name)):
        raise ForeignSite(
            f"this node serves HTTP on {host} alone, and the request is for host {quoted(name)}"
        )


def refuse_foreign_site(request: Request, host: str) -> None:
    """Raise ForeignSite for a request that a page of another site made; ``host`` is bound."""
    refuse_foreign_host(request, host)
    if request.method in _SAFE:
        return
    named = request.headers.get("host", "")
    site = request.headers.get("sec-fetch-site", "none")
    origin = request.headers.get("origin")
    if site not in _SAME_SITE or (origin is not None and authority(origin) != named):
        raise ForeignSite("the request was made by a page of another site")


def refuse_unproven_site(request: Request, *, changes: bool) -> None:
    """Raise ForeignSite unless a request to Jolokia, which is told all by GET, is of no page.

    One that ``changes`` something, and that any page may have a browser send, has to name this
    host as its ``Origin``, which browsers never forge.
    """
    origin, host = request.headers.get("origin"), request.headers.get("host", "")
    site = request.headers.get("sec-fetch-site", "none")
    if site not in _SAME_SITE or (
        origin is not None and (authority(origin) or "").lower() != host.lower()
    ):
        raise ForeignSite("the request was made by a page of another site")
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    is_simple = request.method in _SAFE or kind not in ("application/json", "text/json")
    if changes and is_simple and origin is None:
        raise ForeignSite(
            f"this changes something: send it with the header Origin: http://{host}, or as a POST"
            " with Content-Type: application/json"
        )


def path_part(request: Request, name: str) -> str:
    """Return a part of the path, decoded."""
    try:
        return unquote(request.path_params[name], errors="strict")
    except UnicodeDecodeError:
        raise WrongArgument(name, f"{name} in the path is not UTF-8") from None


def query(request: Request) -> Mapping[str, str]:
    """Return the parameters of the query; raises WrongArgument for too many, or one twice."""
    given: dict[str, str] = {}
    sent = request.scope["query_string"].decode("latin-1")
    try:
        found = parse_qsl(sent, keep_blank_values=True, max_num_fields=_MOST_PARAMETERS)
    except ValueError:
        raise WrongArgument(
            "query", f"the query has more than {_MOST_PARAMETERS} parameters"
        ) from None
    for name, value in found:
        if name in given:
            raise WrongArgument(name, f"parameter {quoted(name)} is given twice")
        given[name] = value
    return given


async def data(request: Request) -> bytes:
    """Return the bytes of a request's body, of a client that has logged in.

    Raises LimitExceeded, NotJson if it does not end, BodyLate.
    """
    found = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                found += chunk
                if len(found) > MAX_BODY_BYTES:
                    raise LimitExceeded(f"the body is longer than {MAX_BODY_BYTES} bytes")
    except TimeoutError:
        raise BodyLate(f"the body did not arrive within {BODY_SECONDS:g} s") from None
    except ClientDisconnect:
        raise NotJson("the body is not complete") from None
    return bytes(found)


def media_type(request: Request) -> str:
    """Return what kind of body a request says it has, without parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def body(request: Request) -> Mapping[str, Any]:
    """Return the JSON object of a request; {} without a body. Raises BrokerError."""
    given = await data(request)
    if not given:
        return {}
    kind = media_type(request)
    if kind != "application/json":
        raise NotJson(f"expected Content-Type: application/json, not {quoted(kind)}")
    try:
        found = read_json(given)
    except (ValueError, RecursionError) as error:
        raise WrongArgument("body", f"the body is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise WrongArgument("body", "the body is not a JSON object")
    return found
