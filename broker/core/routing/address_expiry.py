# mypyc compiles this module.
"""When messages expire, by what the settings of their address say; pure.

A sender says when by ``expires``; the address may say otherwise, by Artemis' settings:

| setting            | what it does                                                                |
|--------------------|-----------------------------------------------------------------------------|
| `no-expiry`        | nothing expires                                                             |
| `expiry-delay`     | a message without ``expires`` expires so long after it was sent             |
| `max-expiry-delay` | without `expiry-delay`: none expires later, nor never                       |
| `min-expiry-delay` | without `expiry-delay`: none expires earlier; without a `max-expiry-delay`, |
|                    | one without ``expires`` does then                                           |

They apply to messages that are sent to the address, that diverts bring there, and that are moved
there because they expired or are dead letters.
"""

from typing import Final

from orthia.config.address_settings import AddressSettings
from orthia.config.addresses import ResolvedAddressSettings
from orthia.journal.model.message import Message

LATEST_MS: Final = 10**18 - 1
"""The latest moment at which a message expires: the greatest that a sender may say."""


def changes_messages(settings: AddressSettings) -> bool:
    """Return whether settings change when messages expire, or stamp the time they came."""
    delays = (settings.expiry_delay, settings.min_expiry_delay, settings.max_expiry_delay)
    return bool(settings.no_expiry or settings.enable_ingress_timestamp) or any(
        one is not None and one >= 0 for one in delays
    )


def expires_at(settings: ResolvedAddressSettings, expires_ms: int, now_ms: int) -> int:
    """Return when a message expires that is sent now; 0 is never."""
    if settings.no_expiry:
        return 0
    if settings.expiry_delay >= 0:
        return expires_ms or min(now_ms + settings.expiry_delay, LATEST_MS)
    latest, earliest = settings.max_expiry_delay, settings.min_expiry_delay
    if latest >= 0 and (not expires_ms or expires_ms > now_ms + latest):
        return min(now_ms + latest, LATEST_MS)
    if earliest >= 0 and expires_ms < now_ms + earliest:
        return min(now_ms + earliest, LATEST_MS)
    return expires_ms


def as_sent(record: Message, settings: ResolvedAddressSettings) -> Message:
    """Return a message that was just sent, as its address has it.

    With ``enable-ingress-timestamp`` it says when it came.
    """
    if settings.enable_ingress_timestamp:
        record = record.stamped()
    return as_moved(record, settings, record.timestamp_ms)


def as_moved(record: Message, settings: ResolvedAddressSettings, now_ms: int) -> Message:
    """Return a message that comes from another address, as its new address has it."""
    expires_ms = expires_at(settings, record.expires_ms, now_ms)
    return record if expires_ms == record.expires_ms else record.expiring(expires_ms)


def as_undeliverable(record: Message, settings: ResolvedAddressSettings, now_ms: int) -> Message:
    """Return a dead letter or an expired message, as the address has it that it is moved to.

    An address that is its own expiry-address leaves it as it is: it would be moved there for ever.
    """
    if settings.expiry_address == record.address:
        return record
    return as_moved(record, settings, now_ms)
