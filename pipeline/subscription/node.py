"""The live node, which lets the stream alone read a queue and acknowledges for it.

It is asked over the API, by the addresses of both nodes. All that is asked may be asked again:
during a takeover, and where an answer was lost.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, Final, TypeVar

from orthia.broker.client.management import (
    AnswerLost,
    ManagementAddress,
    ManagementClient,
    ManagementRefused,
    ManagementUnreachable,
)
from orthia.pipeline.errors import StreamDetached

_Result = TypeVar("_Result")
_FIRST_PAUSE_SECONDS: Final = 0.05
_PAUSE_SECONDS: Final = 1.0
_BUSY: Final = (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS)


@dataclass(frozen=True)
class NodeReference:
    """Where the nodes are and who asks; it has no password, and can be pickled."""

    addresses: Sequence[ManagementAddress]
    user: str | None
    password_variable: str
    patience_seconds: int
    """How long to ask until some node answers that is live."""


class LiveNode:
    """Asks the live node, with patience."""

    def __init__(self, reference: NodeReference) -> None:
        password = os.environ.get(reference.password_variable)
        self._client = ManagementClient(reference.addresses, reference.user, password)
        self._patience = reference.patience_seconds

    def attach(self, queue: str, stream: str) -> None:
        """Let ``stream`` alone read a queue, if nobody else does; raises ManagementError."""
        body = {"stream": stream}
        self._asking(lambda: self._client.post("queues", queue, "stream", body=body))

    def check(self, queue: str, stream: str) -> None:
        """Raise StreamDetached unless ``stream`` reads a queue; ManagementError."""
        try:
            found = self._asking(lambda: self._client.get("queues", queue, "stream"))
        except ManagementRefused as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            raise StreamDetached(_detached(queue, stream, str(error))) from None
        if found["id"] != stream:
            by = f"stream {found['id']!r} of user {found['user']!r} reads it"
            raise StreamDetached(_detached(queue, stream, by))

    def acknowledge(self, queue: str, stream: str, up_to: int) -> None:
        """Acknowledge the stored messages of a queue up to a seq, and wait until that is stored.

        Raises StreamDetached, ManagementError.
        """
        pauses = _Pauses(self._patience)
        while True:
            self.check(queue, stream)
            if self._acknowledged(queue, stream, up_to):
                return
            if not pauses.pause():
                raise ManagementRefused(
                    HTTPStatus.CONFLICT,
                    f"queue {queue!r}: the live node did not acknowledge up to {up_to} within"
                    f" {self._patience} s: `orthia job list` shows what holds it up",
                )

    def _acknowledged(self, queue: str, stream: str, up_to: int) -> bool:
        """Return whether a job acknowledged all; False if another runs, or the node ended."""
        body = {"kind": "acknowledge", "stream": stream, "up-to": up_to}
        try:
            job = self._asking(lambda: self._client.post("queues", queue, "jobs", body=body))
        except ManagementRefused as error:
            if error.status == HTTPStatus.CONFLICT:
                return False
            raise
        pauses = _Pauses(None)
        while job["state"] == "running":
            pauses.pause()
            try:
                job = self._asking(partial(self._client.get, "jobs", job["id"]))
            except ManagementRefused as error:
                if error.status == HTTPStatus.NOT_FOUND:
                    return False  # another node is live, and knows nothing of it
                raise
        if job["state"] == "failed":
            raise ManagementRefused(HTTPStatus.CONFLICT, f"queue {queue!r}: {job['reason']}")
        return bool(job["state"] == "done")

    def messages(self, queue: str) -> int | None:
        """Return how many messages a queue has; None if no live node answers at once."""
        try:
            return int(self._client.get("queues", queue)["messages"])
        except (ManagementUnreachable, ManagementRefused):
            return None

    def _asking(self, ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        pauses = _Pauses(self._patience)
        while True:
            try:
                return ask()
            except (AnswerLost, ManagementUnreachable):
                if not pauses.pause():
                    raise
            except ManagementRefused as error:
                if error.status not in _BUSY or not pauses.pause():
                    raise


class _Pauses:
    """Pauses between attempts, each longer, until the patience is over."""

    def __init__(self, patience_seconds: float | None) -> None:
        self._until = None if patience_seconds is None else time.monotonic() + patience_seconds
        self._seconds = _FIRST_PAUSE_SECONDS

    def pause(self) -> bool:
        """Wait, and return whether there is time for another attempt."""
        if self._until is not None and time.monotonic() + self._seconds > self._until:
            return False
        time.sleep(self._seconds)
        self._seconds = min(2 * self._seconds, _PAUSE_SECONDS)
        return True


def _detached(queue: str, stream: str, why: str) -> str:
    return (
        f"queue {queue!r} is not read by the stream {stream!r} of this checkpoint any more: {why}."
        " Consumers may have got messages that it wrote and had not acknowledged. To go on all the"
        " same, set the option onDetached to continue"
    )
