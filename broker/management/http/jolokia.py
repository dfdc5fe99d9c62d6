"""Jolokia's protocol at ``/console/jolokia/``, as Artemis has it, and ``/api/jolokia/``, Classic's.

What is read and done are attributes and operations of ``mbeans``, which calls the facade. Each
request has its answer in the body, with a ``status`` of its own; that of HTTP is 200.
"""

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from orthia.broker.core.errors import DestinationRefused, LimitExceeded, NotAuthorized
from orthia.broker.core.identity import Principal
from orthia.broker.core.selectors import SelectorRefused
from orthia.broker.management.attributes import Attribute, NodeSeen, version
from orthia.broker.management.errors import NotFound, WrongArgument
from orthia.broker.management.facade import Management
from orthia.broker.management.http import mbeans
from orthia.broker.management.http.call import (
    MAX_BODY_BYTES,
    data,
    query,
    refuse_unproven_site,
)
from orthia.broker.management.http.mbeans import (
    Found,
    Kind,
    LiveObjects,
    Objects,
    PassiveObjects,
)
from orthia.broker.management.http.object_names import ObjectName, parse
from orthia.broker.management.http.pace import Pace
from orthia.broker.management.http.resources import Operators
from orthia.broker.management.java_types import BOOLEAN, converted
from orthia.broker.management.json_text import read_json
from orthia.broker.management.operations import by_name, chosen
from orthia.broker.quoting import quoted
from orthia.config.errors import OrthiaError

PROTOCOL: Final = "7.2"
BASES: Final = ("/console/jolokia", "/api/jolokia")
MOST_REQUESTS: Final = 500
"""In one bulk."""
MOST_VALUES: Final = 200_000
"""That a pattern may read."""
MOST_CHARACTERS: Final = 64 * 1024 * 1024
"""Of an answer, a bulk's as a whole: it is made in memory."""
MOST_LISTED: Final = 1_000
"""Objects that are described in one answer."""
LONGEST_TEXT: Final = 8_192
"""Characters of a name, a path, an operation, or of attributes with commas between them."""
MOST_PARTS: Final = 256
"""Attributes, or parts of a path, in an array."""
LONGEST_ARGUMENT: Final = 65_536
"""Characters of an argument of an operation, but for those of a message that is sent."""
BULK_SECONDS: Final = 60.0
"""How long the answer of one bulk is made."""
_SHAPES: Final = frozenset(
    ("maxDepth", "maxCollectionSize", "maxObjects", "includeStackTrace", "serializeException")
)
"""Parameters that bound how Java's objects are shown, of which there are none here."""
_FLAGS: Final = {"ignoreErrors": False, "includeRequest": True, "canonicalNaming": True}
_PART: Final = re.compile(r"(?:!.|[^/])++", re.DOTALL)
_Value = Callable[[], Any]


class NoSuchAttribute(OrthiaError):  # noqa: N818 - named for what is the case
    """The object has no attribute of that name."""


class NotServed(OrthiaError):  # noqa: N818 - named for what is the case
    """A kind of request that this node does not answer."""


_TOO_LONG: Final = LimitExceeded("the whole answer would be too long: ask for less at a time")
_TOO_SLOW: Final = LimitExceeded(
    f"the answers before this one took {BULK_SECONDS:g} s: ask for less at a time"
)
_ERRORS: Final[tuple[tuple[type[OrthiaError], int, str], ...]] = (
    (NotServed, 403, "java.lang.SecurityException"),
    (NotAuthorized, 403, "java.lang.SecurityException"),
    (NoSuchAttribute, 404, "javax.management.AttributeNotFoundException"),
    (NotFound, 404, "javax.management.InstanceNotFoundException"),
    (WrongArgument, 400, "java.lang.IllegalArgumentException"),
    (SelectorRefused, 400, "java.lang.IllegalArgumentException"),
    (DestinationRefused, 400, "java.lang.IllegalArgumentException"),
    (OrthiaError, 500, "java.lang.IllegalStateException"),
)


class Asked(NamedTuple):
    """One request."""

    members: Mapping[str, Any]
    """As it is by POST."""
    flags: Mapping[str, bool]

    @property
    def kind(self) -> str:
        """What is asked for: ``read`` and so on."""
        return str(self.members.get("type", "")).lower()

    def text(self, member: str) -> str:
        """Return a member that has to be there; raises WrongArgument."""
        value = self.members.get(member)
        if not isinstance(value, str) or not value:
            raise WrongArgument(member, f"{self.kind} needs {member}, a string")
        return value

    def path(self) -> list[str]:
        """Return the parts of the path into the answer; raises WrongArgument."""
        value = self.members.get("path") or ""
        if isinstance(value, list) and all(isinstance(one, str | int) for one in value):
            return [str(one) for one in value]
        if not isinstance(value, str):
            raise WrongArgument("path", "path is neither a string nor an array of strings")
        return split(value)


Passive = Callable[[Request], NodeSeen | Response]
"""Returns what a node that is not live shows to who asks, or the refusal."""


def routes(operators: Operators, passive: Passive) -> list[Route]:
    """Return the routes."""

    async def answer(request: Request) -> Response:
        seen = None if operators.are_served else passive(request)
        if isinstance(seen, Response):
            return seen
        is_bulk = False
        asked: list[Asked | OrthiaError]
        try:
            flags = _flags(query(request))
            if request.method == "POST":
                if seen is None:
                    await operators.admit(request)
                found = _read_json(await data(request))
                is_bulk = isinstance(found, list)
                asked = list(_of_bodies(found if isinstance(found, list) else [found], flags))
            else:
                asked = [Asked(_of_path(request.path_params.get("rest", "")), flags)]
        except WrongArgument as error:
            asked = [error]
        changes = any(isinstance(one, Asked) and one.kind == "exec" for one in asked)
        refuse_unproven_site(request, changes=changes)

        async def work(node: Management, who: Principal) -> list[_Value | OrthiaError]:
            objects = LiveObjects(node, who)
            values: list[_Value | OrthiaError] = []
            for one in asked:
                values.append(await _perform(objects, one))
                await asyncio.sleep(0)  # clients have their turn between two requests of a bulk
            return values

        if seen is None:
            values = await operators.perform(request, work)
        else:
            objects = PassiveObjects(seen)
            values = [await _perform(objects, one) for one in asked]
        text = await _shown(operators.pace, asked, values, is_bulk=is_bulk)
        return Response(text, headers={"cache-control": "no-store"}, media_type="application/json")

    return [
        Route(path, answer, methods=["GET", "POST"])
        for base in BASES
        for path in (base, base + "/{rest:path}")
    ]


# --- what is asked


def split(path: str) -> list[str]:
    """Return the parts of a path, in which ``!`` has the next letter mean itself."""
    found = (re.sub(r"!(.)", r"\1", one, flags=re.DOTALL) for one in _PART.findall(path))
    return [one for one in found if one]


def _of_path(path: str) -> dict[str, Any]:
    """Return a request by GET as it is by POST; raises WrongArgument."""
    kind, *rest = split(path) or ["version"]
    kind = kind.lower()
    members: dict[str, Any] = {"type": kind}
    if kind in ("read", "search", "exec", "write") and rest:
        members["mbean"] = rest.pop(0)
    if kind == "read" and rest:
        names = rest.pop(0).split(",")
        members["attribute"] = names if len(names) > 1 else names[0]
    if kind == "exec" and rest:
        members["operation"] = rest.pop(0)
        members["arguments"] = [_argument(one) for one in rest]
    elif rest:
        members["path"] = rest
    return members


def _argument(text: str) -> str | None:
    if text == "[null]":
        return None
    return "" if text == '""' else text


def _read_json(sent: bytes) -> Any:
    try:
        found = read_json(sent)
    except (ValueError, RecursionError) as error:
        raise WrongArgument("body", f"the body is not JSON: {error}") from None
    if isinstance(found, list) and not 0 < len(found) <= MOST_REQUESTS:
        raise WrongArgument("body", f"a bulk has 1 to {MOST_REQUESTS} requests, not {len(found)}")
    return found


def _of_bodies(bodies: Iterable[Any], flags: Mapping[str, bool]) -> Iterator[Asked | OrthiaError]:
    for one in bodies:
        try:
            if not isinstance(one, dict):
                raise WrongArgument("body", "a request is a JSON object")
            if "target" in one:
                raise NotServed("this node answers for itself alone: it is no proxy of a target")
            _refuse_if_long(one)
            config = one.get("config") or {}
            if not isinstance(config, dict):
                raise WrongArgument("config", "config is not an object")
            yield Asked(one, {**flags, **_flags(config, {})})
        except OrthiaError as error:
            yield error


def _refuse_if_long(members: Mapping[str, Any]) -> None:
    """Raise WrongArgument for what would take the broker's loop long to look at."""
    for name, value in members.items():
        parts = value if isinstance(value, list) else [value]
        most = MOST_PARTS
        if name == "arguments":
            is_sent = str(members.get("operation")).startswith("sendMessage")
            longest = MAX_BODY_BYTES if is_sent else LONGEST_ARGUMENT
        else:
            longest = LONGEST_TEXT
        if len(parts) > most:
            raise WrongArgument(
                name[:100], f"{name[:100]} has {len(parts)} parts, more than {most}"
            )
        for one in parts:
            size = len(one if isinstance(one, str) else json.dumps(one))
            if size > longest:
                raise WrongArgument(
                    name[:100], f"{name[:100]} has {size} characters, more than {longest}"
                )


def _flags(given: Mapping[str, Any], defaults: Mapping[str, bool] = _FLAGS) -> dict[str, bool]:
    """Return what parameters say; raises WrongArgument for those that would not act."""
    flags = dict(defaults)
    for name, value in given.items():
        if name in _FLAGS:
            try:
                flags[name] = converted(value, BOOLEAN)
            except ValueError as error:
                raise WrongArgument(name, f"{name}: {error}") from None
        elif name not in _SHAPES:
            expected = ", ".join(sorted({*_FLAGS, *_SHAPES}))
            raise WrongArgument(
                name, f"there is no parameter {quoted(name[:100])} here; expected {expected}"
            )
    return flags


# --- what is answered, on the broker's loop


async def _perform(objects: Objects, asked: Asked | OrthiaError) -> _Value | OrthiaError:
    """Return what makes the value, on any thread; or the error."""
    if isinstance(asked, OrthiaError):
        return asked
    try:
        handler = _HANDLERS.get(asked.kind)
        if handler is None:
            if asked.kind in ("write", "notification"):
                raise NotServed(f"{asked.kind} is not served here")
            expected = ", ".join(_HANDLERS)
            kind = quoted(asked.kind[:100])
            raise WrongArgument("type", f"there is no request {kind}; expected {expected}")
        return await handler(objects, asked)
    except OrthiaError as error:
        return error


async def _version(objects: Objects, asked: Asked) -> _Value:
    del asked
    value = {
        "agent": version(),
        "protocol": PROTOCOL,
        "config": {"agentId": objects.name, "agentType": "orthia"},
        "info": {"product": "orthia", "version": version()},
    }
    return lambda: value


async def _read(objects: Objects, asked: Asked) -> _Value:
    name, wanted, path = parse(asked.text("mbean")), _attributes(asked), asked.path()
    if name.is_pattern:
        found = await objects.matching(name, _sources(name, wanted))
        return lambda: _read_all(asked, found(), wanted)
    one = await objects.one(name, _sources(name, wanted))

    def value() -> Any:
        if wanted is not None and len(wanted) == 1 and not _is_array(asked):
            return _inside(_attribute(one, wanted[0]), path)
        return _inside(_values(asked, one, wanted), path)

    return value


def _is_array(asked: Asked) -> bool:
    return isinstance(asked.members.get("attribute"), list)


def _attributes(asked: Asked) -> list[str] | None:
    """Return the names of attributes that are asked for; None for all."""
    given = asked.members.get("attribute")
    names = given.split(",") if isinstance(given, str) else given
    if not names:
        return None
    if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
        raise WrongArgument("attribute", "attribute is neither a string nor an array of strings")
    return [one.strip() for one in names]


def _sources(name: ObjectName, wanted: list[str] | None) -> set[str]:
    """Return what has to be asked for to read attributes."""
    return {
        attribute.source
        for kind in mbeans.KINDS
        if kind.may_match(name)
        for called, attribute in kind.attributes.items()
        if wanted is None or called in wanted
    }


def _read_all(
    asked: Asked, found: Iterator[Found], wanted: list[str] | None
) -> dict[str, dict[str, Any]]:
    """Return those attributes that the objects of a pattern have."""
    shown: dict[str, dict[str, Any]] = {}
    number = 0
    for one in found:
        has = one.subject.kind.attributes
        names = [*has] if wanted is None else [each for each in wanted if each in has]
        number += len(names)
        if number > MOST_VALUES:
            raise WrongArgument("mbean", f"these are more than {MOST_VALUES} values: ask for fewer")
        if names:
            name = one.subject.name(canonical=asked.flags["canonicalNaming"])
            shown[name] = {each: has[each].get(one.sources[has[each].source]) for each in names}
    if not shown:
        raise NotFound("object", asked.text("mbean"), " with such attributes")
    return shown


def _values(asked: Asked, one: Found, wanted: list[str] | None) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for name in one.subject.kind.attributes if wanted is None else wanted:
        try:
            shown[name] = _attribute(one, name)
        except NoSuchAttribute as error:
            if not asked.flags["ignoreErrors"]:
                raise
            shown[name] = f"ERROR: {error}"
    return shown


def _attribute(one: Found, name: str) -> Any:
    found: Attribute | None = one.subject.kind.attributes.get(name)
    if found is None:
        expected = ", ".join(one.subject.kind.attributes)
        raise NoSuchAttribute(
            f"there is no attribute {quoted(name[:100])} here; expected one of {expected}"
        )
    return found.get(one.sources[found.source])


def _inside(value: Any, path: list[str]) -> Any:
    """Return what a path leads to; raises NotFound."""
    for part in path:
        if isinstance(value, dict) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            raise NotFound("path", "/".join(path), " into the value")
    return value


async def _search(objects: Objects, asked: Asked) -> _Value:
    name, canonical = parse(asked.text("mbean")), asked.flags["canonicalNaming"]
    if name.is_pattern:
        found = await objects.matching(name, ())
        return lambda: sorted(one.subject.name(canonical=canonical) for one in found())
    try:
        one = await objects.one(name, ())
    except NotFound:
        return list
    return lambda: [one.subject.name(canonical=canonical)]


async def _exec(objects: Objects, asked: Asked) -> _Value:
    name, called = parse(asked.text("mbean")), asked.text("operation")
    if name.is_pattern:
        raise WrongArgument("mbean", "an operation is of one object, not of a pattern")
    given = asked.members.get("arguments")
    if given is not None and not isinstance(given, list):
        raise WrongArgument("arguments", "arguments is not an array")
    one = await objects.one(name, ())
    operation = chosen(one.subject.kind.operations, called, len(given or ()))
    arguments = by_name(operation, given or ())
    value = await objects.perform(operation, one.subject, **arguments)
    return lambda: value


async def _list(objects: Objects, asked: Asked) -> _Value:
    path, canonical = asked.path(), asked.flags["canonicalNaming"]
    domain, properties = [*path, "*", "*"][:2]
    found = await objects.matching(parse(f"{domain}:{properties}"), ())

    def value() -> Any:
        described: dict[str, dict[str, Any]] = {}
        for number, one in enumerate(found()):
            if number == MOST_LISTED:
                raise WrongArgument(
                    "path",
                    f"there are more than {MOST_LISTED} objects: describe one, by"
                    " list/DOMAIN/PROPERTIES, and find names by search",
                )
            kind, key = one.subject.kind, one.subject.properties(canonical=canonical)
            described.setdefault(kind.domain, {})[key] = _described(kind)
        if len(path) < 2:
            return _inside(described, path)
        ofdomain = described.get(domain, {})
        if len(ofdomain) != 1:
            raise NotFound("object", f"{domain}:{properties}")
        return _inside(next(iter(ofdomain.values())), path[2:])

    return value


def _described(kind: Kind) -> dict[str, Any]:
    operations: dict[str, list[dict[str, Any]]] = {}
    for one in kind.operations:
        arguments = [
            {"name": name, "type": of, "desc": name} for name, of in one.parameters.items()
        ]
        shown = {"args": arguments, "ret": one.result, "desc": one.name}
        operations.setdefault(one.name, []).append(shown)
    return {
        "desc": kind.domain,
        "attr": {
            name: {"rw": False, "type": one.type, "desc": name}
            for name, one in kind.attributes.items()
        },
        "op": {name: some[0] if len(some) == 1 else some for name, some in operations.items()},
    }


_HANDLERS: Final[Mapping[str, Callable[[Objects, Asked], Awaitable[_Value]]]] = {
    "read": _read,
    "search": _search,
    "exec": _exec,
    "list": _list,
    "version": _version,
}


# --- how it is shown, each answer on a thread beside both loops


async def _shown(
    pace: Pace,
    asked: list[Asked | OrthiaError],
    values: list[_Value | OrthiaError],
    *,
    is_bulk: bool,
) -> bytes:
    shown: list[str] = []
    room = MOST_CHARACTERS
    ends = time.monotonic() + BULK_SECONDS
    for one, value in zip(asked, values, strict=True):
        if time.monotonic() > ends:
            value = _TOO_SLOW
        text = await pace.beside(partial(_text, one, value)) if room else ""
        if len(text) > room or not room:
            room = 0
            text = _text(one, _TOO_LONG)
        room -= min(room, len(text))
        shown.append(text)
    return (f"[{','.join(shown)}]" if is_bulk else shown[0]).encode()


def _text(asked: Asked | OrthiaError, value: _Value | OrthiaError) -> str:
    return json.dumps(_response(asked, value), separators=(",", ":"))


def _response(asked: Asked | OrthiaError, value: _Value | OrthiaError) -> dict[str, Any]:
    response: dict[str, Any] = {"timestamp": int(time.time())}
    if isinstance(asked, Asked) and asked.flags["includeRequest"]:
        response["request"] = {name: one for name, one in asked.members.items() if name != "config"}
    if not isinstance(value, OrthiaError):
        try:
            response |= {"value": value(), "status": HTTPStatus.OK.value}
        except OrthiaError as error:
            value = error
        else:
            return response
    for kind, status, java in _ERRORS:
        if isinstance(value, kind):
            said = {"status": status, "error_type": java, "error": f"{java} : {value}"}
            return response | said
    raise value
