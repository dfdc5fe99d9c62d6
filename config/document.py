"""An XML file read without trusting it: bounded, no DTD, no entities, no network.

expat reads the file first. It stops at a DOCTYPE before anything inside it can do harm, and says
what is wrong with XML that is not well-formed without quoting it: the text may be a password.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias, cast
from xml.parsers import expat

from lxml import etree

from orthia.config.errors import ConfigurationError
from orthia.config.problems import Location
from orthia.config.substitution import Properties

MAXIMUM_FILE_BYTES: Final = 4 * 1024 * 1024
"""Of one file. Artemis' own example is 20 KiB."""

Node: TypeAlias = etree._Element  # noqa: SLF001 - lxml has no public name for this type
"""An element of a document."""

_MAXIMUM_FILES: Final = 64
_MAXIMUM_DEPTH: Final = 64
_MAXIMUM_ATTRIBUTES: Final = 64
"""Of one element. To read each of them, lxml goes over all that stand before it."""
_XML_NAMESPACE: Final = "{http://www.w3.org/XML/1998/namespace}"
_INCLUDE: Final = "{http://www.w3.org/2001/XInclude}include"


class Document:
    """The elements of a file and of those it includes, each with its file and line."""

    def __init__(
        self,
        path: Path,
        properties: Properties,
        reads: Callable[[Path], None] = lambda _: None,
    ) -> None:
        """Read ``path``; raises ConfigurationError if it cannot be read or is not safe XML.

        ``reads`` gets the path of each file before it is opened.
        """
        self.path = path
        self._reads = reads
        self._properties = properties
        # The elements are kept as keys: lxml gives the same element the same object only while
        # somebody holds it.
        self._origins: dict[Node, Path] = {}
        reads(path)
        self.root = self._read(path, including=())

    def location(self, element: Node) -> Location:
        """Return the file and line of an element."""
        file = self.path
        for outer in (element, *element.iterancestors()):
            if outer in self._origins:
                file = self._origins[outer]
                break
        return Location(file, _line(element))

    def _read(self, path: Path, including: tuple[Path, ...]) -> Node:
        content = _content(path)
        _check_syntax(path, content)
        root = _parse(path, content)
        self._origins[root] = path
        if len(self._origins) > _MAXIMUM_FILES:
            raise ConfigurationError(f"{path}:1: more than {_MAXIMUM_FILES} files are included")
        etree.strip_attributes(root, f"{_XML_NAMESPACE}*")
        for include in list(root.iter(_INCLUDE)):
            self._include(include, path, (*including, path.resolve()))
        return root

    def _include(self, include: Node, path: Path, including: tuple[Path, ...]) -> None:
        try:
            target = self._target(include, path, including)
        except ConfigurationError as error:
            where = Location(path, _line(include))
            raise ConfigurationError(f"{where}: <xi:include>: {error}") from None
        included = self._read(target, including)
        parent = include.getparent()
        if parent is not None:
            parent.replace(include, included)

    def _target(self, include: Node, path: Path, including: tuple[Path, ...]) -> Path:
        href = self._properties.substitute(include.get("href", ""))
        if not href or set(include.attrib) - {"href", "parse"} or include.get("parse") == "text":
            raise ConfigurationError(
                'cannot be followed; expected <xi:include href="FILE"/> with a file to be put'
                " in its place"
            )
        if "://" in href:
            raise ConfigurationError("points to the network; expected the path of a file")
        target = path.parent / href
        self._reads(target)
        try:
            if target.resolve() in including:
                raise ConfigurationError(f"{target} includes itself")
            is_file = target.is_file()
        except (OSError, RuntimeError, ValueError):
            # Too long for a name, a circle of links, a NUL from a property.
            raise ConfigurationError("is not the path of a file") from None
        if not is_file:
            raise ConfigurationError(f"there is no file {target} to include")
        return target


def local_name(element: Node) -> str:
    """Return the name of an element without its namespace."""
    return etree.QName(element).localname


def _line(element: Node) -> int:
    # The stubs of lxml leave the type of sourceline out.
    return cast("int | None", element.sourceline) or 1


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MAXIMUM_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from None
    if len(content) > MAXIMUM_FILE_BYTES:
        raise ConfigurationError(
            f"{path}: is larger than {MAXIMUM_FILE_BYTES} bytes, so it is no broker.xml"
        )
    if not content.strip():
        raise ConfigurationError(f"{path}: is empty; a broker.xml has the element <configuration>")
    return content


class _Refused(Exception):  # noqa: N818 - it ends a parse, and never leaves this module
    """Raised inside expat to stop it."""


def _check_syntax(path: Path, content: bytes) -> None:
    parser = expat.ParserCreate(namespace_separator=" ")
    depth = 0

    def refuse_doctype(*_: object) -> None:
        raise _Refused(
            "has a <!DOCTYPE>, which is refused because it can read other files and fill the"
            " memory; expected none, and values from outside as ${NAME}"
        )

    def enter(_: str, attributes: dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        if depth > _MAXIMUM_DEPTH:
            raise _Refused(f"is nested deeper than {_MAXIMUM_DEPTH} elements")
        if len(attributes) > _MAXIMUM_ATTRIBUTES:
            raise _Refused(f"has an element with more than {_MAXIMUM_ATTRIBUTES} attributes")

    def leave(_: str) -> None:
        nonlocal depth
        depth -= 1

    parser.StartDoctypeDeclHandler = refuse_doctype
    parser.StartElementHandler = enter
    parser.EndElementHandler = leave
    try:
        parser.Parse(content, True)  # noqa: FBT003 - expat takes it by position only
    except _Refused as refusal:
        raise ConfigurationError(f"{path}:{parser.CurrentLineNumber}: {refusal}") from None
    except (expat.ExpatError, ValueError, LookupError) as error:
        code = error.code if isinstance(error, expat.ExpatError) else 0
        reason = expat.ErrorString(code) if code else "the encoding is not known"
        raise ConfigurationError(
            f"{path}:{parser.CurrentLineNumber}: is not well-formed XML: {reason}; expected every"
            " element closed, and & and < inside a text written as &amp; and &lt;"
        ) from None


def _parse(path: Path, content: bytes) -> Node:
    parser = etree.XMLParser(
        resolve_entities=False,
        no_network=True,
        load_dtd=False,
        huge_tree=False,
        remove_comments=True,
        remove_pis=True,
    )
    try:
        return etree.fromstring(content, parser)
    except etree.XMLSyntaxError as error:
        # Its message may quote the file.
        raise ConfigurationError(f"{path}:{error.lineno or 1}: is not well-formed XML") from None
