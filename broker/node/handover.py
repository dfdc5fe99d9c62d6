"""Handing over by an operator: the live node releases its lease in good order, and waits."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from typing_extensions import override

from orthia.broker.management.abc import Handover
from orthia.broker.management.errors import NotPossible
from orthia.broker.management.views import HandoverView
from orthia.config.clock import monotonic_seconds
from orthia.database import StoreError
from orthia.nodemanager.abc import NodeManager
from orthia.nodemanager.pair import PairNodeManager

LONGEST_SECONDS: Final = 60.0
"""How long the next live node is waited for."""
_LOOK_SECONDS: Final = 0.05


class HandoverWish:
    """Whether an operator wants a node that serves to hand over; any thread.

    A wish that comes while it does not serve is none: whatever wakes the node then stops it.
    """

    def __init__(self, wake: threading.Event) -> None:
        """``wake`` ends the wait of a node that serves."""
        self._wake = wake
        self._lock = threading.Lock()
        self._is_serving = False
        self.is_there = False

    def begin(self) -> None:
        """Take wishes from here on."""
        with self._lock:
            self._is_serving = True

    def ask(self) -> None:
        """Wish it, and wake the node."""
        with self._lock:
            if self._is_serving:
                self.is_there = True
                self._wake.set()

    def end(self, *, is_interrupted: bool) -> None:
        """Take none any more, and forget one that came too late, unless the node is stopped."""
        with self._lock:
            self._is_serving = False
            if self.is_there and not is_interrupted:
                self._wake.clear()
            self.is_there = False


class Handovers(Handover):
    """Asks the node to hand over, and watches the locks until somebody else serves."""

    def __init__(self, ask: Callable[[], None], manager: Callable[[], NodeManager | None]) -> None:
        """``ask`` has the node hand over once it serves; any thread."""
        self._ask = ask
        self._manager = manager
        self._is_under_way = False

    @override
    async def hand_over(self) -> HandoverView:
        manager = self._manager()
        if not isinstance(manager, PairNodeManager):
            raise NotPossible("this node has no backup to hand over to: its store is its own")
        if self._is_under_way:
            raise NotPossible("this node is handing over already")
        self._is_under_way = True
        try:
            return await asyncio.to_thread(self._hand_over, manager)
        finally:
            self._is_under_way = False

    def _hand_over(self, manager: PairNodeManager[Any]) -> HandoverView:
        try:
            backup = manager.status().backup
        except StoreError as error:
            raise NotPossible(f"the locks cannot be read at this moment: {error}") from None
        if not backup.is_held or backup.holder_id == manager.holder_id:
            raise NotPossible(
                "no backup waits: nobody would serve; start one (`orthia status` shows it), or stop"
                " this node"
            )
        began = monotonic_seconds()
        self._ask()
        while monotonic_seconds() - began < LONGEST_SECONDS:
            time.sleep(_LOOK_SECONDS)
            try:
                status = manager.status()
            except StoreError:
                continue  # the next look may tell
            live = status.live
            is_others = live.is_held and live.holder_id != manager.holder_id
            # A backup that took over keeps the backup lock until it serves.
            if is_others and status.backup.holder_id != live.holder_id:
                return HandoverView(str(live.holder_id), monotonic_seconds() - began)
        return HandoverView(None, None)
