"""The parts that dashboards share: the data source, their variables, and panels from queries."""

from collections.abc import Sequence
from typing import NamedTuple

from grafana_foundation_sdk.builders import common, prometheus, stat, timeseries
from grafana_foundation_sdk.builders.dashboard import Dashboard, DatasourceVariable, QueryVariable, Row
from grafana_foundation_sdk.models.common import LegendDisplayMode, LegendPlacement, SortOrder, TooltipDisplayMode
from grafana_foundation_sdk.models.dashboard import DataSourceRef, VariableRefresh

DATASOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
RATE = "[$__rate_interval]"
"""Long enough for the scrape interval, whatever the zoom."""

SECONDS, SHARE, PER_SECOND, TOKENS_PER_SECOND, BYTES, COUNT = "s", "percentunit", "reqps", "short", "bytes", "short"

_WIDTH, _HEIGHT = 8, 8


class Query(NamedTuple):
    """A PromQL expression, and the legend of its series."""

    expr: str
    legend: str


def board(title: str, uid: str, description: str) -> Dashboard:
    """An empty dashboard of the last three hours, with a choice of the data source."""
    return (
        Dashboard(f"Switchyard / {title}")
        .uid(f"switchyard-{uid}")
        .description(description)
        .tags(["switchyard"])
        .refresh("30s")
        .time("now-3h", "now")
        .with_variable(DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )


class Choice(NamedTuple):
    """The variable of a dashboard: a label whose values its reader chooses, and a metric that has all of them."""

    label: str
    metric: str

    def variable(self) -> QueryVariable:
        """The choice; all values at first."""
        return (
            QueryVariable(self.label)
            .label(self.label.capitalize())
            .datasource(DATASOURCE)
            .query(f"label_values({self.metric}, {self.label})")
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .multi(True)
            .include_all(True)
            .all_value(".*")
        )

    def where(self, *more: str) -> str:
        """The selector of what was chosen, and of `more` labels."""
        return "{" + ", ".join([f'{self.label}=~"${self.label}"', *more]) + "}"


ENDPOINT = Choice("endpoint", "switchyard_requests_total")
APPLICATION = Choice("application", "vllm:num_requests_running")
EXPERIMENT = Choice("experiment", "switchyard_experiment_units")


def row(title: str) -> Row:
    """A heading; the panels that follow stand below it."""
    return Row(title)


def plot(title: str, unit: str, description: str, *queries: Query, highest: float | None = None) -> timeseries.Panel:
    """Series over time, from 0. `description` says how to read them. Shares stand between 0 and 1."""
    panel = _plot(title, unit, description, queries).min(0)
    return panel if highest is None else panel.max(highest)


def signed_plot(title: str, unit: str, description: str, *queries: Query) -> timeseries.Panel:
    """Series that may be negative, around 0."""
    return _plot(title, unit, description, queries).axis_centered_zero(True)


def _plot(title: str, unit: str, description: str, queries: Sequence[Query]) -> timeseries.Panel:
    panel = (
        timeseries.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .unit(unit)
        .span(_WIDTH)
        .height(_HEIGHT)
        .fill_opacity(5)
        .legend(
            common.VizLegendOptions()
            .display_mode(LegendDisplayMode.LIST)
            .placement(LegendPlacement.BOTTOM)
            .show_legend(True)
        )
        .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING))
    )
    for query in _with_ids(queries):
        panel = panel.with_target(query)
    return panel


def number(title: str, unit: str, description: str, query: Query) -> stat.Panel:
    """The present value of one or a few series."""
    (target,) = _with_ids([query])
    return (
        stat.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .unit(unit)
        .span(_WIDTH // 2)
        .height(_HEIGHT // 2)
        .with_target(target)
    )


def quantiles(metric: str, by: str, where: str = "") -> list[Query]:
    """The median and the 95th percentile of a histogram, by a label."""
    return [
        Query(
            f"histogram_quantile({q}, sum by (le, {by}) (rate({metric}_bucket{where}{RATE})))", f"{{{{{by}}}}} {name}"
        )
        for q, name in ((0.5, "p50"), (0.95, "p95"))
    ]


def rates(metric: str, by: str, where: str = "") -> Query:
    """The increase of a counter per second, by a label."""
    return Query(f"sum by ({by}) (rate({metric}{where}{RATE}))", f"{{{{{by}}}}}")


def _with_ids(queries: Sequence[Query]) -> list[prometheus.Dataquery]:
    return [
        prometheus.Dataquery().ref_id(chr(ord("A") + number)).expr(query.expr).legend_format(query.legend)
        for number, query in enumerate(queries)
    ]
