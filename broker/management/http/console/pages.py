"""The routes of the console: each page, and the forms on it.

A form is answered with the page to look at next (303), so that reloading it does nothing again. Who
looks logs in as for the API, and sees what the permissions of its user allow. The names of queues
are in the query, not in the path, of which browsers remove parts such as ``..``.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Mapping, Sequence
from http import HTTPStatus
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from orthia.broker.core.errors import AuthenticationFailed, NotAuthorized, NotLive
from orthia.broker.core.identity import Principal
from orthia.broker.core.selectors import SelectorRefused
from orthia.broker.management import listing
from orthia.broker.management.errors import WrongArgument
from orthia.broker.management.facade import MOST_BODY_BYTES, Management
from orthia.broker.management.http.call import authority, certificate, query, refuse_foreign_site
from orthia.broker.management.http.console.forms import Form, form, number, refuse_unnamed_site
from orthia.broker.management.http.console.live import Streams
from orthia.broker.management.http.console.rendering import (
    MOST_OF_A_PROPERTY,
    SECURITY,
    Page,
    body_shown,
    link,
)
from orthia.broker.management.http.console.sparklines import Depths
from orthia.broker.management.http.console.timeline import Timeline
from orthia.broker.management.http.probes import Probes
from orthia.broker.management.http.problems import CHALLENGE, status_of
from orthia.broker.management.http.resources import Operators
from orthia.broker.management.views import (
    ConnectionView,
    JobKind,
    JobState,
    JobView,
    MessagePage,
    QueueView,
)
from orthia.broker.quoting import quoted
from orthia.config.errors import OrthiaError
from orthia.nodemanager.failover_log import Entry

ROWS: Final = 50
"""Rows of a page of queues, connections or messages."""
_MOST_GROUPED: Final = 5_000
"""Messages of a queue of dead letters that are looked at to group them."""
_MOST_SHARED: Final = 32
_MOST_JOBS: Final = 3
"""Jobs that are over, of a queue's page."""
_STATIC: Final = {
    "console.css": "text/css",
    "icon.svg": "image/svg+xml",
    "htmx.min.js": "text/javascript",
    "live.js": "text/javascript",
    "htmx-LICENSE.txt": "text/plain",
}
_OF_QUEUE: Final = frozenset({JobKind.MOVE, JobKind.COPY, JobKind.RETRY, JobKind.DELETE})
_Result = TypeVar("_Result")
_Work = Callable[[Management, Principal], Coroutine[Any, Any, _Result]]


class _Group(NamedTuple):
    """Undelivered messages of one queue that came from one other."""

    queue: str
    origin: str | None
    """None if they do not say where they come from."""
    messages: int
    expired: int
    """How many of them are there since they expired."""
    oldest_ms: int
    newest_ms: int


class _Grouped(NamedTuple):
    """A queue of dead letters by where its messages come from."""

    view: QueueView
    groups: Sequence[_Group]
    looked_at: int
    is_whole: bool


class _QueueSeen(NamedTuple):
    """All that the page of a queue shows."""

    view: QueueView
    jobs: Sequence[JobView]
    consumers: Sequence[Any] | None
    """None, here and below, if the user may not see them."""
    messages: MessagePage | None
    refused: str
    """What is wrong with the selector; "" if nothing is."""


class Console:
    """The console of one node; called on the loop of HTTP."""

    def __init__(
        self,
        host: str,
        operators: Operators,
        probes: Probes,
        role: Callable[[], Mapping[str, Any]],
        failover_logs: Path | None,
        streams: Streams,
    ) -> None:
        """``host`` is where HTTP listens; ``role`` returns what ``/role`` shows.

        ``failover_logs`` is the directory of the failover log, if the node writes it to a file;
        ``streams`` are of pages that follow what happens.
        """
        self._streams = streams
        self._depths = Depths()
        self._shared: dict[str, tuple[object, Page]] = {}
        """Pages that others may see, too, by their address, with what they show."""
        self._host = host
        self._operators = operators
        self._probes = probes
        self._role = role
        self._timeline = None if failover_logs is None else Timeline(failover_logs)

    def routes(self) -> list[Route]:
        """Return the routes of the console."""

        def of(path: str, show: _Answer, act: _Answer | None = None) -> Route:
            methods = ["GET"] if act is None else ["GET", "POST"]
            return Route(f"/console/{path}", self._endpoint(show, act), methods=methods)

        return [
            Route("/", _to("/console/")),
            Route("/console", _to("/console/")),
            of("", self._start),
            of("queues", self._queues),
            of("queue", self._queue, self._act_on_queue),
            of("message", self._message),
            of("dead-letters", self._dead_letters, self._retry_dead_letters),
            of("connections", self._connections, self._close_connection),
            of("jobs", self._jobs, self._act_on_job),
            of("pair", self._pair),
            Route("/console/static/{file}", _static),
        ]

    def _endpoint(
        self, show: "_Answer", act: "_Answer | None"
    ) -> Callable[[Request], Awaitable[ASGIApp]]:
        async def answer(request: Request) -> ASGIApp:
            try:
                refuse_foreign_site(request, self._host)
                if request.method == "POST" and act is not None:
                    found = await act(request)
                else:
                    found = await self._shown(request, show)
            except OrthiaError as error:
                found = self._error(request, error)
            return found.response() if isinstance(found, Page) else found

        return answer

    async def _shown(self, request: Request, show: "_Answer") -> "Page | ASGIApp":
        """Return a page; or, to who asks for events, the stream of what it follows."""
        follows = "text/event-stream" in request.headers.get("accept", "")
        if follows:
            self._streams.refuse_if_too_many()
        found = await show(request)
        if not follows or not isinstance(found, Page) or not found.values["refreshes"]:
            return found

        request.state.is_followed = True
        same = (
            *(request.url.path, request.url.query),
            *(certificate(request), *request.headers.getlist("authorization")),
        )

        async def update() -> bytes:
            now = await show(request)
            if not isinstance(now, Page):
                raise NotLive("this page is another by now: load it again")
            return now.update

        urgent = self._role_now if request.url.path.endswith("/pair") else None
        return self._streams.follow(same, found.update, update, urgent)

    def _role_now(self) -> Hashable:
        now = self._role()
        return now["role"], now["token"]

    def _page(
        self,
        request: Request,
        template: str,
        status: HTTPStatus = HTTPStatus.OK,
        headers: Mapping[str, str] | None = None,
        *,
        refreshes: bool = False,
        **values: Any,
    ) -> Page:
        url = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        stays = "refresh=off" in request.url.query
        common = {
            "node": self._role(),
            "here": request.url.path.removeprefix("/console/"),
            "url": url,
            "refresh_url": url if refreshes and not stays else "",
            "stay_url": f"{url}{'&' if '?' in url else '?'}refresh=off",
            "refreshes": refreshes and not stays,
            "reloads": False,
        }
        return Page(template, common | values, status, headers or {})

    def _error(self, request: Request, error: OrthiaError) -> Page:
        status = status_of(error)
        back = request.headers.get("referer", "")
        back_to = link("")
        if authority(back) == request.headers.get("host"):
            parts = urlsplit(back)
            if parts.path.startswith("/console/"):
                back_to = f"{parts.path}?{parts.query}"
        return self._page(
            request,
            "error.html",
            status,
            CHALLENGE if status is HTTPStatus.UNAUTHORIZED else None,
            title=status.phrase,
            problem=str(error),
            nothing_happened=request.method == "POST",
            is_elsewhere=isinstance(error, NotLive),
            back=back_to,
        )

    async def _form(self, request: Request) -> Form:
        refuse_unnamed_site(request)
        await self._operators.admit(request)
        return await form(request)

    # --- the node

    async def _start(self, request: Request) -> Response:
        del request
        return _see(link("queues" if self._operators.are_served else "pair"))

    async def _pair(self, request: Request) -> Page | Response:
        overview = None
        refusal = self._probes.refusal(request, by_browser=True)
        is_live = self._operators.are_served
        if is_live and not self._probes.knows(request):
            try:
                followed = _is_followed(request)
                overview = await self._operators.perform(
                    request, lambda node, who: node.overview(who, followed=followed)
                )
            except AuthenticationFailed:
                # Who may see /role sees as much without a login: also when a backup becomes live.
                if refusal is not None or "authorization" in request.headers:
                    raise
        elif refusal is not None:
            refusal.headers.update(SECURITY)
            return refusal
        events: Sequence[Entry] = ()
        if self._timeline is not None:
            events = await asyncio.to_thread(self._timeline.latest)
        return self._page(
            request,
            "pair.html",
            refreshes=True,
            is_live=is_live,
            overview=overview,
            events=events,
            has_log=self._timeline is not None,
        )

    # --- queues

    async def _queues(self, request: Request) -> Page:
        given = query(request)
        search, sort = given.get("search", ""), given.get("sort", "name")
        asked = listing.Asked(
            search,
            sort=sort.removeprefix("-"),
            descending=sort.startswith("-"),
            offset=(_number_of_page(given) - 1) * ROWS,
            limit=ROWS,
            followed=_is_followed(request),
        )
        found: listing.Page[QueueView] = await self._operators.perform(
            request, lambda node, who: node.queues(who, asked)
        )
        return self._of_list(
            request,
            "queues.html",
            found,
            lambda: {
                "queues": found.items,
                "made_ms": found.made_ms,
                "depths": self._depths.seen(found.items, int(time.time() * 1_000)),
                "sort": sort,
            },
        )

    def _of_list(
        self,
        request: Request,
        template: str,
        found: listing.Page[Any],
        shown: Callable[[], Mapping[str, Any]],
    ) -> Page:
        """Return a page of a list; who looks at the same at the same moment has it made once."""
        url = f"{request.url.path}?{request.url.query}"
        before, page = self._shared.get(url, (None, None))
        if page is None or before is not found:
            given = query(request)
            page = self._page(
                request,
                template,
                refreshes=True,
                total=found.total,
                search=given.get("search", ""),
                number=_number_of_page(given),
                pages=max(1, -(-found.total // ROWS)),
                **shown(),
            )
            if len(self._shared) >= _MOST_SHARED:
                self._shared.clear()
            self._shared[url] = found, page
        return page

    async def _queue(self, request: Request) -> Page:
        given = query(request)
        name, selector = _needed(given, "name"), given.get("selector", "").strip()
        after = given.get("after") or None
        seen: _QueueSeen = await self._operators.perform(
            request, lambda node, who: _seen(node, who, name, selector, after)
        )
        is_busy = any(one.state is JobState.RUNNING for one in seen.jobs)
        return self._page(
            request,
            "queue.html",
            refreshes=True,
            reloads=is_busy,
            queue=seen.view,
            jobs=seen.jobs,
            consumers=seen.consumers,
            messages=seen.messages,
            refused=seen.refused,
            selector=selector,
            after=after,
            all_ticked=given.get("ticked") == "all",
        )

    async def _act_on_queue(self, request: Request) -> Response:
        name = _needed(query(request), "name")
        said = await self._form(request)
        do = said.text("do")

        async def work(node: Management, who: Principal) -> str:
            if do == "pause":
                await node.pause_queue(who, name)
            elif do == "resume":
                await node.resume_queue(who, name)
            elif do == "close-consumer":
                await node.close_consumer(who, said.text("consumer"), said.text("reason"))
                return "#consumers"
            elif do == "purge":
                await _purge(node, who, name, said)
                return "#jobs"
            elif do in _OF_QUEUE:
                await _start_job(node, who, name, JobKind(do), said)
                return "#jobs"
            else:
                raise WrongArgument("do", f"there is nothing to do that is called {quoted(do)}")
            return ""

        anchor = await self._operators.perform(request, work)
        return _see(link("queue", name=name) + anchor)

    async def _message(self, request: Request) -> Page:
        given = query(request)
        queue, message = _needed(given, "queue"), number("id", _needed(given, "id"))

        async def work(node: Management, who: Principal) -> Any:
            return await node.message(who, queue, message, body_bytes=MOST_BODY_BYTES)

        view = await self._operators.perform(request, work)
        shown = None
        if view.body is not None:
            shown = body_shown(view.body, given.get("as") or _likely_form(view.body))
        return self._page(
            request,
            "message.html",
            message=view,
            shown=shown,
            most=MOST_OF_A_PROPERTY,
            most_body=MOST_BODY_BYTES,
        )

    # --- dead letters

    async def _dead_letters(self, request: Request) -> Page:
        found = await self._operators.perform(request, _all_dead_letters)
        return self._page(request, "dead_letters.html", queues=found, most=_MOST_GROUPED)

    async def _retry_dead_letters(self, request: Request) -> Response:
        name = _needed(query(request), "name")
        said = await self._form(request)
        origin = said.text("origin")
        text = origin.replace("'", "''")

        async def work(node: Management, who: Principal) -> None:
            selector = f"_AMQ_ORIG_QUEUE = '{text}'" if origin else None
            await node.start_job(who, JobKind.RETRY, queue=name, selector=selector)

        await self._operators.perform(request, work)
        return _see(link("queue", name=name) + "#jobs")

    # --- connections and jobs

    async def _connections(self, request: Request) -> Page:
        given = query(request)
        asked = listing.Asked(
            given.get("search", ""),
            sort="since_ms",
            descending=True,
            offset=(_number_of_page(given) - 1) * ROWS,
            limit=ROWS,
            followed=_is_followed(request),
        )
        found: listing.Page[ConnectionView] = await self._operators.perform(
            request, lambda node, who: node.connections(who, asked)
        )
        return self._of_list(
            request, "connections.html", found, lambda: {"connections": found.items}
        )

    async def _close_connection(self, request: Request) -> Response:
        said = await self._form(request)

        async def work(node: Management, who: Principal) -> None:
            await node.close_connection(who, said.text("connection"), said.text("reason"))

        await self._operators.perform(request, work)
        return _see(link("connections"))

    async def _jobs(self, request: Request) -> Page:
        async def work(node: Management, who: Principal) -> Any:
            return await node.jobs(who)

        jobs = await self._operators.perform(request, work)
        is_busy = any(one.state is JobState.RUNNING for one in jobs)
        return self._page(request, "jobs.html", refreshes=True, reloads=is_busy, jobs=jobs)

    async def _act_on_job(self, request: Request) -> Response:
        said = await self._form(request)
        job, do = number("job", said.text("job")), said.text("do")

        async def work(node: Management, who: Principal) -> JobView:
            if do == "stop":
                return await node.stop_job(who, job)
            if do == "continue":
                return await node.continue_job(who, job)
            raise WrongArgument("do", f"there is nothing to do that is called {quoted(do)}")

        view = await self._operators.perform(request, work)
        if view.of_address:
            return _see(link("jobs"))
        return _see(link("queue", name=view.queue) + "#jobs")


_Answer = Callable[[Request], Awaitable[Page | ASGIApp]]


def _is_followed(request: Request) -> bool:
    """Return whether a request asks once more for a page that follows what happens."""
    return getattr(request.state, "is_followed", False)


async def _seen(
    node: Management, who: Principal, name: str, selector: str, after: str | None
) -> _QueueSeen:
    view = await node.queue(who, name)
    jobs = [one for one in await _if_allowed(node.jobs(who)) or () if _is_of(one, view)]
    active = [one for one in jobs if one.state in (JobState.RUNNING, JobState.INTERRUPTED)]
    over = [one for one in jobs if one not in active]
    messages, refused = None, ""
    try:
        messages = await _if_allowed(node.browse(who, name, selector or None, after, ROWS))
    except SelectorRefused as error:
        refused = str(error)
    return _QueueSeen(
        view,
        [*active, *over[:_MOST_JOBS]],
        await _if_allowed(node.consumers(who, name)),
        messages,
        refused,
    )


def _is_of(job: JobView, queue: QueueView) -> bool:
    if job.of_address:
        return job.queue == queue.address
    return queue.name in (job.queue, job.target)


async def _if_allowed(asked: Awaitable[_Result]) -> _Result | None:
    """Return what was asked for; None if the user may not see it."""
    try:
        return await asked
    except NotAuthorized:
        return None


async def _purge(node: Management, who: Principal, name: str, said: Form) -> None:
    """Purge a queue that has no more messages than its operator says may go."""
    if not said.text("most"):
        raise WrongArgument("most", "say how many messages may be deleted")
    most = number("most", said.text("most"))
    there = await node.count(who, name)
    if there > most:
        raise WrongArgument(
            "most",
            f"queue {quoted(name)} has {there:,} messages, and {most:,} may be deleted: nothing was"
            " deleted",
        )
    await node.start_job(who, JobKind.PURGE, queue=name)


async def _start_job(
    node: Management, who: Principal, name: str, kind: JobKind, said: Form
) -> None:
    """Begin what a form asks for: of the ticked messages, or of all that match its selector."""
    ids, selector = None, None
    if said.text("which") == "all":
        selector = said.text("selector") or None
    else:
        ids = said.numbers("ids")
        if not ids:
            raise WrongArgument(
                "ids", f"no message is ticked: tick those to {kind.value}, or choose all of them"
            )
    goes = kind in (JobKind.MOVE, JobKind.COPY)
    target = (said.text("target") or None) if goes else None
    await node.start_job(who, kind, queue=name, selector=selector, ids=ids, target=target)


async def _all_dead_letters(node: Management, who: Principal) -> list[_Grouped]:
    return [await _grouped(node, who, one) for one in await node.dead_letter_queues(who)]


async def _grouped(node: Management, who: Principal, view: QueueView) -> _Grouped:
    groups: dict[str | None, _Group] = {}
    looked_at, after = 0, None
    while looked_at < _MOST_GROUPED:
        found = await _if_allowed(node.browse(who, view.name, None, after, 500))
        if found is None:
            break
        for one in found.messages:
            known = groups.get(one.origin_queue)
            if known is None:
                known = _Group(
                    view.name, one.origin_queue, 0, 0, one.timestamp_ms, one.timestamp_ms
                )
            groups[one.origin_queue] = known._replace(
                messages=known.messages + 1,
                expired=known.expired + ("_AMQ_ACTUAL_EXPIRY" in one.properties),
                oldest_ms=min(known.oldest_ms, one.timestamp_ms),
                newest_ms=max(known.newest_ms, one.timestamp_ms),
            )
        looked_at += len(found.messages)
        after = found.next
        if after is None:
            break
    by_size = sorted(groups.values(), key=lambda one: -one.messages)
    return _Grouped(view, by_size, looked_at, after is None)


def _likely_form(body: bytes) -> str:
    if body[:1] in (b"{", b"["):
        try:
            json.loads(body)
        except (ValueError, RecursionError):
            return "text"
        return "json"
    return "text"


def _number_of_page(given: Mapping[str, str]) -> int:
    return max(1, number("page", given.get("page") or "1"))


def _needed(given: Mapping[str, str], name: str) -> str:
    value = given.get(name)
    if not value:
        raise WrongArgument(name, f"{name} is missing in the address of this page")
    return value


def _see(where: str) -> Response:
    return RedirectResponse(where, HTTPStatus.SEE_OTHER, SECURITY)


def _to(where: str) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        del request
        return RedirectResponse(where, HTTPStatus.TEMPORARY_REDIRECT, SECURITY)

    return answer


_FILES: Final = files("orthia.broker.management.http.console") / "static"


async def _static(request: Request) -> Response:
    name = request.path_params["file"]
    if name not in _STATIC:
        return Response("there is no such file\n", HTTPStatus.NOT_FOUND, SECURITY)
    headers = SECURITY | {"cache-control": "max-age=300"}
    return Response((_FILES / name).read_bytes(), headers=headers, media_type=_STATIC[name])
