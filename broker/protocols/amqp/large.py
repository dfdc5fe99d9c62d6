# mypyc compiles this module.
"""How the body of a large message is written to a client: in further transfers of its delivery.

Other links go on meanwhile. A delivery whose body cannot be read to its end is aborted: the client
has no message.
"""

from collections.abc import Callable

from orthia.broker.protocols.amqp.link import Link, LinkSession
from orthia.config.errors import OrthiaError

Ended = Callable[[OrthiaError | None], None]


class LargeDelivery:
    """Writes the body of one message."""

    __slots__ = ("_ended", "_link", "_session")

    def __init__(self, session: LinkSession, link: Link, ended: Ended) -> None:
        """``ended`` follows; with an error the delivery was aborted."""
        self._session = session
        self._link = link
        self._ended = ended

    def takes_pieces(self) -> bool:
        """Return whether the client takes more, and the session's window has room."""
        return self._session.takes_messages()

    def hold(self, change: int) -> None:
        """Count bytes that are held for the client."""
        self._session.client.unwritten += change

    def write_piece(self, data: bytes, *, is_last: bool) -> None:
        """Write more of the message."""
        self._session.go_on(self._link, data, more=not is_last)

    def body_ended(self, error: OrthiaError | None) -> None:
        """Go on with other messages of the link."""
        if error is not None:
            self._session.abort(self._link)
        self._ended(error)
