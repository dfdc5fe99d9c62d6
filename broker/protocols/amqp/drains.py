# mypyc compiles this module.
"""The drains of one client that cannot be answered yet: its links are looked at again, in turns.

There is one timer for all links of a connection, and the looks are work of the client like any
other: it may ask for drains on all its links, as often as it likes.
"""

from typing import Final, Protocol

from orthia.broker.core.broker import Broker
from orthia.broker.core.slices import GO_ON, Steps, Usage

_FIRST_LOOK_MS: Final = 1
_LONGEST_LOOK_MS: Final = 50
"""After how long it is looked again whether a drain can be answered, at first and at last."""
_MOST_DOUBLINGS: Final = 6
_LONGEST_DRAIN: Final = 100
"""After how many looks it is answered in any case."""


class _Draining(Protocol):
    """A link, as far as its drain waits."""

    def answer_drain(self, *, in_any_case: bool) -> bool:
        """Answer it if that can be; return whether there is nothing to answer any more."""


class Drains:
    """The links whose drains wait, with how often each was looked at."""

    __slots__ = ("_core", "_is_due", "_usage", "_waiting")

    def __init__(self, core: Broker, usage: Usage) -> None:
        """``usage`` is of the client whose links they are."""
        self._core = core
        self._usage = usage
        self._waiting: dict[_Draining, int] = {}
        self._is_due = False

    def ask(self, link: _Draining) -> None:
        """Answer a drain, at once or later."""
        if link.answer_drain(in_any_case=False):
            self._waiting.pop(link, None)
            return
        self._waiting.setdefault(link, 0)
        self._look_later()

    def _look_later(self) -> None:
        if not self._is_due:
            self._is_due = True
            looks = min(min(self._waiting.values()), _MOST_DOUBLINGS)
            after_ms = min(_FIRST_LOOK_MS << looks, _LONGEST_LOOK_MS)
            self._core.call_later(after_ms, self._look)

    def _look(self) -> None:
        self._core.slices.run(self._looking(), self._usage)

    def _looking(self) -> Steps:
        for link in list(self._waiting):
            looks = self._waiting.get(link)
            if looks is None:
                continue
            if link.answer_drain(in_any_case=looks >= _LONGEST_DRAIN):
                self._waiting.pop(link, None)
            else:
                self._waiting[link] = looks + 1
            yield GO_ON
        self._is_due = False
        if self._waiting:
            self._look_later()
