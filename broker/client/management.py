"""A client of the HTTP API that the live node of a pair serves: ``/api/v1``.

It asks the given nodes in turn until the live one answers. A request that changes something is
sent again only where it was certainly not carried out.
"""

import base64
import http.client
import json
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from orthia.broker.client.tls import ClientTls, Words, explained
from orthia.config.errors import OrthiaError

PREFIX: Final = "/api/v1"
_READY: Final = "/ready"
_SCHEMES: Final[Mapping[str, int]] = {"http": 80, "https": 443}
CONNECT_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 130.0
"""More than a node takes for a request: it says itself that something takes too long."""
PROBE_SECONDS: Final = 10.0
"""More than a node takes to say whether it is live: after 5 s it says that its loop hangs."""
MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
_LONGEST_TEXT: Final = 300
_WORDS: Final = Words(
    trust_store="--ca FILE",
    key_store="--key-store FILE",
    name="ask by such a name: --management https://NAME:PORT",
    plain="ask for http://",
)


class ManagementError(OrthiaError):
    """A node's answer is not one of its API."""


class ManagementRefused(ManagementError):  # noqa: N818 - named for the state
    """The live node refused a request; the text is the node's."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        """The HTTP status."""


class LoginRefused(ManagementRefused):
    """The live node refuses the login, or asks for one; the text says where, and what to do."""


class ManagementUnreachable(ManagementError):  # noqa: N818 - named for the state
    """None of the nodes answers, or none of those that answer is live."""

    def __init__(self, reasons: "Mapping[ManagementAddress, str]", *, passive: bool) -> None:
        super().__init__("; ".join(f"{where}: {why}" for where, why in reasons.items()))
        self.reasons = reasons
        """By address why it was of no use."""
        self.passive = passive
        """Whether one of them answers, and is not live."""


class AnswerLost(ManagementError):  # noqa: N818 - named for the state
    """The connection broke after a request was sent that changes something."""


@dataclass(frozen=True)
class ManagementAddress:
    """Where a node serves HTTP."""

    host: str
    port: int
    is_secure: bool = False

    @classmethod
    def parse(cls, text: str) -> "ManagementAddress":
        """Read ``http://HOST:PORT``, ``https://HOST:PORT`` or ``HOST:PORT``; raises ValueError."""
        parts = urlsplit(text if "://" in text else f"http://{text}")
        port = parts.port  # raises ValueError for what is no port
        is_plain = parts.path in ("", "/") and not parts.query and parts.username is None
        if parts.scheme not in _SCHEMES or not parts.hostname or not is_plain or port == 0:
            raise ValueError(f"{text!r} is not http://HOST:PORT")
        return cls(parts.hostname, port or _SCHEMES[parts.scheme], parts.scheme == "https")

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.is_secure else 'http'}://{host}:{self.port}"

    def connection(self, tls: ClientTls) -> http.client.HTTPConnection:
        """Return a connection that is not open yet; reads files. Raises TlsUnusable."""
        if self.is_secure:
            return http.client.HTTPSConnection(
                self.host, self.port, timeout=CONNECT_SECONDS, context=tls.context()
            )
        return http.client.HTTPConnection(self.host, self.port, timeout=CONNECT_SECONDS)


class ManagementClient:
    """Asks the live node of a pair; not for several threads at once."""

    def __init__(
        self,
        addresses: Sequence[ManagementAddress],
        user: str | None = None,
        password: str | None = None,
        tls: ClientTls | None = None,
        *,
        probe_seconds: float = PROBE_SECONDS,
    ) -> None:
        """``addresses`` are those of the nodes, in any order; without a ``user`` as nobody.

        ``tls`` says whom to trust, and as whom to log in by a certificate. A node that says nothing
        for ``probe_seconds`` when asked whether it is live is not asked for more.
        """
        self._probe_seconds = probe_seconds
        self._tls = tls or ClientTls()
        self._addresses = list(addresses)
        self._headers = {"Accept": "application/json"}
        if user is not None:
            login = base64.b64encode(f"{user}:{password or ''}".encode()).decode()
            self._headers["Authorization"] = f"Basic {login}"

    @property
    def live(self) -> ManagementAddress:
        """The node that is asked first: the live one, once one has answered."""
        return self._addresses[0]

    def get(self, *path: str | int, **query: object) -> dict[str, Any]:
        """Return what is at ``path``, whose parts are not quoted yet; raises ManagementError."""
        return self._ask("GET", path, query, None)

    def post(self, *path: str | int, body: Mapping[str, object] | None = None) -> dict[str, Any]:
        """Send ``body`` to ``path``, without members that are None; raises ManagementError."""
        return self._ask("POST", path, {}, _given(body or {}))

    def patch(self, *path: str | int, body: Mapping[str, object]) -> dict[str, Any]:
        """Change what is at ``path``, but for members that are None; raises ManagementError."""
        return self._ask("PATCH", path, {}, _given(body))

    def delete(self, *path: str | int, **query: object) -> dict[str, Any]:
        """Delete what is at ``path``; raises ManagementError."""
        return self._ask("DELETE", path, query, None)

    def find_live(self) -> ManagementAddress:
        """Return where the live node is, which is asked first from now on.

        Raises ManagementUnreachable.
        """
        self._first_of_use("GET", _READY, None)
        return self.live

    def _ask(
        self,
        method: str,
        path: Sequence[str | int],
        query: Mapping[str, object],
        body: Mapping[str, object] | None,
    ) -> dict[str, Any]:
        where = _target(path, query)
        if method == "GET":
            status, found = self._first_of_use(method, where, body)
        else:
            # To one node alone: a second one might carry it out again.
            address = self.find_live()
            try:
                status, found = self._exchange(address, method, where, body)
            except _NotSentError as error:
                raise ManagementUnreachable({address: str(error)}, passive=False) from None
        if status >= HTTPStatus.BAD_REQUEST:
            raise ManagementRefused(status, _detail(found, status))
        if not isinstance(found, dict):
            raise ManagementError(f"{self.live} answers with something else than Orthia's API")
        return found

    def _first_of_use(
        self, method: str, where: str, body: Mapping[str, object] | None
    ) -> tuple[int, object]:
        """Ask one node after the other until one answers that is live."""
        reasons: dict[ManagementAddress, str] = {}
        passive = False
        for address in list(self._addresses):
            try:
                if where != _READY:
                    # A frozen node accepts connections and says nothing: it is not waited for as
                    # long as one that works on the request, and the other one may serve.
                    self._exchange(address, "GET", _READY, None)
                status, found = self._exchange(address, method, where, body)
            except _NotSentError as error:
                reasons[address] = str(error)
                continue
            if status == HTTPStatus.SERVICE_UNAVAILABLE:
                reasons[address] = _detail(found, status)
                passive = True
                continue
            self._addresses.remove(address)
            self._addresses.insert(0, address)
            return status, found
        raise ManagementUnreachable(reasons, passive=passive)

    def _exchange(
        self,
        address: ManagementAddress,
        method: str,
        where: str,
        body: Mapping[str, object] | None,
    ) -> tuple[int, object]:
        headers, data = dict(self._headers), None
        if body is not None:
            headers["Content-Type"] = "application/json"
            data = json.dumps(body).encode()
        connection = address.connection(self._tls)
        try:
            try:
                connection.connect()
            except ssl.SSLError as error:
                raise _NotSentError(explained(error, address.host, _WORDS)) from None
            except OSError as error:
                raise _NotSentError(error.strerror or str(error) or "no answer") from None
            waits = self._probe_seconds if where == _READY else ANSWER_SECONDS
            connection.sock.settimeout(waits)
            try:
                connection.request(method, where, data, headers)
                response = connection.getresponse()
                answer = response.read(MAX_ANSWER_BYTES)
            except (OSError, http.client.HTTPException) as error:
                why = f"no whole answer: {str(error) or type(error).__name__}"
                if isinstance(error, TimeoutError):
                    why = _no_answer(where, waits)
                elif isinstance(error, ssl.SSLError):
                    why = explained(error, address.host, _WORDS)
                if method == "GET":
                    raise _NotSentError(why) from None
                raise AnswerLost(
                    f"{address} was asked, and gave {why}; look whether it was done before you ask"
                    " again"
                ) from None
        finally:
            connection.close()
        try:
            return response.status, json.loads(answer)
        except (ValueError, RecursionError):
            return response.status, answer[:_LONGEST_TEXT].decode(errors="replace").strip()


def _given(body: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in body.items() if value is not None}


def _no_answer(where: str, seconds: float) -> str:
    if where != _READY:
        return f"no answer within {seconds:g} s"
    return (
        f"it takes the connection and does not say within {seconds:g} s whether it is live: its"
        " process is frozen, or its machine is overloaded; continue or end the process there"
    )


class _NotSentError(Exception):
    """A node was not asked to change anything."""


def _target(path: Sequence[str | int], query: Mapping[str, object]) -> str:
    parts = [PREFIX, *(quote(str(part), safe="") for part in path)]
    given = {
        name.replace("_", "-"): str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in query.items()
        if value is not None
    }
    return "/".join(parts) + (f"?{urlencode(given)}" if given else "")


def _detail(found: object, status: int) -> str:
    if isinstance(found, dict) and isinstance(found.get("detail"), str):
        return str(found["detail"])
    if isinstance(found, str) and found:
        return found
    known = status in HTTPStatus.__members__.values()
    return f"HTTP {status}{f' {HTTPStatus(status).phrase}' if known else ''}"
