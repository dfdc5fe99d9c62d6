# mypyc compiles this module.
"""What one client makes the broker hold, in bytes: the sum of what each part of a connection holds.

Two sums are of interest. What the client sent grows by its own frames only, so that one that sends
on while there is no memory can be told from one that is merely given messages. All that is held is
what its account in ``orthia.broker.connections.client_memory`` is charged with.
"""

from orthia.broker.protocols.stomp.inbox import Inbox
from orthia.broker.protocols.stomp.outbox import Outbox
from orthia.broker.protocols.stomp.parser import FrameParser
from orthia.broker.protocols.stomp.receipts import Receipts
from orthia.broker.protocols.stomp.subscriptions import ClientSubscriptions
from orthia.broker.protocols.stomp.transactions import OpenTransactions
from orthia.broker.protocols.stomp.uploads import Uploads


class Holdings:
    """The account of one connection."""

    __slots__ = (
        "_inbox", "_outbox", "_parser", "_receipts", "_subscriptions", "_transactions",
        "_unacknowledged", "_uploads", "released",
    )  # fmt: skip

    def __init__(
        self,
        parser: FrameParser,
        inbox: Inbox,
        uploads: Uploads,
        transactions: OpenTransactions,
        receipts: Receipts,
        subscriptions: ClientSubscriptions,
        outbox: Outbox,
    ) -> None:
        self._parser = parser
        self._inbox = inbox
        self._uploads = uploads
        self._transactions = transactions
        self._receipts = receipts
        self._subscriptions = subscriptions
        self._outbox = outbox
        self._unacknowledged = 0
        self.released = 0
        """Bytes of messages the client has acknowledged or given back so far."""

    @property
    def held(self) -> int:
        """All of it, messages that the client has and did not acknowledge included.

        Asked with all that comes and goes: what a large body holds is looked for only where there
        is one.
        """
        outbox = self._outbox
        held = (
            self._parser.held
            + self._inbox.size
            + self._transactions.size
            + self._receipts.size
            + self._subscriptions.size
            + outbox.size
            + self._unacknowledged
        )
        coming, going = self._uploads.under_way, outbox.body
        if coming is not None:
            held += coming.upload.held
        if going is not None:
            held += going.held
        return held

    @property
    def sent(self) -> int:
        """What of it is held because the client sent it."""
        going = self._outbox.body
        delivered = self._unacknowledged + self._transactions.aside
        return self.held - delivered - (0 if going is None else going.held)

    def hold(self, change: int) -> None:
        """Note that so many bytes of messages more, or fewer, wait for an acknowledgement."""
        self._unacknowledged += change
        if change < 0:
            self.released -= change
