"""The certificates of a node's acceptors: loaded off the loop, looked at by it."""

import ssl
from collections.abc import Iterable

from orthia.broker.tls.contexts import Loaded, load_acceptor
from orthia.broker.tls.errors import TlsUnusable
from orthia.config.settings import AcceptorSettings


class Certificates:
    """What each acceptor with TLS shows its clients; what changes counts for the next of them."""

    def __init__(self, acceptors: Iterable[AcceptorSettings]) -> None:
        self._acceptors = [one for one in acceptors if one.tls is not None]
        self._loaded: dict[str, Loaded] = {}

    def load(self) -> None:
        """Read the files of all acceptors; raises TlsUnusable. Blocks: not for the loop."""
        for one in self._acceptors:
            if one.tls is not None:
                try:
                    self._loaded[one.name] = load_acceptor(one.tls)
                except TlsUnusable as error:
                    raise TlsUnusable(f"acceptor {one.name!r}: {error}") from None

    def context(self, acceptor: str) -> ssl.SSLContext:
        """Return what the next client of an acceptor is met with; it has been loaded."""
        return self._loaded[acceptor].context
