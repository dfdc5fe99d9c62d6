"""Waiting, in coroutines on the loop, for what the core answers by callbacks and does in steps.

Whoever waits when the node ends gets ``NotLive``: the core does not call back any more then.
"""

import asyncio
from collections.abc import Callable, Generator
from typing import Any, Generic, TypeAlias, TypeVar

from orthia.broker.core.errors import NotLive
from orthia.broker.core.slices import GO_ON, Finding, Slices, Steps, Wait

_Result = TypeVar("_Result")
Working: TypeAlias = Generator[bool, None, _Result] | Generator[bool | Wait, None, _Result]
"""Steps that return a result."""
_OVER = "this node is stopping or is live no more; ask the other node"


class Answer(Generic[_Result]):
    """What is waited for, once; awaited by one, and set by a callback."""

    def __init__(
        self,
        future: "asyncio.Future[_Result]",
        awaited: "Callable[[asyncio.Future[_Result]], None] | None" = None,
    ) -> None:
        """``awaited`` hears of it once somebody waits, and may raise NotLive."""
        self.future = future
        self._awaited = awaited

    def set(self, result: _Result) -> None:
        """Give the result; nothing if nobody waits any more."""
        if not self.future.done():
            self.future.set_result(result)

    def fail(self, error: Exception) -> None:
        """Give the reason why there is no result."""
        if not self.future.done():
            self.future.set_exception(error)

    def __await__(self) -> Generator[Any, None, _Result]:
        if self._awaited is not None:
            self._awaited(self.future)
        return self.future.__await__()


class Waiting:
    """Everything that is waited for; on the loop's thread."""

    def __init__(self, slices: Slices) -> None:
        self._slices = slices
        self._futures: set[asyncio.Future[Any]] = set()
        self._is_over = False

    def answer(self, kind: Callable[..., _Result]) -> Answer[_Result | None]:
        """Return what one call is answered by, of a ``kind`` or None."""
        del kind
        return Answer(self._future(), self._note)

    def future(self, kind: Callable[..., _Result]) -> Answer[_Result]:
        """Return the same of what is always answered by that kind."""
        del kind
        return Answer(self._future(), self._note)

    def begin(self, finding: Working[_Result]) -> "asyncio.Future[_Result]":
        """Do steps in turn with all other work of the loop; return their result's future."""
        future: asyncio.Future[_Result] = self._future()
        self._note(future)
        self._slices.run(_into(finding, Answer(future)))
        return future

    async def steps(self, finding: Working[_Result]) -> _Result:
        """Do steps in turn with all other work of the loop, and return their result."""
        return await self.begin(finding)

    async def turn(self) -> None:
        """Let others have their turns."""
        await self.steps(_rest())

    def refuse_if_over(self) -> None:
        """Raise NotLive if the node has ended."""
        if self._is_over:
            raise NotLive(_OVER)

    def end(self) -> None:
        """Tell all who wait, and all who come, that the node has ended."""
        self._is_over = True
        for future in list(self._futures):
            if not future.done():
                future.set_exception(NotLive(_OVER))
                future.exception()  # nobody may wait any more

    def _future(self) -> "asyncio.Future[Any]":
        self.refuse_if_over()
        return asyncio.get_running_loop().create_future()

    def _note(self, future: "asyncio.Future[Any]") -> None:
        """Keep what somebody waits for: what is refused before nobody waits for, nor keeps."""
        if not future.done():
            self.refuse_if_over()
            self._futures.add(future)
            future.add_done_callback(self._futures.discard)


def _into(finding: Working[_Result], answer: Answer[_Result]) -> Steps:
    try:
        result = yield from finding
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - whoever waits is told, whatever it is
        answer.fail(error)
        return
    answer.set(result)


def _rest() -> Finding[None]:
    yield GO_ON
