"""The certificates of acceptors, as ``status`` shows them where their files can be read."""

from collections.abc import Iterable
from datetime import UTC, datetime

from orthia.broker.tls.errors import TlsUnusable
from orthia.broker.tls.expiry import Validity, in_utc, listener
from orthia.config.settings import AcceptorSettings


def certificates_of(acceptors: Iterable[AcceptorSettings]) -> list[Validity]:
    """Return until when the certificates are valid whose files can be read from here.

    A node runs as a user of its own, on a host of its own: whoever asks may see none of them.
    """
    found = []
    for acceptor in acceptors:
        if acceptor.tls is not None:
            # Reading certificates loads much that a pair without TLS does not need.
            from orthia.broker.tls.contexts import validity_of
            from orthia.broker.tls.stores import read_key_store

            try:
                keys = read_key_store(acceptor.tls.key_store, acceptor.tls.key_store_alias)
            except TlsUnusable:
                continue
            found.append(validity_of(acceptor.name, keys))
    return found


def in_a_line(validity: Validity, now: datetime) -> str:
    """Return what a person is shown."""
    ends = in_utc(validity.not_valid_after)
    days = validity.days_left(now)
    left = f"in {days:.0f} days" if days >= 0 else "HAS EXPIRED"
    warned = "" if validity.warning(now) is None or days < 0 else ": REPLACE IT"
    return f"{listener(validity.acceptor)}, {validity.subject}, until {ends} ({left}{warned})"


def as_json(validities: Iterable[Validity]) -> list[dict[str, object]]:
    """Return what a program is shown."""
    now = datetime.now(UTC)
    return [
        {
            "acceptor": one.acceptor,
            "subject": one.subject,
            "not_valid_after": one.not_valid_after.isoformat(),
            "days_left": round(one.days_left(now), 2),
        }
        for one in validities
    ]
