"""A shadow's numbers for Prometheus."""

from collections.abc import Iterator

from app.experiments.series import Series
from app.experiments.shadows.report import ShadowReport

MIRROR_VALUE = "switchyard_mirror_value"


def shadow_series(report: ShadowReport) -> Iterator[Series]:
    """One sample for each number of each primary and bound; none for what has no value yet."""
    common = {"endpoint": report.endpoint, "deployment": report.shadow}
    for primary in report.primaries:
        for it in primary.values:
            for bound in ("estimate", "lower", "upper"):
                if (value := getattr(it.value, bound)) is not None:
                    labels = {"primary": primary.primary, "metric": it.metric, "bound": bound}
                    yield Series(MIRROR_VALUE, {**common, **labels}, value)
