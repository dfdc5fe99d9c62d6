"""How full queues were lately, as small lines: a bounded number of samples of queues shown."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from markupsafe import Markup

from orthia.broker.management.views import QueueView

MOST_QUEUES: Final = 500
"""Of which samples are kept; those that were not shown for longest are forgotten."""
SAMPLES: Final = 60
APART_MS: Final = 2_000
"""At least, so that many who look at once do not push out what is older."""
_WIDTH: Final = 60
_HEIGHT: Final = 16


class Sample(NamedTuple):
    """How full a queue was."""

    at_ms: int
    messages: int


class Depths:
    """Samples of the queues that somebody looks at; on the loop of HTTP."""

    def __init__(self) -> None:
        self._kept: dict[str, deque[Sample]] = {}
        """Those shown last at the end."""

    def seen(self, queues: Iterable[QueueView], at_ms: int) -> Mapping[str, Sequence[Sample]]:
        """Note how full queues are that are shown, and return what is known of each."""
        return {one.name: self._add(one.name, Sample(at_ms, one.messages)) for one in queues}

    def _add(self, name: str, sample: Sample) -> Sequence[Sample]:
        kept = self._kept.pop(name, None)
        if kept is None:
            kept = deque(maxlen=SAMPLES)
            if len(self._kept) >= MOST_QUEUES:
                del self._kept[next(iter(self._kept))]
        self._kept[name] = kept
        if not kept or sample.at_ms - kept[-1].at_ms >= APART_MS:
            kept.append(sample)
        return kept


def sparkline(samples: Sequence[Sample]) -> Markup:
    """Return samples as a line; nothing of fewer than two."""
    if len(samples) < 2:
        return Markup("")
    first, last = samples[0], samples[-1]
    low, high = _HEIGHT - 1, _HEIGHT - 2
    depths = [one.messages for one in samples]
    least, most = min(depths), max(depths)
    scale, seconds = max(1, most), max(1, last.at_ms - first.at_ms)
    if least == most:
        # The same whenever it is drawn: so nothing is sent of a page on which nothing happens.
        level = low - high * most // scale
        points, told = f"0,{level} {_WIDTH},{level}", f"{most:,} messages, as before"
    else:
        points = " ".join(
            f"{(at_ms - first.at_ms) * _WIDTH // seconds},{low - high * messages // scale}"
            for at_ms, messages in samples
        )
        told = (
            f"{least:,} to {most:,} messages in {seconds // 1000:,} s,"
            f" {first.messages:,} at the beginning"
        )
    # There is nothing to escape, which would take most of the time.
    return Markup(  # noqa: S704 - numbers
        f'<svg class="sparkline" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}"'
        f' height="{_HEIGHT}" role="img" aria-label="{told}"><title>{told}</title>'
        f'<polyline points="{points}"/></svg> '
    )
