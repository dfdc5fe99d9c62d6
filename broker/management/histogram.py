"""A histogram for very frequent observations: one thread counts, any thread reads.

The client library's own histogram takes a lock for each of the three numbers that an observation
changes, and looks at each bucket in turn.
"""

import time
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector


class LoopHistogram(Collector):
    """A histogram whose observations are counted on one thread only."""

    def __init__(
        self,
        name: str,
        documentation: str,
        *,
        buckets: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        """``buckets`` are the upper bounds, ascending; a last bucket has no bound."""
        self._name = name
        self._documentation = documentation
        self._bounds = tuple(buckets)
        self._counts = [0] * (len(buckets) + 1)
        self._sum = 0.0
        self._created = time.time()
        registry.register(self)

    def observe(self, amount: float) -> None:
        """Count an observation."""
        self._counts[bisect_left(self._bounds, amount)] += 1
        self._sum += amount

    def describe(self) -> Iterable[Metric]:
        """Return the metric without values."""
        return [HistogramMetricFamily(self._name, self._documentation)]

    def collect(self) -> Iterable[Metric]:
        """Return the metric with its values; each bucket includes those below it."""
        names = [*(repr(float(bound)) for bound in self._bounds), "+Inf"]
        counts = accumulate(self._counts.copy())
        family = HistogramMetricFamily(
            self._name,
            self._documentation,
            buckets=list(zip(names, counts, strict=True)),
            sum_value=self._sum,
        )
        family.add_sample(f"{self._name}_created", {}, self._created)
        return [family]
