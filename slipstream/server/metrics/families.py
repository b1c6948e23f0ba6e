"""Families: metrics made anew at each scrape, from counts that are kept anyway, with the labels that all have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

LABELS = ("model_name", "engine")
ENGINE = "0"


class Families:
    """Makes families labelled with one model and one engine."""

    def __init__(self, model_name: str) -> None:
        self._labels = [model_name, ENGINE]

    def gauge(self, name: str, text: str, value: float) -> Metric:
        """One value that rises and falls."""
        family = GaugeMetricFamily(name, text, labels=LABELS)
        family.add_metric(self._labels, value)
        return family

    def gauge_by(self, name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
        """Such a value per value of one more label."""
        family = GaugeMetricFamily(name, text, labels=[*LABELS, label])
        for key, value in values.items():
            family.add_metric([*self._labels, key], value)
        return family

    def counter(self, name: str, text: str, value: float) -> Metric:
        """One value that only grows; exported as `<name>_total`."""
        family = CounterMetricFamily(name, text, labels=LABELS)
        family.add_metric(self._labels, value)
        return family

    def counter_by(
        self, name: str, text: str, labels: Sequence[str], values: Iterable[tuple[Sequence[str], float]]
    ) -> Metric:
        """Such a value per combination of more labels."""
        family = CounterMetricFamily(name, text, labels=[*LABELS, *labels])
        for keys, value in values:
            family.add_metric([*self._labels, *keys], value)
        return family

    def histogram_by(
        self,
        name: str,
        text: str,
        labels: Sequence[str],
        edges: Sequence[float],
        values: Iterable[tuple[Sequence[str], Sequence[int], float]],
    ) -> Metric:
        """Histograms from counts per bucket (one more than edges) and the sum of what was observed."""
        family = HistogramMetricFamily(name, text, labels=[*LABELS, *labels])
        for keys, counts, total in values:
            buckets, below = [], 0
            for edge, count in zip((*map(str, map(float, edges)), "+Inf"), counts, strict=True):
                below += count
                buckets.append((edge, float(below)))
            family.add_metric([*self._labels, *keys], buckets, total)
        return family


def by_position(counts: Sequence[int]) -> list[tuple[tuple[str], int]]:
    """Values of the label `position`, 0 for the first draft of a block."""
    return [((str(position),), count) for position, count in enumerate(counts)]
