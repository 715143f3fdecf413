"""The histogram of plain numbers says what the client library's own would."""

from __future__ import annotations

import random

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client import Histogram as LibraryHistogram
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from backend.histogram import Histogram

BOUNDS = (0.001, 0.0025, 0.1, 1, 10)


class Told:
    def __init__(self, histogram: Histogram) -> None:
        self.histogram = histogram

    def collect(self) -> list[Metric]:
        return [HistogramMetricFamily("h", "Help.", *self.histogram.read())]


def test_it_says_what_the_library_says() -> None:
    chance = random.Random(0)
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    mine, reference = Histogram(BOUNDS), LibraryHistogram("h", "Help.", registry=theirs, buckets=BOUNDS)
    ours.register(Told(mine))
    for value in (*BOUNDS, 0.0, 99.0, *(chance.expovariate(1.0) for _ in range(500))):
        mine.observe(value)
        reference.observe(value)
    lines = [line for line in generate_latest(theirs).splitlines() if b"h_created" not in line]
    assert generate_latest(ours).splitlines() == lines
