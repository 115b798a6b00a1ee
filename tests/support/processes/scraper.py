"""A minimal Prometheus server: it discovers targets over HTTP, scrapes them, and keeps every series."""

from collections.abc import Mapping
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

Series = tuple[str, tuple[tuple[str, str], ...]]
"""A name and its labels."""


class Scraper:
    """Scrapes what `url`'s service discovery lists. `series` has all scraped values, the oldest first."""

    def __init__(self, url: str, headers: Mapping[str, str] | None = None) -> None:
        self._url, self._headers = url, dict(headers or {})
        self.series: dict[Series, list[float]] = {}

    def targets(self) -> list[dict[str, Any]]:
        answer = self._get(f"{self._url}/metrics/targets")
        assert answer.headers["content-type"] == "application/json"
        groups: list[dict[str, Any]] = answer.json()
        return groups

    def scrape(self) -> dict[Series, float]:
        """Every sample of one round."""
        values: dict[Series, float] = {}
        for target in self.targets():
            (address,), labels = target["targets"], target["labels"]
            answer = self._get(f"http://{address}{labels['__metrics_path__']}")
            assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
            of_target = {name: value for name, value in labels.items() if not name.startswith("__")}
            for family in text_string_to_metric_families(answer.text):
                for sample in family.samples:
                    key = sample.name, tuple(sorted({**sample.labels, **of_target}.items()))
                    assert key not in values, "two targets have the same series"
                    values[key] = sample.value
        for key, value in values.items():
            self.series.setdefault(key, []).append(value)
        return values

    def increase(self, name: str) -> float:
        """`sum(increase(name))` over all that was scraped: a counter that falls was reset, as in Prometheus, and one
        that appears later has started at 0."""
        total = 0.0
        for (metric, _), values in self.series.items():
            if metric == name:
                total += sum(b - a if b >= a else b for a, b in zip([0.0, *values], values, strict=False))
        return total

    def _get(self, url: str) -> httpx.Response:
        return httpx.get(url, headers=self._headers, timeout=30).raise_for_status()
