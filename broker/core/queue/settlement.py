# mypyc compiles this module.
"""What a transaction did with messages that a client had, until the store has decided."""

from collections.abc import Sequence

from typing_extensions import override

from orthia.broker.core.api import Answer, Done, MessageReference, Settlement
from orthia.broker.core.queue.delivery import DeliveringQueue


class Acknowledged(Settlement):
    """Messages that are deleted, and come back if the store refuses."""

    __slots__ = ("_queue", "_taken")

    def __init__(self, queue: DeliveringQueue, taken: Sequence[MessageReference]) -> None:
        self._queue = queue
        self._taken = taken
        queue.undecided += 1

    @override
    def committed(self, done: Done) -> None:
        self._queue.undecided -= 1
        done()

    @override
    def suspend(self) -> None:
        self._queue.pace.suspend()

    @override
    def refused(self, *, failed_delivery: bool) -> None:
        self._queue.restore(self._taken)
        self._queue.undecided -= 1
        self._queue.pace.unsuspend()
        self._queue.give_back(self._taken, attempted=self._taken if failed_delivery else ())


class Returned(Settlement):
    """Messages that go back to their queue with the commit, or are dead letters."""

    __slots__ = ("_answer", "_queue", "_taken")

    def __init__(
        self, queue: DeliveringQueue, taken: Sequence[MessageReference], answer: Answer
    ) -> None:
        self._queue = queue
        self._taken = taken
        self._answer = answer

    @override
    def committed(self, done: Done) -> None:
        attempted = () if self._answer is Answer.RELEASED else self._taken
        is_last = self._answer is Answer.DEAD
        self._queue.give_back(self._taken, attempted=attempted, is_last=is_last, done=done)

    @override
    def suspend(self) -> None:
        self._queue.pace.suspend()

    @override
    def refused(self, *, failed_delivery: bool) -> None:
        self._queue.pace.unsuspend()
        self._queue.give_back(self._taken, attempted=self._taken if failed_delivery else ())


class Gone(Settlement):
    """Messages that no queue keeps."""

    __slots__ = ()

    @override
    def committed(self, done: Done) -> None:
        done()

    @override
    def suspend(self) -> None:
        pass

    @override
    def refused(self, *, failed_delivery: bool) -> None:
        pass
