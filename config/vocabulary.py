"""The elements of ``broker.xml``: read from the XSD, which is where each is described.

The XSD says what is valid; this says the rest: what an element means, in which unit it is, which
of Artemis' elements have no meaning here, and which name an unknown one was probably meant to be.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Final

from lxml import etree

_XSD: Final = "{http://www.w3.org/2001/XMLSchema}"
_FILES: Final = ("types.xsd", "orthia.xsd", "jms.xsd", "core.xsd", "configuration.xsd")
_ROOT: Final = "{urn:activemq}configuration"
_HUMP: Final = re.compile("(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_REFUSED: Final = "refused"
_KINDS: Final = {"element": "element", "attributeGroup": "attributeGroup"}
_IGNORED: Final = "ignored"


@dataclass(frozen=True)
class ValueKind:
    """What the text of an element or attribute must be."""

    name: str
    expected: str
    """Completes the sentence "expected ..."."""
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Attribute:
    """An attribute of an element."""

    name: str
    kind: ValueKind
    meaning: str
    required: bool

    @property
    def is_refused(self) -> bool:
        """Whether it is known from Classic and must not be given; ``kind`` says why."""
        return self.kind.name == _REFUSED


@dataclass(frozen=True)
class Element:
    """An element, where it stands in the tree."""

    tag: str
    """Namespace and name, as lxml writes them."""
    meaning: str
    example: str | None
    required: bool
    is_ignored: bool
    """Whether Artemis knows it and it has no meaning here, nor has anything inside it."""
    kind: ValueKind | None = None
    """What its text must be; None if it holds elements."""
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    children: Mapping[str, "Element"] = field(default_factory=dict)
    """By tag."""

    @property
    def name(self) -> str:
        """The name without its namespace."""
        return etree.QName(self.tag).localname

    @property
    def namespace(self) -> str:
        """The namespace."""
        return etree.QName(self.tag).namespace or ""

    def child(self, name: str) -> "Element":
        """Return the child of this name, whatever its namespace; raises KeyError."""
        for element in self.children.values():
            if element.name == name:
                return element
        raise KeyError(name)

    def walk(self, path: str = "") -> Iterator[tuple[str, "Element"]]:
        """Yield this element and those inside, each with its path (``core/store`` ...)."""
        for element in self.children.values():
            below = f"{path}/{element.name}".lstrip("/")
            yield below, element
            yield from element.walk(below)


def find(path: str) -> Element:
    """Return the element at ``path``, as ``core/store``; raises KeyError."""
    element = configuration()
    for name in path.split("/"):
        element = element.child(name)
    return element


def snake_case(name: str) -> str:
    """Return the field that an attribute in camel case, or an element, is read into."""
    return _HUMP.sub("_", name).replace("-", "_").lower()


def nearest(name: str, known: list[str]) -> str | None:
    """Return the known name that ``name`` was probably meant to be."""
    close = get_close_matches(name, known, n=1)
    return close[0] if close else None


def schema_path() -> Path:
    """Return the path of the XSD of ``broker.xml``."""
    return Path(str(resources.files("orthia.config"))) / "configuration.xsd"


@cache
def configuration() -> Element:
    """Return the root element; everything else hangs below it."""
    return _SchemaReader().root()


@cache
def value_kinds() -> Mapping[str, str]:
    """Return the kind of value of every element that holds one, by its path."""
    walked = configuration().walk()
    return {path: element.kind.name for path, element in walked if element.kind is not None}


@cache
def schema() -> etree.XMLSchema:
    """Return the XSD, ready to validate."""
    return etree.XMLSchema(etree.parse(schema_path()))


class _SchemaReader:
    """Reads those parts of XSD our own files use."""

    def __init__(self) -> None:
        self._named: dict[tuple[str, str], etree._Element] = {}
        for file in _FILES:
            schema_root = etree.parse(schema_path().with_name(file)).getroot()
            namespace = schema_root.get("targetNamespace")
            for node in schema_root.iterchildren(
                f"{_XSD}element", f"{_XSD}complexType", f"{_XSD}simpleType", f"{_XSD}attributeGroup"
            ):
                kind = _KINDS.get(etree.QName(node).localname, "type")
                self._named[kind, f"{{{namespace}}}{node.get('name')}"] = node

    def root(self) -> Element:
        return self._element(self._named["element", _ROOT])

    def _element(self, node: etree._Element) -> Element:
        required = node.get("minOccurs", "1") != "0"
        if "ref" in node.attrib:
            node = self._named["element", _qualified(node, node.get("ref", ""))]
        tag = f"{{{_target(node)}}}{node.get('name')}"
        type_node = self._type_of(node)
        meaning = _documentation(node) or _documentation(type_node)
        example = _example(node) or _example(type_node)
        ignored = type_node is not None and type_node.get("name") == _IGNORED
        if type_node is None or ignored:
            return Element(tag, meaning, example, required, ignored)
        if type_node.tag == f"{_XSD}simpleType":
            kind = self._kind(type_node)
            return Element(
                tag, _documentation(node), example, required, is_ignored=False, kind=kind
            )
        extension = type_node.find(f"{_XSD}simpleContent/{_XSD}extension")
        text_kind = None
        if extension is not None:
            text_kind = self._kind(
                self._named["type", _qualified(extension, extension.get("base", ""))]
            )
        holder = type_node if extension is None else extension
        attributes = [self._attribute(found) for found in self._attributes_in(holder)]
        children = [
            self._element(child)
            for group in type_node.iterchildren(f"{_XSD}all", f"{_XSD}sequence", f"{_XSD}choice")
            for child in group.iterchildren(f"{_XSD}element")
        ]
        return Element(
            tag,
            meaning,
            example,
            required,
            is_ignored=False,
            kind=text_kind,
            attributes={attribute.name: attribute for attribute in attributes},
            children={child.tag: child for child in children},
        )

    def _type_of(self, node: etree._Element) -> etree._Element | None:
        if "type" in node.attrib:
            return self._named["type", _qualified(node, node.get("type", ""))]
        return node.find(f"{_XSD}complexType")

    def _attributes_in(self, node: etree._Element) -> Iterator[etree._Element]:
        for child in node.iterchildren(f"{_XSD}attribute", f"{_XSD}attributeGroup"):
            if child.tag == f"{_XSD}attribute":
                yield child
            else:
                group = self._named["attributeGroup", _qualified(child, child.get("ref", ""))]
                yield from self._attributes_in(group)

    def _attribute(self, node: etree._Element) -> Attribute:
        type_name = _qualified(node, node.get("type", ""))
        type_node = self._named.get(("type", type_name))
        kind = ValueKind("text", "a text") if type_node is None else self._kind(type_node)
        return Attribute(
            node.get("name", ""), kind, _documentation(node), node.get("use") == "required"
        )

    def _kind(self, node: etree._Element) -> ValueKind:
        choices = tuple(one.get("value", "") for one in node.iter(f"{_XSD}enumeration"))
        return ValueKind(node.get("name", ""), _documentation(node), choices)


def _target(node: etree._Element) -> str:
    return str(node.getroottree().getroot().attrib["targetNamespace"])


def _qualified(node: etree._Element, name: str) -> str:
    prefix, _, local = name.rpartition(":")
    return f"{{{node.nsmap[prefix or None]}}}{local}"


def _documentation(node: etree._Element | None) -> str:
    text = None if node is None else node.findtext(f"{_XSD}annotation/{_XSD}documentation")
    return " ".join((text or "").split())


def _example(node: etree._Element | None) -> str | None:
    return None if node is None else node.findtext(f"{_XSD}annotation/{_XSD}appinfo/example")
