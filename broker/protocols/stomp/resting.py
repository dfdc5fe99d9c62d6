"""What a connection does in steps of one frame, and what those wait for at present."""

from collections.abc import Generator

from orthia.broker.core.slices import Steps, Wait


class Resting:
    """The steps of the frame that is being handled."""

    __slots__ = ("_steps", "_wait")

    def __init__(self) -> None:
        self._steps: Steps | None = None
        self._wait: Wait | None = None
        """What they wait for, if that may take long."""

    def through(self, steps: Steps) -> Steps:
        """Do steps that may wait for others; ``end`` ends the wait."""
        for rest in steps:
            if isinstance(rest, Wait):
                self._steps, self._wait = steps, rest
            yield rest
            self._steps = self._wait = None

    def end(self) -> None:
        """Go on no more with what waits for others, and be kept by them no longer."""
        steps, wait = self._steps, self._wait
        if wait is not None:
            self._steps = self._wait = None
            wait.drop()
            if isinstance(steps, Generator):
                steps.close()
