# mypyc compiles this module.
"""BEGIN, COMMIT and ABORT: a transaction is done whole in one unit, or not at all."""

from functools import partial

from orthia.broker.core.api import BrokerCore, Done, OnRefused, TransactionWork
from orthia.broker.core.errors import BrokerError, NotLive
from orthia.broker.core.slices import Steps
from orthia.broker.protocols.stomp.client_frame import Frame
from orthia.broker.protocols.stomp.login import Client
from orthia.broker.protocols.stomp.outbox import Outbox
from orthia.broker.protocols.stomp.receipts import Receipts
from orthia.broker.protocols.stomp.states import Handlers
from orthia.broker.protocols.stomp.subscriptions import ClientSubscriptions
from orthia.broker.protocols.stomp.transactions import OpenTransactions, unpin
from orthia.config.errors import OrthiaError


class Committer:
    """Begins and ends transactions; methods raise ProtocolError and BrokerError."""

    __slots__ = (
        "_client", "_core", "_outbox", "_receipts", "_refused", "_subscriptions", "_transactions",
    )  # fmt: skip

    def __init__(
        self,
        core: BrokerCore,
        client: Client,
        transactions: OpenTransactions,
        subscriptions: ClientSubscriptions,
        receipts: Receipts,
        outbox: Outbox,
        refused: OnRefused,
    ) -> None:
        """``refused`` hears of a COMMIT that the store does not take."""
        self._core = core
        self._client = client
        self._transactions = transactions
        self._subscriptions = subscriptions
        self._receipts = receipts
        self._outbox = outbox
        self._refused = refused

    @property
    def handlers(self) -> Handlers:
        """What it does, by the frame."""
        return {"BEGIN": self.begin, "COMMIT": self.commit, "ABORT": self.abort}

    def begin(self, frame: Frame) -> None:
        """Do a BEGIN."""
        self._transactions.begin(frame)
        self._receipts.now(frame)

    def commit(self, frame: Frame) -> Steps:
        """Do a COMMIT, in steps; nothing of it if the connection ends before the last."""
        work = self._transactions.named(frame)
        done = self._receipts.later(frame)
        refused = partial(self._refuse, work)
        try:
            for rests in self._core.commit(self._client.principal, work, done, refused):
                yield rests
                if self._outbox.is_over:
                    return
        except BrokerError as error:
            work.is_refused = True
            if isinstance(error, NotLive):
                self._receipts.take_back(done)
            raise
        self._transactions.forget(frame)

    def _refuse(self, work: TransactionWork, error: OrthiaError, done: Done | None) -> None:
        """Refuse a transaction that the store does not take; the core counts what was in it."""
        self._transactions.refuse(work)
        self._refused(error, done)

    def abort(self, frame: Frame) -> None:
        """Do an ABORT: what it took goes back to the subscriptions that have it."""
        work = self._transactions.named(frame)
        self._transactions.forget(frame)
        self._let_go(work)
        for answered in (work.acknowledgements, work.rejections):
            for core, references in answered.items():
                subscription = self._subscriptions.of(core)
                if subscription is not None:
                    core.put_back(references)
                    subscription.put_back(references)
        self._receipts.now(frame)

    def let_go_of_all(self) -> None:
        """Forget all that are open: the connection ends."""
        for work in self._transactions.clear():
            self._let_go(work)

    def _let_go(self, work: TransactionWork) -> None:
        unpin(self._core, (message for _, message in work.sends))
