"""The dashboards as the files that Grafana reads."""

from collections.abc import Mapping

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from k8s.monitoring.dashboards import endpoint, engines, experiments, fleet, limits

_DASHBOARDS = {"endpoint": endpoint, "engines": engines, "experiments": experiments, "fleet": fleet, "limits": limits}


def files() -> Mapping[str, str]:
    """File name to JSON."""
    encoder = JSONEncoder(sort_keys=True, indent=2)
    found: dict[str, str] = {}
    for name, module in _DASHBOARDS.items():
        board = module.dashboard().build()
        for number, panel in enumerate(board.panels or [], 1):
            panel.id_val = number  # links to a panel name it
        found[f"{name}.json"] = encoder.encode(board) + "\n"
    return found
