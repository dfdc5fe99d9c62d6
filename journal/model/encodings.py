# mypyc compiles this module.
"""In which encodings messages keep what a protocol wrote of them, and who reads those.

The journal knows the encodings by their tags alone. What reads one is of its protocol, which
registers it; so the journal, the broker's core and the pipeline learn what a message says without
knowing how it is said. Programs that ask import ``orthia.broker.protocols.encodings``, which has
all of them.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Final, NamedTuple

from orthia.journal.model.fields import Fields, Property

NO_HEAD: Final = 0
"""The tag of a message that has no head: its stated fields say all there is."""
FIRST_ENCODING: Final = 1
"""The tag of all heads in records of versions 1 and 2, which have none."""
SECOND_ENCODING: Final = 2
"""The tag of heads that records have since version 4."""
KNOWN: Final = frozenset({NO_HEAD, FIRST_ENCODING, SECOND_ENCODING})
"""Every tag a record may have; one more is one more version of records, too."""


class Content(NamedTuple):
    """A body as every protocol can have it."""

    kind: str
    """What it is: ``text``, ``bytes``, ``map``, ``stream`` (a list), ``object`` (a serialized one),
    ``value`` (a number, say), ``none``; empty if its sender did not say."""
    body: bytes
    """Texts in UTF-8; maps, streams and values in JSON."""


class UnknownEncoding(LookupError):  # noqa: N818 - named for what is the case
    """No reader is registered for heads of this encoding: a mistake of the program.

    No error of the message, for every tag that a record may have is known.
    """


class Encoding(ABC):
    """Reads the heads of one protocol."""

    @property
    @abstractmethod
    def tag(self) -> int:
        """By which records name the encoding; never another one's, and never changed."""

    @property
    @abstractmethod
    def is_typed(self) -> bool:
        """Whether properties have types: a text is then no number, whatever it looks like."""

    @abstractmethod
    def fields(self, head: bytes) -> Fields:
        """Return what a head says; raises ValueError if it cannot be read."""

    @abstractmethod
    def properties(self, head: bytes) -> Mapping[str, Property]:
        """Return what a head says by the names of JMS and Artemis, as selectors ask for it.

        Every property by its own name; beside them ``JMSType``, ``JMSCorrelationID``,
        ``JMSReplyTo``, ``JMSXGroupID``, ``JMSXGroupSeq``, ``JMSXUserID``, ``JMSMessageID``,
        ``JMSDeliveryMode`` if it is not PERSISTENT, and ``_AMQ_CONTENT_TYPE``: those it has.
        Raises ValueError if it cannot be read.
        """

    @abstractmethod
    def relocated(self, head: bytes, origin: Mapping[str, str]) -> bytes:
        """Return the head of a message that was moved, for good, to another address.

        It says where the message was, as properties, in place of any origin it said before, and
        that it expires no more. Raises nothing: a head that cannot be read is kept.
        """

    @abstractmethod
    def expiring(self, head: bytes, expires_ms: int) -> bytes:
        """Return the head of a message that expires at another time than its sender said.

        ``expires_ms`` is in milliseconds since 1970 UTC, 0 never. Raises nothing, as ``relocated``.
        """

    @abstractmethod
    def prioritized(self, head: bytes, priority: int) -> bytes:
        """Return the head of a message whose priority, 0 to 9, is not what its sender said.

        Raises nothing, as ``relocated``.
        """

    @abstractmethod
    def may_name_group(self, head: bytes) -> bool:
        """Return whether a head is worth a look for the message's group; asked of every message."""

    @abstractmethod
    def content(self, head: bytes, body: bytes) -> Content:
        """Return the body of a message; raises ValueError if it cannot be read."""

    @abstractmethod
    def stamped(self, head: bytes, ingress_ms: int) -> bytes:
        """Return the head of a message that says when the broker took it, and did not before.

        ``ingress_ms`` is in milliseconds since 1970 UTC. Raises nothing, as ``relocated``.
        """


_ENCODINGS: Final[dict[int, Encoding]] = {}


def register_encoding(encoding: Encoding) -> None:
    """Register what reads heads of an encoding; raise ValueError if another one is registered."""
    there = _ENCODINGS.setdefault(encoding.tag, encoding)
    if encoding.tag not in KNOWN or type(there) is not type(encoding):
        raise ValueError(f"encoding {encoding.tag} is {type(there).__name__}'s, or of no record")


def encoding_of(tag: int) -> Encoding:
    """Return what reads heads of an encoding; raises UnknownEncoding."""
    encoding = _ENCODINGS.get(tag)
    if encoding is None:
        raise UnknownEncoding(f"this program reads no heads of encoding {tag}")
    return encoding
