"""The command line of a node that hands over at SIGUSR1, as an operator has it do."""

import asyncio
import signal
import threading
from typing import Any

from orthia.broker.cli import main
from orthia.broker.core.errors import BrokerError
from orthia.broker.management.abc import Handover
from orthia.broker.node.service import Service


def _hand_over(handover: Handover) -> None:
    try:
        done = asyncio.run(handover.hand_over())
    except BrokerError as error:
        print(f"not handed over: {error}", flush=True)  # noqa: T201 - the node's own output
        return
    print(f"handed over to {done.successor} in {done.unserved_seconds} s", flush=True)  # noqa: T201


def _begin(handover: Handover) -> None:
    threading.Thread(target=_hand_over, args=(handover,), daemon=True).start()


if __name__ == "__main__":
    service: Any = Service
    given = service.hand_over_by

    def hand_over_by(self: Service, handover: Handover) -> None:
        """Hand over at the signal, too."""
        given(self, handover)
        signal.signal(signal.SIGUSR1, lambda *_: _begin(handover))

    service.hand_over_by = hand_over_by
    main()
