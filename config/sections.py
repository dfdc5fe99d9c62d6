"""Sections of a valid document: their values by kind, and where in the file each of them stands."""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from orthia.config.document import Document, Node, local_name
from orthia.config.ignored import NotApplied
from orthia.config.problems import Location, Problems
from orthia.config.values import ValueReader
from orthia.config.vocabulary import find, snake_case, value_kinds


class Sections:
    """Finds the sections of ``core``; notes problems and continues, so that all are found."""

    def __init__(self, document: Document, values: ValueReader, problems: Problems) -> None:
        self.document = document
        self.values = values
        self.problems = problems
        self.core = document.root[0]
        self.ignored: list[tuple[Location, str]] = []
        """What was read and changes nothing here."""
        self.not_applied: list[NotApplied] = []
        """What was read, would change what happens, and does not."""
        self.locations: dict[str, Location] = {}

    def locate(self, path: str) -> Location:
        """Return where an element, or else the nearest one around it, stands.

        ``path`` is as ``orthia.config.rules`` writes it.
        """
        while path and path not in self.locations:
            path = path.rpartition("/")[0]
        return self.locations.get(path, self.document.location(self.core))

    def has(self, path: str) -> bool:
        """Tell whether the element at ``path`` is in the file."""
        return path in self.locations

    def ignore(self, names: Iterable[str]) -> None:
        """Note simple elements of ``core`` as without meaning."""
        for name in names:
            element = name.replace("_", "-")
            self.ignored.append((self.locate(f"core/{element}"), element))

    def section(self, path: str) -> Node | None:
        """Return the element at ``path`` and note where it and those around it stand."""
        node: Node | None = self.core
        walked = "core"
        for name in path.split("/")[1:]:
            node = None if node is None else child_of(node, name)
            walked = f"{walked}/{name}"
            if node is not None:
                self.locations[walked] = self.at(node)
        return node

    def all(self, section: str, name: str) -> Iterator[Node]:
        """Yield the children of that name of a section."""
        node = self.section(section)
        for child in () if node is None else node:
            if local_name(child) == name:
                yield child

    def values_of(self, node: Node, path: str, located_as: str | None = None) -> dict[str, Any]:
        """Return the simple elements inside ``node``, by name with underscores."""
        found: dict[str, Any] = {}
        for child in node:
            name = local_name(child)
            kind = value_kinds().get(f"{path}/{name}")
            if kind is not None:
                self.locations[f"{located_as or path}/{name}"] = self.at(child)
                with self.noting(child):
                    found[name.replace("-", "_")] = self.values.read(kind, text_of(child))
        return found

    def attributes_of(self, node: Node, path: str) -> dict[str, Any]:
        """Return the attributes of ``node``, by name with underscores; note where they stand."""
        given: dict[str, Any] = {}
        for attribute in find(path).attributes.values():
            text = node.get(attribute.name)
            if text is not None:
                self.locations[f"{path}/@{attribute.name}"] = self.at(node)
                with self.noting(node):
                    value = self.values.read(attribute.kind.name, text.strip())
                    given[snake_case(attribute.name)] = value
        return given

    def at(self, node: Node) -> Location:
        """Return where an element stands."""
        return self.document.location(node)

    def note(self, node: Node, text: str) -> None:
        """Note a problem of an element."""
        self.problems.add(self.at(node), local_name(node), text)

    def noting(self, node: Node) -> AbstractContextManager[None]:
        """Note what is raised inside as a problem of an element."""
        return self.problems.noting(self.at(node), local_name(node))


def child_of(node: Node, name: str) -> Node | None:
    """Return the first child of that name; None without one."""
    return next((child for child in node if local_name(child) == name), None)


def text_of(node: Node) -> str:
    """Return the text of an element, without white space around it."""
    return (node.text or "").strip()
