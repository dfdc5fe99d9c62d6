"""Checks the TLS settings of a node by reading every file they name."""

from collections.abc import Iterator
from datetime import datetime

from orthia.broker.tls.contexts import load_acceptor
from orthia.broker.tls.errors import TlsUnusable
from orthia.broker.tls.expiry import listener
from orthia.broker.tls.stores import files_of, has_open_key
from orthia.config.exposure import readable_by_others
from orthia.config.settings import HTTP_LISTENER, Settings
from orthia.config.violations import Violation


def unusable_tls(settings: Settings) -> Iterator[Violation]:
    """Yield what makes TLS unusable for acceptors and HTTP; blocks while files are read."""
    for acceptor in settings.tls_listeners:
        if acceptor.tls is not None:
            try:
                load_acceptor(acceptor.name, acceptor.tls)
            except TlsUnusable as error:
                is_http = acceptor.name == HTTP_LISTENER
                where = "core/health" if is_http else f"core/acceptors/acceptor[{acceptor.name}]"
                yield Violation(where, str(error))


def exposed_keys(settings: Settings) -> Iterator[str]:
    """Yield a warning for each file whose private key other users can read; blocks."""
    for acceptor in settings.tls_listeners:
        if acceptor.tls is not None:
            for file in files_of(acceptor.tls.key_store):
                if has_open_key(file):
                    yield from readable_by_others(file, f"the key of {listener(acceptor.name)}")


def ending_certificates(settings: Settings, now: datetime) -> Iterator[str]:
    """Yield a warning for each certificate that clients refuse at ``now``, or soon will; blocks.

    A running node logs these itself.
    """
    for acceptor in settings.tls_listeners:
        if acceptor.tls is not None:
            warning = load_acceptor(acceptor.name, acceptor.tls).validity.warning(now)
            if warning is not None:
                yield warning[1]
