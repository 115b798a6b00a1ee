"""The dashboards as the files that Grafana reads."""

from collections.abc import Mapping

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from k8s.monitoring.dashboards import endpoint, engines, experiments, fleet, limits

_DASHBOARDS = {"endpoint": endpoint, "engines": engines, "experiments": experiments, "fleet": fleet, "limits": limits}


def files() -> Mapping[str, str]:
    """File name to JSON."""
    encoder = JSONEncoder(sort_keys=True, indent=2)
    return {f"{name}.json": encoder.encode(it.dashboard().build()) + "\n" for name, it in _DASHBOARDS.items()}
