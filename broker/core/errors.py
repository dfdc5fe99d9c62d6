"""What the core refuses, and why; the text goes to the client that asked."""

from enum import Enum

from orthia.config.errors import OrthiaError


class Refusal(Enum):
    """Why a client is refused; the label ``reason`` of the metric."""

    CONNECTIONS = "connections"
    """There are too many already."""
    ADDRESS = "address-connections"
    """There are too many from its address already."""
    USER = "user-connections"
    """There are too many of its user already."""
    NO_CONNECT = "no-connect"
    """It did not connect in time, as its protocol says."""
    TLS = "tls"
    """Its TLS handshake failed, or it spoke plain text to an acceptor with TLS."""
    PROTOCOL = "protocol"
    """It broke the protocol."""
    ORIGIN = "origin"
    """It is a page in a browser, from a site that is not allowed."""
    AUTHENTICATION = "authentication"
    CERTIFICATE = "certificate"
    """Its certificate is trusted and belongs to no user."""
    AUTHORIZATION = "authorization"
    IN_USE = "in-use"
    """It asked to delete a queue that has messages or consumers."""
    DESTINATION = "destination"
    ACKNOWLEDGEMENT = "acknowledgement"
    LIMIT = "limit"
    """It asked the broker to hold more than it may."""
    QUOTA = "quota"
    """An address, or the whole store, has as much as it may have."""
    NO_ROOM = "no-room"
    """The disk or the database under the store is full, or nearly."""
    STORE = "store"
    """The database refused what it sent, and stores what others send."""
    SILENCE = "silence"
    """It was silent for longer than it had promised, or than connectionTtl."""
    FAILURE = "failure"
    """The broker failed: a fault of its own, which the log describes."""
    SLOW = "slow"
    """It reads or acknowledges too slowly for what it subscribed to, or for all memory."""


class BrokerError(OrthiaError):
    """What a client asked for is refused; the text goes to it."""


class AuthenticationFailed(BrokerError):  # noqa: N818 - named for what is the case
    """Login or passcode is wrong; which of them is not said."""


class LoginNotChecked(BrokerError):  # noqa: N818 - named for what is the case
    """This node failed to find out whose a login is; its log says how."""


class CertificateUnknown(AuthenticationFailed):
    """A client's certificate is trusted, and no user's."""


class NotAuthorized(BrokerError):  # noqa: N818 - named for what is the case
    """The user has no role with the permission needed."""


class DestinationRefused(BrokerError):  # noqa: N818 - named for what is the case
    """The destination's name is not valid, or it is of the other kind, or may not be created."""


class AcknowledgementRefused(BrokerError):  # noqa: N818 - named for what is the case
    """A message to be acknowledged is not this client's any more."""


class LimitExceeded(BrokerError):  # noqa: N818 - named for what is the case
    """A client asked the broker to hold more than it may."""


class ConnectionLimitExceeded(LimitExceeded):
    """The user that logged in has as many connections as it may."""


class NotLive(BrokerError):  # noqa: N818 - named for what is the case
    """This node is stopping, or no longer live."""


class QuotaExceeded(BrokerError):  # noqa: N818 - named for what is the case
    """An address, or the whole store, has as much as it may have."""


class NoRoomInStore(BrokerError):  # noqa: N818 - named for what is the case
    """The disk or the database under the store is full, or nearly."""


class QueueInUse(BrokerError):  # noqa: N818 - named for what is the case
    """A queue that is to be deleted has messages or consumers, and is not to lose them."""
