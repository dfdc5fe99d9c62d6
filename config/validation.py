"""Validation of a document, with errors for people.

First a walk finds the names nobody knows, and suggests what they were meant to be; it fills in
``${...}`` and sets aside the elements of Artemis that have no meaning here. The XSD then judges
the rest; its findings are said in our words, because its own quote every value, passwords too.
"""

import contextlib
import re
from collections.abc import Iterable
from typing import Final, Protocol, cast

from lxml import etree

from orthia.config.document import Document, Node, local_name
from orthia.config.errors import ConfigurationError
from orthia.config.ignored import NotApplied, what_happens_instead
from orthia.config.problems import Location, Problems
from orthia.config.substitution import Properties
from orthia.config.vocabulary import (
    Element,
    ValueKind,
    configuration,
    nearest,
    schema,
)

_XSI: Final = "{http://www.w3.org/2001/XMLSchema-instance}"
_LONGEST_QUOTE: Final = 80
_ATTRIBUTE: Final = re.compile(r"attribute '([^']+)'")
_SAME_AS: Final = {"master": "primary", "slave": "backup"}
_EXPECTED: Final = re.compile(r"\{[^}]*\}([\w-]+)")


class _Finding(Protocol):
    """An entry of the XSD validator's log."""

    path: str
    type_name: str
    message: str


class Validation:
    """What validating a document found."""

    def __init__(self, document: Document, properties: Properties) -> None:
        """Validate ``document``, filling in its ``${...}``.

        Raises ConfigurationError with every problem, unless all are of ``${...}``.
        """
        self.ignored: list[tuple[Location, str]] = []
        """Elements and attributes of Artemis that change nothing here, with where they are."""
        self.not_applied: list[NotApplied] = []
        """Those that would change what happens, and do not."""
        self.unfilled: dict[str, Location] = {}
        """Elements with a ``${...}`` that cannot be filled in, by path. The document has them no
        longer, for what they would hold is not known."""
        self.problems = Problems()
        """What is wrong with those; there may be more to find."""
        self._document = document
        self._properties = properties
        self._unfilled: list[tuple[Node, str]] = []
        self._known: dict[Node, Element] = {}
        root = document.root
        if root.tag != configuration().tag:
            raise ConfigurationError(
                f"{document.location(root)}: <{local_name(root)}>: is not the root of a broker.xml;"
                ' expected <configuration xmlns="urn:activemq">'
            )
        self._enter(root, configuration())
        self._judge()
        is_unusable = self.problems.are_any
        for node, problem in self._unfilled:
            self._set_aside(node, problem)
        if is_unusable:
            self.problems.raise_if_any()

    def _enter(self, node: Node, element: Element) -> None:
        self._known[node] = element
        self._fill_in(node)
        self._check_attributes(node, element)
        for child in list(node):
            known = element.children.get(str(child.tag))
            if known is None:
                self._note_unknown(child, element)
                node.remove(child)
            elif known.is_ignored:
                self._known[child] = known
                self._note_ignored(child, element, known)
            else:
                self._enter(child, known)

    def _fill_in(self, node: Node) -> None:
        try:
            if node.text is not None:
                node.text = self._properties.substitute(node.text)
            for name, value in node.attrib.items():
                node.set(name, self._properties.substitute(str(value)))
        except ConfigurationError as error:
            self._unfilled.append((node, str(error)))
            # What it would have held is not known, so nothing more is said about it.
            del self._known[node]

    def _set_aside(self, node: Node, problem: str) -> None:
        location = self._document.location(node)
        self.problems.add(location, local_name(node), problem)
        outer = [local_name(one) for one in node.iterancestors()][:-1]
        self.unfilled["/".join([*reversed(outer), local_name(node)])] = location
        parent = node.getparent()
        if parent is not None and len(outer) > 0:
            parent.remove(node)

    def _check_attributes(self, node: Node, element: Element) -> None:
        for name in [str(name) for name in node.attrib]:
            known = element.attributes.get(name)
            if name.startswith(_XSI):
                # Where a schema is, or a type in its stead: ours is the one that judges.
                del node.attrib[name]
            elif known is None:
                near = nearest(name, list(element.attributes))
                others = ", ".join(element.attributes) or "none"
                hint = f"did you mean {near!r}?" if near else f"expected {others}"
                self.problems.add(
                    self._document.location(node),
                    element.name,
                    f"unknown attribute {etree.QName(name).localname!r}; {hint}",
                )
                del node.attrib[name]
            elif known.is_refused:
                location = self._document.location(node)
                text = f"attribute {name!r} cannot be given; expected {known.kind.expected}"
                self.problems.add(location, element.name, text)
                del node.attrib[name]

    def _note_ignored(self, node: Node, parent: Element, known: Element) -> None:
        off = any(
            local_name(child) == "enabled" and (child.text or "").strip() == "false"
            for child in node
        )
        holds_more = (len(node) > 0 or bool(node.attrib)) and not off
        text = None if holds_more else (node.text or "")
        with contextlib.suppress(ConfigurationError):  # it is not read, so nothing is wrong
            text = None if text is None else self._properties.substitute(text)
        location = self._document.location(node)
        instead = what_happens_instead(
            f"{_SAME_AS.get(parent.name, parent.name)}/{known.name}", text
        )
        if instead is None:
            self.ignored.append((location, known.name))
        else:
            self.not_applied.append(NotApplied(location, known.name, instead))

    def _note_unknown(self, node: Node, parent: Element) -> None:
        location = self._document.location(node)
        if not parent.children:
            # The name is not quoted: it may be part of a password with a < in it.
            self.problems.add(location, parent.name, "holds an element; expected a text")
            return
        self.problems.add(location, local_name(node), _unknown(node, parent))

    def _judge(self) -> None:
        if schema().validate(self._document.root):
            return
        # The stubs of lxml do not know that a log can be iterated.
        for finding in cast("Iterable[_Finding]", schema().error_log):
            node = _at(self._document.root, finding.path)
            element = self._known.get(node)
            if element is not None:
                text = self._said(node, element, finding.type_name, finding.message)
                self.problems.add(self._document.location(node), element.name, text)

    def _said(self, node: Node, element: Element, finding: str, message: str) -> str:
        """Say a finding of the XSD in words that quote no password."""
        attribute = _ATTRIBUTE.search(message)
        if finding == "SCHEMAV_CVC_COMPLEX_TYPE_4" and attribute:
            return f"lacks the attribute {attribute[1]!r}"
        if finding == "SCHEMAV_CVC_COMPLEX_TYPE_2_3":
            return "has text between its elements; expected none"
        if finding == "SCHEMAV_CVC_COMPLEX_TYPE_2_1":
            return "holds a text or elements; expected attributes only"
        if finding == "SCHEMAV_ELEMENT_CONTENT":
            return self._misplaced(node, element, message)
        if attribute:
            known = element.attributes[attribute[1]]
            return f"attribute {known.name!r} {_wrong(known.kind, node.get(known.name, ''))}"
        if element.kind is not None:
            return _wrong(element.kind, node.text or "")
        return "is not as expected"

    def _misplaced(self, node: Node, element: Element, message: str) -> str:
        ignored = {child.name for child in element.children.values() if child.is_ignored}
        expected = _EXPECTED.findall(message.partition("Expected is")[2])
        expected = [name for name in expected if name not in ignored]
        if message.count("Missing child element"):
            one_of = "one of " if len(expected) > 1 else ""
            return f"lacks an element; expected {one_of}{_listed(expected)}"
        before = [one for one in node.itersiblings(preceding=True) if isinstance(one.tag, str)]
        for one in before:
            if one.tag == node.tag:
                line = self._document.location(one).line
                return f"is there twice, the first time on line {line}; expected it once"
        if before:
            return f"cannot stand beside <{local_name(before[0])}>; expected only one of the two"
        return f"does not belong here; expected {_listed(expected)}"


def _at(root: Node, path: str) -> Node:
    """Return the element that libxml2 calls ``path``, as ``/*/*[2]/o:users``.

    It is no XPath without the prefixes of the file, where one may stand for several namespaces.
    """
    node = root
    for step in path.split("/")[2:]:
        name, _, number = step.rstrip("]").partition("[")
        prefix, _, local = name.rpartition(":")
        same = [
            child
            for child in node
            if name == "*" or (local_name(child) == local and (child.prefix or "") == prefix)
        ]
        node = same[int(number or 1) - 1]
    return node


def _unknown(node: Node, parent: Element) -> str:
    """Say what an unknown element was probably meant to be."""
    name = local_name(node)
    siblings = {child.name: child for child in parent.children.values()}
    if name in siblings:
        namespace = siblings[name].namespace
        return f'is in another namespace; expected <{name} xmlns="{namespace}">'
    near = nearest(name, list(siblings))
    if near is not None:
        return f"unknown element; did you mean <{near}>?"
    for path, element in configuration().walk():
        if element.name == name:
            return f"does not belong in <{parent.name}>; expected it at {path}"
    anywhere = nearest(name, sorted({element.name for _, element in configuration().walk()}))
    hint = f"did you mean <{anywhere}>?" if anywhere else f"nothing like it is in <{parent.name}>"
    return f"unknown element; {hint}"


def _wrong(kind: ValueKind, value: str) -> str:
    text = value.strip()
    if not text:
        return f"is empty; expected {kind.expected}"
    near = nearest(text, list(kind.choices))
    hint = f"; did you mean {near!r}?" if near else ""
    if len(text) > _LONGEST_QUOTE:
        return f"cannot be used; expected {kind.expected}"
    return f"is {text!r}; expected {kind.expected}{hint}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"<{name}>" for name in names) or "nothing"
