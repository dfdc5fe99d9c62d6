"""What the core refuses, and why; the text goes to the client that asked."""

from orthia.config.errors import OrthiaError


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
