# mypyc compiles this module.
"""The receipts of one connection: those sent at once, and those that wait for the store."""

from orthia.broker.core.api import Done
from orthia.broker.core.errors import NotLive
from orthia.broker.core.slices import Steps
from orthia.broker.protocols.stomp.client_frame import Frame
from orthia.broker.protocols.stomp.frames import receipt_frame
from orthia.broker.protocols.stomp.output import Output

_COST = 512
"""Bytes that a waiting receipt counts for beside its id."""


class PendingReceipt:
    """The receipt of a frame that waits for the store; called once the frame is stored."""

    __slots__ = ("_receipts", "id")

    def __init__(self, receipts: "Receipts", receipt_id: str) -> None:
        self._receipts = receipts
        self.id = receipt_id

    def __call__(self) -> None:
        """Send the RECEIPT."""
        self._receipts.send(self.id)


class Receipts:
    """Counts the frames that are not done yet, and answers each when it is."""

    __slots__ = ("_last", "_output", "_outstanding", "_then", "size")

    def __init__(self, output: Output) -> None:
        self._output = output
        self._last: str | None = None
        self._then: Done | None = None
        self._outstanding = 0
        """How many frames are not done."""
        self.size = 0
        """Bytes that waiting receipts count for."""

    def now(self, frame: Frame, deleted_messages: int | None = None) -> None:
        """Send the RECEIPT of a frame that is done, if it asks for one.

        With the number of messages that it deleted, if that is told.
        """
        receipt_id = frame.get(b"receipt")
        if receipt_id is not None:
            self._output.write(receipt_frame(receipt_id, self._output.version, deleted_messages))

    def later(self, frame: Frame) -> Done:
        """Return what to call once a frame is stored; it sends the RECEIPT, if any."""
        receipt_id = frame.get(b"receipt")
        self._outstanding += 1
        if receipt_id is None:
            return self.done
        self.size += len(receipt_id) + _COST
        return PendingReceipt(self, receipt_id)

    def through(self, steps: Steps, done: Done) -> Steps:
        """Do the steps of a frame for which ``later`` returned ``done``."""
        try:
            yield from steps
        except NotLive:
            self.take_back(done)
            raise

    def send(self, receipt_id: str) -> None:
        """Send a RECEIPT that has waited."""
        self.size -= len(receipt_id) + _COST
        self._output.write(receipt_frame(receipt_id, self._output.version))
        self._outstanding -= 1
        if self._then is not None:
            self.look()

    def begin(self) -> None:
        """Note one more thing to be done, without a receipt; ``done`` ends it."""
        self._outstanding += 1

    def done(self) -> None:
        """Note that one thing is done."""
        self._outstanding -= 1
        if self._then is not None:
            self.look()

    def look(self) -> None:
        """Call what was given to ``end_with``, if nothing is outstanding."""
        if self._then is not None and not self._outstanding:
            self._then()

    def take_back(self, done: Done) -> None:
        """Undo ``later``, which returned ``done``: its frame is not done, and not answered."""
        self._outstanding -= 1
        if isinstance(done, PendingReceipt):
            self.size -= len(done.id) + _COST

    def end_with(self, frame: Frame | None, then: Done) -> None:
        """Call ``then`` whenever nothing is outstanding from now on.

        ``then`` calls ``send_last`` if there is a ``frame`` to be answered last.
        """
        self._last = None if frame is None else frame.get(b"receipt")
        self._then = then

    def release(self) -> None:
        """Call nothing of what was given to ``end_with``."""
        self._then = None

    def send_last(self) -> None:
        """Send the RECEIPT of the frame that was given to ``end_with``."""
        if self._last is not None:
            self._output.write(receipt_frame(self._last, self._output.version))


def id_of(done: Done | None) -> str | None:
    """Return the receipt that ``later`` gave ``done`` for; None if there was none."""
    return done.id if isinstance(done, PendingReceipt) else None
