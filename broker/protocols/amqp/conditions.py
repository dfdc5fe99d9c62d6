"""AMQP's error conditions: what a client is told, and whether its link, session or connection ends.

A fault is raised where it is found, and caught where its connection, session or link can be ended.
What the core refuses ends the link that asked for it.
"""

from typing import Final

from orthia.broker.core.errors import (
    AuthenticationFailed,
    BrokerError,
    ConnectionLimitExceeded,
    DestinationRefused,
    LimitExceeded,
    NoRoomInStore,
    NotAuthorized,
    QueueInUse,
    QuotaExceeded,
)
from orthia.broker.core.routing.durable import NoSuchSubscription
from orthia.broker.core.selectors import SelectorRefused
from orthia.broker.core.sole_clients import ClientIdInUse
from orthia.broker.protocols.amqp.performatives import Error
from orthia.broker.protocols.amqp.values import AmqpDecodeError, AmqpError, Symbol
from orthia.config.errors import OrthiaError
from orthia.journal.errors import RecordTooLarge, StoreFull

DECODE_ERROR: Final = Symbol("amqp:decode-error")
FRAMING_ERROR: Final = Symbol("amqp:connection:framing-error")
INTERNAL_ERROR: Final = Symbol("amqp:internal-error")
INVALID_FIELD: Final = Symbol("amqp:invalid-field")
ILLEGAL_STATE: Final = Symbol("amqp:illegal-state")
NOT_ALLOWED: Final = Symbol("amqp:not-allowed")
NOT_FOUND: Final = Symbol("amqp:not-found")
NOT_IMPLEMENTED: Final = Symbol("amqp:not-implemented")
PRECONDITION_FAILED: Final = Symbol("amqp:precondition-failed")
RESOURCE_DELETED: Final = Symbol("amqp:resource-deleted")
RESOURCE_LIMIT: Final = Symbol("amqp:resource-limit-exceeded")
RESOURCE_LOCKED: Final = Symbol("amqp:resource-locked")
UNAUTHORIZED: Final = Symbol("amqp:unauthorized-access")
CONNECTION_FORCED: Final = Symbol("amqp:connection:forced")
DETACH_FORCED: Final = Symbol("amqp:link:detach-forced")
MESSAGE_SIZE: Final = Symbol("amqp:link:message-size-exceeded")
TRANSFER_LIMIT: Final = Symbol("amqp:link:transfer-limit-exceeded")
WINDOW_VIOLATION: Final = Symbol("amqp:session:window-violation")
ERRANT_LINK: Final = Symbol("amqp:session:errant-link")
HANDLE_IN_USE: Final = Symbol("amqp:session:handle-in-use")
UNATTACHED_HANDLE: Final = Symbol("amqp:session:unattached-handle")
UNKNOWN_TRANSACTION: Final = Symbol("amqp:transaction:unknown-id")
ROLLED_BACK: Final = Symbol("amqp:transaction:rollback")
INVALID: Final = Symbol("invalid-field")
CONTAINER_ID: Final = Symbol("container-id")
"""What is invalid where two connections must not have the same."""
_LONGEST: Final = 1_000
"""Characters of a description: a client may have written a part of it."""


class Fault(AmqpError):  # noqa: N818 - named for what is the case
    """What a client did wrong, or cannot have: a condition and a description."""

    def __init__(self, condition: Symbol, description: str) -> None:
        super().__init__(description)
        self.condition = condition

    @property
    def error(self) -> Error:
        """It as a frame says it."""
        return Error(self.condition, str(self)[:_LONGEST])


class ConnectionFault(Fault):
    """Ends the connection."""


class SessionFault(Fault):
    """Ends the session."""


class LinkFault(Fault):
    """Ends the link."""


def without_frames(error: OrthiaError) -> OrthiaError:
    """Return an error that can be kept: not with all that was at hand where it was raised.

    A traceback holds what each of its functions had, as the bytes of a client, which nobody counts.
    """
    error.__traceback__ = error.__cause__ = error.__context__ = None
    return error


def unreadable(error: AmqpDecodeError) -> LinkFault:
    """Return what a client is told of a message that cannot be read."""
    return LinkFault(DECODE_ERROR, f"the message cannot be read: {error}")


_CONDITIONS: Final[tuple[tuple[type[OrthiaError], Symbol], ...]] = (
    (NotAuthorized, UNAUTHORIZED),
    (AuthenticationFailed, UNAUTHORIZED),
    (NoSuchSubscription, NOT_FOUND),
    (SelectorRefused, INVALID_FIELD),
    (DestinationRefused, NOT_FOUND),
    (QueueInUse, RESOURCE_LOCKED),
    (ConnectionLimitExceeded, RESOURCE_LIMIT),
    (LimitExceeded, RESOURCE_LIMIT),
    (QuotaExceeded, RESOURCE_LIMIT),
    (NoRoomInStore, RESOURCE_LIMIT),
    (StoreFull, RESOURCE_LIMIT),
    (RecordTooLarge, MESSAGE_SIZE),
    (BrokerError, PRECONDITION_FAILED),
)


def error_of(error: OrthiaError) -> Error:
    """Return what a client is told of an error."""
    if isinstance(error, Fault):
        return error.error
    if isinstance(error, ClientIdInUse):
        return Error(INVALID_FIELD, str(error)[:_LONGEST], {INVALID: CONTAINER_ID})
    condition = next((one for base, one in _CONDITIONS if isinstance(error, base)), INTERNAL_ERROR)
    return Error(condition, str(error)[:_LONGEST])
