# mypyc compiles this module.
"""What a connection is made of: how its parts are made, and which of them knows which."""

from collections.abc import Callable
from typing import NamedTuple

from orthia.broker.core.api import BrokerCore, Done, OnRefused
from orthia.broker.core.errors import BrokerError
from orthia.broker.protocols.stomp.client_frame import Frame
from orthia.broker.protocols.stomp.committing import Committer
from orthia.broker.protocols.stomp.connecting import LoginHandler
from orthia.broker.protocols.stomp.consuming import Receiver
from orthia.broker.protocols.stomp.holdings import Holdings
from orthia.broker.protocols.stomp.inbox import Inbox
from orthia.broker.protocols.stomp.login import Authenticate, Client
from orthia.broker.protocols.stomp.options import StompOptions
from orthia.broker.protocols.stomp.outbox import Outbox
from orthia.broker.protocols.stomp.parser import FrameParser
from orthia.broker.protocols.stomp.receipts import Receipts
from orthia.broker.protocols.stomp.sending import Sender
from orthia.broker.protocols.stomp.states import Handlers
from orthia.broker.protocols.stomp.subscriptions import ClientSubscriptions
from orthia.broker.protocols.stomp.temporary import Temporaries
from orthia.broker.protocols.stomp.timeouts import Timeouts
from orthia.broker.protocols.stomp.transactions import OpenTransactions
from orthia.broker.protocols.stomp.uploads import Uploads
from orthia.config.errors import OrthiaError
from orthia.journal.model.message import LargeBody


class Callbacks(NamedTuple):
    """What the parts call of their connection, which knows the state and how it ends."""

    logged_in: Done
    """Before CONNECTED is written."""
    go_on: Done
    """After a login that was answered later: handle what came meanwhile."""
    refuse_login: Callable[[BrokerError, Frame], None]
    uploaded: Callable[[LargeBody | OrthiaError], None]
    """The body of a large SEND is stored, or is not going to be."""
    streamed: Done
    """A large body was written whole."""
    refuse_unstored: OnRefused
    fail: Callable[[str], None]
    """The client is too slow: end it, and say why."""
    cut_off: Done
    """End the connection without a word: within a large body it would be taken for a part of it."""


class Parts:
    """The parts of one connection."""

    __slots__ = (
        "client", "committer", "handlers", "holdings", "inbox", "outbox", "parser", "receipts",
        "receiver", "sender", "subscriptions", "timeouts", "transactions", "uploads",
    )  # fmt: skip

    def __init__(
        self,
        core: BrokerCore,
        options: StompOptions,
        connection: object,
        callbacks: Callbacks,
        *,
        write: Callable[[bytes], int],
        clock: Callable[[], float],
        authenticate: Authenticate,
        may_take: Callable[[], bool],
        room: Done,
    ) -> None:
        """Make them.

        ``room`` is called when large bodies may be taken on, the others of the keywords are those
        of ``StompConnection``.
        """
        limits = options.limits
        parser = self.parser = FrameParser(limits)
        client = self.client = Client()
        inbox = self.inbox = Inbox(parser)
        outbox = self.outbox = Outbox(write, may_take)
        receipts = self.receipts = Receipts(client, outbox)
        subscriptions = self.subscriptions = ClientSubscriptions(limits.max_subscriptions)
        transactions = self.transactions = OpenTransactions(limits)
        uploads = self.uploads = Uploads(
            core, limits.upload_timeout, room=room, stored=callbacks.uploaded
        )
        timeouts = self.timeouts = Timeouts(limits, uploads, clock())
        self.holdings = Holdings(
            parser, inbox, uploads, transactions, receipts, subscriptions, outbox
        )
        temporaries = Temporaries(core, client)
        login = LoginHandler(
            core,
            client,
            options,
            parser,
            timeouts,
            outbox,
            clock=clock,
            authenticate=authenticate,
            logged_in=callbacks.logged_in,
            go_on=callbacks.go_on,
            refuse=callbacks.refuse_login,
        )
        self.sender = Sender(
            core,
            client,
            options.prefixes,
            temporaries,
            transactions,
            uploads,
            receipts,
            callbacks.refuse_unstored,
        )
        self.committer = Committer(
            core,
            client,
            transactions,
            subscriptions,
            receipts,
            outbox,
            callbacks.refuse_unstored,
        )
        self.receiver = Receiver(
            core,
            client,
            subscriptions,
            transactions,
            receipts,
            outbox,
            temporaries=temporaries,
            options=options,
            connection=connection,
            holds=self.holdings.hold,
            fail=callbacks.fail,
            cut_off=callbacks.cut_off,
            streamed=callbacks.streamed,
        )
        self.handlers: Handlers = {
            **login.handlers,
            **self.sender.handlers,
            **self.receiver.handlers,
            **self.committer.handlers,
        }
        """What each frame has done, but for a DISCONNECT."""
