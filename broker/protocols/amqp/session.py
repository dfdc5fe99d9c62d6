# mypyc compiles this module.
"""A session: the links of it by their handles, its deliveries by their ids, and its windows.

Each side tells the other how many transfers it takes before it gives a new *window*. Deliveries of
both directions are numbered, each in an order of its own, and a disposition names a range of them.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from typing_extensions import override

from orthia.broker.core.api import Done, MessageReference, SubscriptionName
from orthia.broker.core.errors import BrokerError, NotLive, QueueInUse
from orthia.broker.core.limits.refusals import refusal_of
from orthia.broker.core.slices import GO_ON, Repeating, Steps, Wait
from orthia.broker.protocols.amqp.client import Client
from orthia.broker.protocols.amqp.conditions import (
    ERRANT_LINK,
    FRAMING_ERROR,
    HANDLE_IN_USE,
    UNATTACHED_HANDLE,
    WINDOW_VIOLATION,
    ConnectionFault,
    LinkFault,
    SessionFault,
    error_of,
)
from orthia.broker.protocols.amqp.frames import (
    accepted_frame,
    continued_frame,
    delivery_frame,
    encode_frame,
    settled_frame,
    transfer_frame,
)
from orthia.broker.protocols.amqp.link import Link, LinkSession
from orthia.broker.protocols.amqp.nodes import Nodes
from orthia.broker.protocols.amqp.options import INCOMING_WINDOW, MAX_LINKS
from orthia.broker.protocols.amqp.performatives import (
    ACCEPTED,
    RECEIVER,
    SENDER,
    Accepted,
    Attach,
    Begin,
    DeliveryState,
    Detach,
    Disposition,
    Error,
    Flow,
    Received,
    TransactionalState,
    Transfer,
    TransferForm,
    bare,
    encode_performative,
)
from orthia.broker.protocols.amqp.sender import Sender
from orthia.broker.protocols.amqp.transactions import LINK_ENDED, Transactions
from orthia.config.errors import OrthiaError

_MASK: Final = 0xFFFFFFFF
_NO_ID: Final = -2
"""Of no delivery, and not before the first."""
_FIRST_OUTGOING: Final = 0
_OUTGOING_WINDOW: Final = 0x7FFFFFFF
"""What this side says of its own: the client's window decides."""
_TRANSFER_BYTES: Final = 64
"""What a transfer needs of its frame beside the message."""
_SETTLED_AT_ONCE: Final = 512
"""How many deliveries one disposition settles before others may have a turn."""
_LOOKED_AT_AT_ONCE: Final = 4_096
"""How many deliveries are looked at before others may have a turn, to find those of a range."""
_ENDED_COST: Final = 128
"""Bytes that the handle of a link counts for which this side has ended, and the client has not.

So does each delivery that the link had.
"""

Attaching = Callable[["AmqpSession", Attach], Steps | None]
"""Makes the link that a client asks for."""


class AmqpSession(LinkSession):
    """One session; methods that take what a client says raise SessionFault and LinkFault."""

    __slots__ = (
        "_accepted", "_accepting_from", "_accepting_to", "_attaching", "_deliveries",
        "_incoming_left", "_incoming_limit", "_links", "_next_delivery_id", "_next_outgoing_id",
        "_pending", "_pending_bytes", "_remote_window", "_resuming", "_returned", "_returned_ids",
        "_unanswered", "channel", "client", "form", "is_ended", "nodes", "transactions",
    )  # fmt: skip

    def __init__(
        self,
        client: Client,
        channel: int,
        said: Begin,
        nodes: Nodes,
        transactions: Transactions,
        attaching: Attaching,
    ) -> None:
        """Begin as the client asks for on a channel, on which it is answered, too."""
        self.client = client
        self.channel = channel
        self.nodes = nodes
        self.transactions = transactions
        self._attaching = attaching
        self._links: dict[int, Link | None] = {}
        """By handle; None for one that this side has ended, until the client says so, too."""
        self._deliveries: dict[int, Link] = {}
        """Whose those are that the client has and did not settle, in order."""
        self._returned: dict[int, list[int]] = {}
        """What the client had of links that this side has ended, by handle."""
        self._returned_ids: set[int] = set()
        """All of these."""
        self._accepting_from, self._accepting_to = _NO_ID, _NO_ID
        """The first and last of those deliveries to be said accepted that came in sequence."""
        self._accepted: list[tuple[int, int]] = []
        """The ranges of others that are, too."""
        self._unanswered: set[int] = set()
        """The handles of links that the client has closed, and is not told so yet."""
        self._incoming_left = INCOMING_WINDOW
        """How many transfers more the client may send."""
        self._incoming_limit = said.next_outgoing_id + INCOMING_WINDOW
        """The id of the first that it may not."""
        self.form = TransferForm()
        """Of the last transfer that carried a message and said nothing else."""
        self._next_outgoing_id = _FIRST_OUTGOING
        self._next_delivery_id = 0
        self._remote_window = said.incoming_window
        self._pending: deque[tuple[int, bytes]] = deque()
        """Frames of a message that the client's window has no room for, with their handles."""
        self._pending_bytes = 0
        self._resuming = Repeating()
        self.is_ended = False
        """Whether it is over: no link begins any more, and nothing is said of it."""
        self.say(Begin(channel, _FIRST_OUTGOING, INCOMING_WINDOW, _OUTGOING_WINDOW, MAX_LINKS - 1))

    @property
    def senders(self) -> list[Sender]:
        """The links by which the client receives."""
        return [one for one in self._links.values() if isinstance(one, Sender)]

    # --- writing

    @override
    def say(self, performative: object) -> None:
        if not self.is_ended:  # afterwards the channel is nobody's, or another session's
            self.client.say(self.channel, performative)

    @override
    def windows(self) -> tuple[int, int, int, int]:
        return (
            (self._incoming_limit - self._incoming_left) & _MASK,
            self._incoming_left,
            self._next_outgoing_id,
            _OUTGOING_WINDOW,
        )

    @override
    def takes_messages(self) -> bool:
        return self._remote_window > 0 and not self._pending and self.client.takes_messages()

    @override
    def deliver(
        self,
        link: Link,
        reference: MessageReference,
        head: bytes,
        body: bytes,
        *,
        is_settled: bool,
        more: bool = False,
    ) -> int:
        client, channel, handle = self.client, self.channel, link.handle
        delivery_id = self._next_delivery_id
        self._next_delivery_id = (delivery_id + 1) & _MASK
        most, rest = client.max_frame_size - _TRANSFER_BYTES, b""
        if more or len(head) + len(body) > most:
            payload, tag = head + body, delivery_id.to_bytes(4, "big")
            payload, rest = payload[:most], payload[most:]
            has_more = more or bool(rest)
            frame = transfer_frame(
                channel, handle, delivery_id, tag, payload, settled=is_settled, more=has_more
            )
        else:
            frame = delivery_frame(channel, handle, delivery_id, head, body, settled=is_settled)
        reference.written_at = client.socket.write(frame) - len(frame)
        self._sent()
        if rest:
            self.go_on(link, rest, more=more)
        if not is_settled:
            self._deliveries[delivery_id] = link
        return delivery_id

    @override
    def go_on(self, link: Link, payload: bytes, *, more: bool) -> None:
        most = self.client.max_frame_size - _TRANSFER_BYTES
        for at in range(0, len(payload), most):
            is_last = at + most >= len(payload)
            frame = continued_frame(
                self.channel, link.handle, payload[at : at + most], more=more or not is_last
            )
            self._pending.append((link.handle, frame))
            self._hold(len(frame))
        self._write_pending()

    @override
    def abort(self, link: Link) -> None:
        self._drop_pending(link)
        frame = encode_frame(encode_performative(Transfer(link.handle, aborted=True)), self.channel)
        self._pending.append((link.handle, frame))
        self._hold(len(frame))
        self._write_pending()

    @override
    def is_amid(self, link: Link) -> bool:
        return any(handle == link.handle for handle, _ in self._pending)

    def _hold(self, change: int) -> None:
        self._pending_bytes += change
        self.client.unwritten += change

    def _drop_pending(self, link: Link) -> None:
        if self._pending:
            left = [one for one in self._pending if one[0] != link.handle]
            self._pending = deque(left)
            self._hold(sum(len(frame) for _, frame in left) - self._pending_bytes)

    def _write_pending(self) -> None:
        while self._pending and self._remote_window > 0:
            _, frame = self._pending.popleft()
            self._hold(-len(frame))
            self.client.write(frame)
            self._sent()

    def _sent(self) -> None:
        """Count a transfer that was written; ask for another window once this one is used up.

        rhea gives a new one only when it is asked.
        """
        self._remote_window -= 1
        self._next_outgoing_id = (self._next_outgoing_id + 1) & _MASK
        if not self._remote_window:
            self.say(Flow(*self.windows(), echo=True))

    @override
    def accept(self, delivery_id: int) -> None:
        if self.is_ended:
            return
        if delivery_id - self._accepting_to != 1:
            self._begin_accepting(delivery_id)
        self._accepting_to = delivery_id

    def _begin_accepting(self, delivery_id: int) -> None:
        """Begin a range of what is accepted; what has begun stays to be said."""
        if self._accepting_to == _NO_ID:
            self.client.socket.before_flush(self.flush_accepted)
        else:
            self._accepted.append((self._accepting_from, self._accepting_to))
        self._accepting_from = delivery_id

    @override
    def flush_accepted(self) -> None:
        if self._accepting_to == _NO_ID:
            return
        ranges, self._accepted = self._accepted, []
        ranges.append((self._accepting_from, self._accepting_to))
        self._accepting_to = _NO_ID
        frames = [accepted_frame(self.channel, first, last) for first, last in ranges]
        self.client.write(b"".join(frames))

    @override
    def say_transacted(self, delivery_id: int, txn_id: bytes) -> None:
        state = TransactionalState(txn_id, ACCEPTED)
        self.say(Disposition(RECEIVER, delivery_id, settled=True, state=state))

    # --- links

    def attach(self, said: Attach) -> Steps | None:
        """Begin a link, or refuse it; returns steps to be done before the next frame, if any."""
        if said.handle >= MAX_LINKS:
            raise ConnectionFault(
                FRAMING_ERROR, f"handle {said.handle} is above handle-max {MAX_LINKS - 1}"
            )
        if said.handle in self._links:
            raise SessionFault(HANDLE_IN_USE, f"handle {said.handle} is in use")
        is_receiving = said.role is RECEIVER
        for link in self._links.values():
            if link is None or link.name != said.name:
                continue
            if isinstance(link, Sender) == is_receiving:
                fault = LinkFault(ERRANT_LINK, "the session has a link of this name and direction")
                self.refuse_link(said, fault)
                return None
        try:
            steps = self._attaching(self, said)
        except NotLive:
            raise
        except (LinkFault, BrokerError) as error:
            self.refuse_link(said, error)
            return None
        return None if steps is None else self._attached(said, steps)

    def _attached(self, said: Attach, steps: Steps) -> Steps:
        try:
            yield from steps
        except NotLive:
            raise
        except (LinkFault, BrokerError) as error:
            if not self.is_ended:
                self.refuse_link(said, error)

    def attached(self, sender: Sender) -> None:
        """Tell the client that a link is there from which it gets messages; once."""
        if self._say_attached(sender):
            sender.follow()

    def _say_attached(self, link: Link) -> bool:
        """Say that a link is there, if it was not said yet; return whether it was not."""
        if not isinstance(link, Sender) or link.answer is None:
            return False
        answer, link.answer = link.answer, None
        self.say(answer)
        return True

    def add(self, link: Link) -> None:
        """Keep a link that is attached."""
        self._links[link.handle] = link
        self.client.links += 1
        self.client.links_size += link.cost

    def refuse_link(self, said: Attach, error: OrthiaError) -> None:
        """Attach a link and end it at once, as a link is refused."""
        self.client.socket.refused(refusal_of(error), str(error))
        self._keep_handle(said.handle, [])
        role = not said.role
        self.say(
            Attach(
                said.name,
                said.handle,
                role,
                said.snd_settle_mode,
                source=None if role is SENDER else said.source,
                target=None if role is RECEIVER else said.target,
                initial_delivery_count=0 if role is SENDER else None,
            )
        )
        self.say(Detach(said.handle, closed=True, error=error_of(error)))

    def _keep_handle(self, handle: int, returned: list[int]) -> None:
        """Keep the handle of a link that is ended until the client says so, too.

        ``returned`` are the deliveries it had, which went back.
        """
        self._links[handle] = None
        self.client.links_size += _ENDED_COST * (1 + len(returned))
        if returned:
            self._returned[handle] = returned
            self._returned_ids.update(returned)

    def _forget_handle(self, handle: int) -> None:
        returned = self._returned.pop(handle, ())
        self._returned_ids.difference_update(returned)
        self.client.links_size -= _ENDED_COST * (1 + len(returned))

    @override
    def end_link(self, link: Link, error: Error) -> None:
        if self._links.get(link.handle) is not link:
            return
        self._say_attached(link)
        self.transactions.fail(link.partial_state, LINK_ENDED)
        self._keep_handle(link.handle, list(link.unsettled))
        self._close(link, is_closed=True)
        self.flush_accepted()
        self.say(Detach(link.handle, closed=True, error=error))

    def detach(self, said: Detach) -> None:
        """End a link as the client asks for."""
        if said.handle not in self._links or said.handle in self._unanswered:
            raise SessionFault(UNATTACHED_HANDLE, f"handle {said.handle} is of no link")
        link = self._links.pop(said.handle)
        if link is None:
            self._forget_handle(said.handle)
            return  # this side has ended it before
        self._say_attached(link)
        self._close(link, is_closed=said.closed)
        self.flush_accepted()
        if said.closed and link.subscription is not None:
            self._end_subscription(said.handle, link.subscription)
        else:
            self.say(Detach(said.handle, closed=said.closed))

    def _end_subscription(self, handle: int, name: SubscriptionName) -> None:
        """Delete a durable subscription whose link is closed, unless it has other links.

        The client is answered once it is deleted, which takes long where another session of the
        database has locked a row. Its other links go on meanwhile.
        """
        client = self.client
        self._keep_handle(handle, [])
        self._unanswered.add(handle)
        client.ending[name] = Wait(lambda _: None)
        try:
            client.core.end_by_name(
                client.principal, name, partial(self._subscription_ended, handle, name)
            )
        except NotLive:
            raise
        except BrokerError as refused:
            del client.ending[name]
            has_others = name.is_shared and isinstance(refused, QueueInUse)
            self._say_detached(handle, None if has_others else error_of(refused))

    def _subscription_ended(self, handle: int, name: SubscriptionName) -> None:
        self._say_detached(handle)
        self.client.ending.pop(name)()

    def _say_detached(self, handle: int, error: Error | None = None) -> None:
        """Answer a client that closed a link a while ago, and forget its handle."""
        self._unanswered.discard(handle)
        if handle in self._links:
            del self._links[handle]
            self._forget_handle(handle)
            self.say(Detach(handle, closed=True, error=error))

    def _close(self, link: Link, *, is_closed: bool) -> None:
        self.client.links -= 1
        self.client.links_size -= link.cost
        for delivery_id in link.unsettled:
            del self._deliveries[delivery_id]
        link.unsettled.clear()
        self._drop_pending(link)
        link.close()
        if link.node is not None and is_closed:
            self.nodes.delete(link.node)

    # --- what the client says

    def flow(self, said: Flow) -> None:
        """Take the client's window and the credit of a link."""
        begin = _FIRST_OUTGOING if said.next_incoming_id is None else said.next_incoming_id
        on_their_way = (self._next_outgoing_id - begin) & _MASK
        had_room = self._remote_window > 0 and not self._pending
        self._remote_window = max(0, said.incoming_window - on_their_way)
        self._write_pending()
        if said.handle is not None:
            link = self._link(said.handle)
            if link is not None:
                link.flow(said)
        elif said.echo:
            self.say(Flow(*self.windows()))
        if not had_room and self._remote_window > 0:
            client = self.client
            self._resuming.ask(client.core.slices, self.resume_each, client.socket.usage)

    def resume_each(self) -> Steps:
        """Deliver again by all links."""
        for sender in self.senders:
            sender.resume()
            yield GO_ON

    def transfer(self, said: Transfer, body: bytes, begin: int) -> Steps | None:
        """Take a message, or a part of one: what follows in a frame's ``body`` from ``begin`` on.

        Returns steps to be done before the next frame, if there are any.
        """
        self._count()
        self.form.note(said, body, begin)
        link = self._link(said.handle)
        if link is None:
            self.transactions.fail(said.state, LINK_ENDED)
            return None
        try:
            return link.transfer(said, body[begin:])
        except LinkFault as error:
            self.transactions.fail(said.state, LINK_ENDED)
            self._end_at_fault(link, error)
            return None

    def transfer_whole(self, delivery_id: int, body: bytes) -> Steps | None:
        """Take a message by a transfer of the same ``form`` as one before, as ``transfer`` does."""
        self._count()
        form = self.form
        link = self._link(form.handle)
        if link is None:
            return None
        try:
            return link.transfer_whole(delivery_id, body, form.end, is_settled=form.is_settled)
        except LinkFault as error:
            self._end_at_fault(link, error)
            return None

    def _count(self) -> None:
        """Count a transfer against the window; give another once half of it is used up."""
        left = self._incoming_left - 1
        if left < 0:
            raise SessionFault(WINDOW_VIOLATION, "a transfer came without a window")
        self._incoming_left = left
        if left <= INCOMING_WINDOW // 2:
            self._incoming_limit += INCOMING_WINDOW - left
            self._incoming_left = INCOMING_WINDOW
            self.say(Flow(*self.windows()))

    def _end_at_fault(self, link: Link, error: LinkFault) -> None:
        self.client.socket.refused(refusal_of(error), str(error))
        self.end_link(link, error.error)

    def _link(self, handle: int) -> Link | None:
        """Return a link; None for one that this side has ended."""
        if handle not in self._links:
            raise SessionFault(UNATTACHED_HANDLE, f"handle {handle} is of no link")
        return self._links[handle]

    def disposition(self, said: Disposition) -> Steps | None:
        """Do what the client says of deliveries that it has; of what it sent all is settled.

        Returns steps to be done before the next frame, if there are any.
        """
        if said.role is not RECEIVER:
            return None
        first = said.first
        last = first if said.last is None else said.last
        count = ((last - first) & _MASK) + 1
        if count > _SETTLED_AT_ONCE:
            return self._settling(said, first, count)
        ids = [first] if count == 1 else [(first + index) & _MASK for index in range(count)]
        self._settle_all(said, ids)
        return None

    def _settling(self, said: Disposition, first: int, count: int) -> Steps:
        """Settle a long range: of as many as a client can have, others wait for a few only."""
        for returned in list(self._returned.values()):
            if any((one - first) & _MASK < count for one in returned):
                self.transactions.fail(said.state, LINK_ENDED)
                break
            yield GO_ON
        deliveries, named = list(self._deliveries), list[int]()
        for at in range(0, len(deliveries), _LOOKED_AT_AT_ONCE):
            some = deliveries[at : at + _LOOKED_AT_AT_ONCE]
            named += [one for one in some if (one - first) & _MASK < count]
            yield GO_ON
        for at in range(0, len(named), _SETTLED_AT_ONCE):
            self._settle_all(said, named[at : at + _SETTLED_AT_ONCE])
            yield GO_ON

    def _settle_all(self, said: Disposition, ids: list[int]) -> None:
        """Do what the client says of those deliveries among some that it has."""
        deliveries, state = self._deliveries, said.state
        if self._returned and not self._returned_ids.isdisjoint(ids):
            self.transactions.fail(state, LINK_ENDED)
        named = [one for one in ids if one in deliveries]
        if not said.settled and (state is None or isinstance(state, Received)):
            return
        by_sender: dict[Sender, list[int]] = {}
        for delivery_id in named:
            link = deliveries[delivery_id]
            if isinstance(link, Sender):
                by_sender.setdefault(link, []).append(delivery_id)
        for sender, ids in by_sender.items():
            try:
                self._settle(sender, ids, said)
            except NotLive:
                raise
            except (LinkFault, BrokerError) as error:
                self.transactions.fail(state, LINK_ENDED)
                self.client.socket.refused(refusal_of(error), str(error))
                self.end_link(sender, error_of(error))

    def _settle(self, sender: Sender, ids: list[int], said: Disposition) -> None:
        state = said.state
        if isinstance(state, TransactionalState):
            self.transactions.settle(self, sender, ids, state, is_settled=said.settled)
            return
        if state is None or isinstance(state, Received):
            state = sender.default_outcome
        state = bare(state)
        references = self.take(sender, ids)
        done: Done | None = None
        if not said.settled:
            self.client.outstanding += 1
            done = partial(self.settled, ids, state)
        try:
            sender.settle(references, state, done)
        except (LinkFault, BrokerError):
            if done is not None:
                self.client.outstanding -= 1
            raise

    @override
    def take(self, link: Link, ids: list[int]) -> list[MessageReference]:
        deliveries, unsettled = self._deliveries, link.unsettled
        for delivery_id in ids:
            del deliveries[delivery_id]
        return [unsettled.pop(delivery_id) for delivery_id in ids]

    @override
    def put_back(self, link: Link, delivered: dict[int, MessageReference]) -> None:
        for delivery_id in delivered:
            self._deliveries[delivery_id] = link
        link.unsettled.update(delivered)

    def settled(self, ids: list[int], state: DeliveryState) -> None:
        """Settle deliveries of which the client has said an outcome, now that it is stored."""
        self.client.outstanding -= 1
        self.say_settled(ids, state)

    @override
    def say_settled(self, ids: list[int], state: DeliveryState) -> None:
        if self.is_ended:
            return
        channel, ranges = self.channel, _ranges(ids)
        if isinstance(state, Accepted):
            frames = [accepted_frame(channel, *one, is_receiver=False) for one in ranges]
        else:
            encoded = encode_performative(state)
            frames = [settled_frame(channel, *one, encoded) for one in ranges]
        self.client.write(b"".join(frames))

    # --- the end

    def ending(self) -> Steps:
        """End all links of a client that ended the session: what is not settled goes back."""
        self.is_ended = True
        self.flush_accepted()
        self._pending.clear()
        self._hold(-self._pending_bytes)
        self._remote_window = 0  # what goes back by one link is not delivered to the next
        links = [one for one in self._links.values() if one is not None]
        # What they have goes back before their transactions end: the client did not fail with it.
        for link in sorted(links, key=lambda one: not isinstance(one, Sender)):
            if self._links.get(link.handle) is link:  # its queue may be deleted meanwhile
                del self._links[link.handle]
                self._close(link, is_closed=True)
                yield GO_ON
        for handle in self._links:
            self._forget_handle(handle)
        self._links.clear()

    def leave(self) -> list[Sender]:
        """Forget all links; return those that have an end in the core, which is still open."""
        self.is_ended = True
        self._pending.clear()
        self._hold(-self._pending_bytes)
        senders = self.senders
        for link in self._links.values():
            if isinstance(link, Sender):
                link.stop()
            elif link is not None:
                link.close()
        self._links.clear()
        self._deliveries.clear()
        return senders


def _ranges(ids: list[int]) -> list[tuple[int, int]]:
    """Return the first and the last of each run of ids that follow one another."""
    ranges: list[tuple[int, int]] = []
    first = last = ids[0]
    for one in ids[1:]:
        if one != (last + 1) & _MASK:
            ranges.append((first, last))
            first = one
        last = one
    ranges.append((first, last))
    return ranges
