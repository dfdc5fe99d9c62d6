"""The rooms of ARCHITECTURE.md, and which of them may know which."""

import ast
import re
import subprocess
import sys
from collections.abc import Container, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

_ROOT = Path(__file__).parents[1]
_BELOW = {"config", "database", "nodemanager", "journal"}
_ENCODINGS = {"broker.protocols.encodings", "broker.protocols.stomp.encoding"}
"""What reads the heads of messages, and knows messages and frames: as far as the pipeline goes."""
_WIRE = {
    *("broker.protocols.amqp.values", "broker.protocols.amqp.types"),
    *("broker.protocols.amqp.composites", "broker.protocols.amqp.sections"),
}
"""The bytes of AMQP, which know nothing of a broker."""
_CORE = {
    *("config", "journal", "broker.quoting", "broker.core.api", "broker.core.destinations"),
    *("broker.core.errors", "broker.core.failures", "broker.core.identity"),
    *("broker.core.slices", "broker.core.timers"),
}
"""What all rooms of the core know."""
_QUEUE = {*_CORE, "broker.core.limits", "broker.core.selectors"}
_TOPICS = {*_QUEUE, "broker.core.queue"}
_ROUTING = {*_TOPICS, "broker.core.topics", "broker.security"}
_SENDING = {*_ROUTING, "broker.core.routing"}
_UPKEEP = {*_SENDING, "broker.core.sending"}
_KNOWS = {
    "config": set[str](),
    "database": {"config"},
    "migrations": {"config", "database"},
    "nodemanager": {"config", "database"},
    "nodemanager.errors": {"config", "database"},
    "nodemanager.tables": {"config", "database"},
    "nodemanager.threads": set(),
    "nodemanager.locks": {
        *("config", "database"),
        *("nodemanager.errors", "nodemanager.tables", "nodemanager.threads"),
    },
    "journal": {"config", "database"},
    "pipeline": {
        *("config", "database", "migrations", "nodemanager", "journal"),
        *_ENCODINGS,
    },
    # The sink sends as the broker's own client does.
    "pipeline.sink": {"config", "pipeline", "broker.client", "broker.protocols"},
    # Its acknowledgements are the live node's, asked for as the commands ask.
    "pipeline.subscription": {"config", "pipeline", "broker.client"},
    "broker": set(),
    "broker.quoting": set(),
    # What the rooms of the broker tell each other in.
    "broker.core.slices": set(),
    "broker.core.errors": {"config"},
    "broker.core.identity": {"journal"},
    "broker.core.api": {
        "config",
        "journal",
        "broker.core.slices",
        "broker.core.identity",
        "broker.core.errors",
    },
    "broker.core.destinations": {"config", "broker.core.errors", "broker.quoting"},
    "broker.core.failures": set(),
    "broker.core.timers": set(),
    # The rooms of the core: each knows those above it.
    "broker.core.limits": {*_CORE, "broker.core.selectors"},
    "broker.core.selectors": {
        *("config", "journal", "broker.quoting", "broker.core.errors", "broker.core.slices")
    },
    "broker.core.queue": _QUEUE,
    "broker.core.topics": _TOPICS,
    "broker.core.routing": _ROUTING,
    "broker.core.sending": _SENDING,
    "broker.core.upkeep": _UPKEEP,
    # It makes queues of every kind, for whoever has any.
    "broker.core.queue.factory": _UPKEEP,
    "broker.security": {
        *("config", "broker.quoting"),
        *("broker.core.errors", "broker.core.identity", "broker.core.destinations"),
    },
    "broker.core": {"config", "database", "journal", "broker.quoting", "broker.security"},
    "broker.tls": {"config", "broker.tls.expiry"},
    "broker.tls.expiry": set(),
    "broker.protocols.encodings": {
        *("journal", "broker.protocols.stomp.encoding", "broker.protocols.amqp.encoding"),
    },
    "broker.protocols.stomp.encoding": {"config", "journal", "broker.protocols.stomp.frames"},
    "broker.protocols.stomp.frames": {"config", "broker.quoting"},
    "broker.protocols.amqp.encoding": {"config", "journal", *_WIRE},
    **{room: {"config", *_WIRE} for room in _WIRE},
    "broker.protocols.amqp.performatives": {"config", *_WIRE},
    "broker.protocols.amqp.frames": {"config", *_WIRE},
    "broker.protocols.abc": {"broker.core"},
    "broker.protocols.foreign": set(),
    "broker.protocols.registry": {"config", "broker.protocols"},
    "broker.protocols": {
        *("config", "journal"),
        *("broker.quoting", "broker.core"),
    },
    "broker.connections": {
        *("config", "nodemanager", "journal"),
        *("broker.quoting", "broker.core", "broker.security", "broker.tls"),
        # A protocol by its interface, and none by its name.
        *("broker.protocols.abc", "broker.protocols.registry", "broker.protocols.foreign"),
    },
    "broker.management": {
        *(*_BELOW, "broker.quoting", "broker.core", "broker.security", "broker.tls.expiry")
    },
    "broker.client": {
        *("config", "broker.quoting", "broker.core.destinations", "broker.protocols", "broker.tls")
    },
    "broker.node": {
        *(*_BELOW, "migrations", "broker.quoting", "broker.core", "broker.security"),
        *("broker.protocols", "broker.connections", "broker.management", "broker.client"),
        "broker.tls",
    },
    "broker.cli": {
        *(*_BELOW, "migrations"),
        *("broker.core", "broker.client", "broker.node", "broker.tls"),
    },
    # What a failover log means is told without Spark, too, by the same rules.
    "broker.cli.failover_summary": {*_BELOW, "pipeline", "broker.cli", "broker.node"},
    "broker.cli.pipeline": {
        *(*_BELOW, "pipeline", "broker.core.destinations"),
        *("broker.cli", "broker.node", "broker.client"),
    },
}
_TOPS = [room for room in _KNOWS if "." not in room]
_NEVER = {"asyncio", "selectors", "socket", "ssl", "sqlalchemy"}
"""What decides without a world: neither sockets nor a loop nor SQL."""


def _within(name: str, room: str) -> bool:
    return name == room or name.startswith(f"{room}.")


def _room(name: str) -> str:
    """Return the room a module is in, or something of a module."""
    return max((room for room in _KNOWS if _within(name, room)), key=len)


def _name(path: Path) -> str:
    place = path.relative_to(_ROOT).with_suffix("").as_posix().replace("/", ".")
    return place.removesuffix(".__init__")


@cache
def _imported(path: Path) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            found.extend((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            found.extend((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
    return found


@pytest.mark.parametrize("top", _TOPS)
def test_imports_point_one_way(top: str) -> None:
    """No room imports what ARCHITECTURE.md says it does not know."""
    strange = []
    for path in (_ROOT / top).rglob("*.py"):
        room = _room(_name(path))
        for line, name in _imported(path):
            package, _, inner = name.partition(".")
            if package == "orthia" and not any(
                _within(_room(inner), known) for known in {room, *_KNOWS[room]}
            ):
                strange.append(f"{path.relative_to(_ROOT)}:{line}: {room} imports {name}")
    assert not strange, "\n".join(strange)


@pytest.mark.parametrize(
    ("room", "others"),
    [("engine", {"sql", "file"}), ("sql", {"file"}), ("file", {"sql"}), (".", {"sql", "file"})],
)
def test_the_journal_is_the_same_whatever_it_is_kept_in(room: str, others: set[str]) -> None:
    """The engine knows no store, and the stores do not know each other."""
    modules = (_ROOT / "journal" / room).glob("*.py")
    strange = [
        f"{path.relative_to(_ROOT)}:{line}: {name}"
        for path in modules
        for line, name in _imported(path)
        if any(_within(name, f"orthia.journal.{other}") for other in others)
    ]
    assert not strange, "\n".join(strange)


def test_no_module_is_in_a_circle() -> None:
    """Also where only a type is imported, or not before a function is called."""
    modules = {_name(path): path for top in _TOPS for path in (_ROOT / top).rglob("*.py")}
    known = {
        name: {found for _, other in _imported(path) if (found := _module_of(other, modules))}
        for name, path in modules.items()
    }
    try:
        TopologicalSorter(known).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


def _module_of(imported: str, modules: Container[str]) -> str:
    """Return the module that is imported, or has what is imported; none for one of others."""
    name = imported.removeprefix("orthia.")
    if name == imported:
        return ""
    return name if name in modules else name.rpartition(".")[0]


_PROTOCOL = ("typing", "Protocol")
_ABC = ("abc", "ABC")
_BESIDE_VALUES = {
    *("broker.core.api", "broker.core.identity", "broker.core.queue.subscriptions"),
    "journal.model.encodings",
}
"""What the core and others tell each other in, and a class that is compiled with what uses it."""


class _Class(NamedTuple):
    module: str
    name: str
    bases: set[tuple[str, str]]
    """The module and the name of each."""
    is_interface: bool
    """Whether there is nothing in it but what others are to do."""

    @property
    def package(self) -> str:
        return self.module.rpartition(".")[0]


def _is_abstract(method: ast.FunctionDef) -> bool:
    return any(ast.unparse(one) == "abstractmethod" for one in method.decorator_list)


def _classes(path: Path) -> Iterator[_Class]:
    tree = ast.parse(path.read_text(), str(path))
    module = _name(path)
    places = {
        name: place.removeprefix("orthia.")
        for place, _, name in (imported.rpartition(".") for _, imported in _imported(path))
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            names = [ast.unparse(base).partition("[")[0] for base in node.bases]
            bases = {(places.get(name, module), name) for name in names}
            methods = [one for one in node.body if isinstance(one, ast.FunctionDef)]
            only_asks = _ABC in bases and all(map(_is_abstract, methods))
            yield _Class(module, node.name, bases, _PROTOCOL in bases or only_asks)


# Not once this is imported, which every process of the tests does.
@cache
def _all_classes() -> list[_Class]:
    return [one for top in _TOPS for path in (_ROOT / top).rglob("*.py") for one in _classes(path)]


@cache
def _interfaces() -> dict[tuple[str, str], _Class]:
    return {(one.module, one.name): one for one in _all_classes() if one.is_interface}


def test_nobody_derives_from_a_protocol() -> None:
    """What has implementations by name is an abstract class: CONTRIBUTING.md."""
    wrong = [
        f"{one.module}.{one.name} derives from {base}"
        for one in _all_classes()
        for base in one.bases & _interfaces().keys()
        if _PROTOCOL in _interfaces()[base].bases and _PROTOCOL not in one.bases
    ]
    assert not wrong, "\n".join(wrong)


def test_a_protocol_that_only_its_module_names_is_private() -> None:
    """Where it is not, somebody would look for its implementations."""
    imported = {
        name.removeprefix("orthia.")
        for top in (*_TOPS, "tests")
        for path in (_ROOT / top).rglob("*.py")
        for _, name in _imported(path)
    }
    wrong = [
        f"{module}.{name}"
        for (module, name), one in _interfaces().items()
        if _PROTOCOL in one.bases and name[0] != "_" and f"{module}.{name}" not in imported
    ]
    assert not wrong, "\n".join(wrong)


def test_what_other_packages_implement_is_in_abc() -> None:
    """Whoever writes one more implementation knows where to look."""
    wrong = [
        f"{one.module}.{one.name} implements {'.'.join(base)}"
        for one in _all_classes()
        for base in one.bases & _interfaces().keys()
        if _interfaces()[base].package != one.package
        and base[0].rpartition(".")[2] != "abc"
        and base[0] not in _BESIDE_VALUES
    ]
    assert not wrong, "\n".join(wrong)


def test_no_class_has_the_name_of_an_interface_beside_it() -> None:
    """Else nobody knows which of the two is meant."""
    wrong = [
        f"{one.module}.{one.name} and {other.module}.{other.name}"
        for one in _interfaces().values()
        for other in _all_classes()
        if (one.package, one.name) == (other.package, other.name) and one.module != other.module
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("room", ["broker/core", "broker/security", "broker/protocols"])
def test_what_decides_touches_no_world(room: str) -> None:
    """Bytes and calls come in and go out; whose socket it is, others know."""
    strange = [
        f"{path.relative_to(_ROOT)}:{line}: {name}"
        for path in (_ROOT / room).rglob("*.py")
        for line, name in _imported(path)
        if name.partition(".")[0] in _NEVER
    ]
    assert not strange, "\n".join(strange)


_OF_A_PROTOCOL = re.compile(
    r"stomp(?!_limits|limits)|\bframes?\b|\bsockets?\b|\bheart-?beats?\b", re.IGNORECASE
)
_COMMANDS = re.compile(
    r"\b(ABORT|ACK|CONNECT|DISCONNECT|COMMIT|ERROR|NACK|RECEIPT|SEND|SUBSCRIBE|UNSUBSCRIBE)s?\b"
)


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("broker/core", (_OF_A_PROTOCOL, _COMMANDS)),
        ("broker/security", (_OF_A_PROTOCOL, _COMMANDS)),
        ("broker/connections", (re.compile(r"stomp(?!_limits|limits)", re.IGNORECASE),)),
        ("journal", (_OF_A_PROTOCOL,)),  # which has a COMMIT of its own
    ],
)
def test_what_every_protocol_uses_speaks_of_none(
    where: str, words: tuple[re.Pattern[str], ...]
) -> None:
    """Not in a comment either; ``stomp-limits`` is an element of ``broker.xml``."""
    strange = [
        f"{path.relative_to(_ROOT)}:{number}: {line.strip()}"
        for path in (_ROOT / where).rglob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if any(word.search(line) for word in words)
    ]
    assert not strange, "\n".join(strange)


@pytest.mark.parametrize("top", [*_TOPS, "benchmarks", "tests", "docs", "examples", "tools"])
def test_rooms_are_imported_from_orthia(top: str) -> None:
    """Installed there is nothing else; in a checkout ``import broker`` would be a second copy."""
    bare = [
        f"{path.relative_to(_ROOT)}:{line}: {name}"
        for path in (_ROOT / top).rglob("*.py")
        for line, name in _imported(path)
        if name.partition(".")[0] in _TOPS
    ]
    assert not bare, "\n".join(bare)


_LOAD_ALL = """
import importlib, pkgutil, sys, orthia
for module in pkgutil.walk_packages(orthia.__path__, "orthia."):
    if not module.name.endswith((".__main__", "migrations.env")):  # which do, once loaded
        importlib.import_module(module.name)
print(*sys.modules)
"""


def test_a_checkout_loads_nothing_twice() -> None:
    """With the folders themselves in the way, too: in its directory, all modules being loaded."""
    done = subprocess.run(
        [sys.executable, "-c", _LOAD_ALL], cwd=_ROOT, check=True, capture_output=True, text=True
    )
    loaded = done.stdout.split()
    assert {f"orthia.{top}" for top in _TOPS} <= {*loaded}
    assert not {name for name in loaded if name.partition(".")[0] in _TOPS}


def test_orthia_has_every_room() -> None:
    """Each is a link to its folder, and there is nothing else but what makes it a package."""
    rooms = {path.name: path for path in (_ROOT / "orthia").iterdir() if path.is_dir()}
    rooms.pop("__pycache__", None)
    assert {*rooms} == {*_TOPS}
    for name, path in rooms.items():
        assert str(path.readlink()) == f"../{name}"
