# mypyc compiles this module.
"""The bodies of large messages, which come before their messages are sent."""

from collections.abc import Callable

from orthia.broker.core.api import Done
from orthia.broker.core.errors import LimitExceeded, NotLive
from orthia.broker.core.identity import Principal
from orthia.broker.core.limits.quota import StoreUse
from orthia.broker.core.routing.addresses import AddressBook
from orthia.broker.core.sending.post_office import PostOffice
from orthia.config.errors import OrthiaError
from orthia.journal.engine.large import LargeMessages, Upload
from orthia.journal.errors import JournalClosed
from orthia.journal.model.message import LargeBody


class Uploads:
    """Begins and bounds uploads; on the loop's thread."""

    def __init__(
        self,
        office: PostOffice,
        book: AddressBook,
        store_use: StoreUse,
        large: LargeMessages | None,
    ) -> None:
        self._office = office
        self._book = book
        self._store_use = store_use
        self._large = large

    def begin(
        self,
        principal: Principal,
        destination: str,
        room: Done,
        done: Callable[[LargeBody | OrthiaError], None],
    ) -> Upload:
        """Begin to store a body; see ``Broker.upload``. Raises BrokerError."""
        self._office.check_send(principal, destination)
        if self._large is None:
            raise LimitExceeded("this broker stores no large messages")
        try:
            return self._large.upload(room, done, self._book.use_of(destination).uploaded)
        except JournalClosed as error:
            raise NotLive(str(error)) from None

    def check(self, destination: str, size: int, missing: int) -> None:
        """Raise BrokerError if the store has no room for a body of which bytes are ``missing``."""
        self._store_use.refuse_if_full(missing)
        use = self._book.use_of(destination)
        if not use.drops(missing):
            use.refuse_if_over(size, missing)
