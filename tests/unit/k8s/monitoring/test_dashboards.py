"""The dashboards match the code, and Prometheus understands each of their queries."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from k8s.monitoring.dashboards.files import files
from tests.support.kubernetes.overlays import made
from tests.support.processes.project import ROOT
from tests.support.processes.promtool import promtool

FOLDER = ROOT / "k8s/monitoring/grafana"
BOARDS: dict[str, dict[str, Any]] = {file.name: json.loads(file.read_text()) for file in FOLDER.glob("*.json")}


def panels(board: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def queries() -> Iterator[str]:
    for board in BOARDS.values():
        for panel in panels(board):
            yield from (target["expr"] for target in panel["targets"])


def as_rules(expressions: list[str], file: Path) -> Path:
    """A file of recording rules: Grafana's variables have values there."""
    rules = [
        {"record": f"dashboards:query{number}", "expr": re.sub(r"\$__rate_interval", "5m", expr)}
        for number, expr in enumerate(expressions)
    ]
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboards", "rules": rules}]}))
    return file


def test_the_files_are_what_the_code_makes() -> None:
    """`make monitoring` writes them."""
    assert {file.name: file.read_text() for file in FOLDER.iterdir()} == files()


def test_prometheus_understands_every_query(tmp_path: Path) -> None:
    queried = list(queries())
    well, printed = promtool("check", "rules", as_rules(queried, tmp_path / "queries.yaml"))
    assert well, printed
    assert f"{len(queried)} rules found" in printed
    assert not promtool("check", "rules", as_rules(["sum by (endpoint (x)"], tmp_path / "broken.yaml"))[0]


@pytest.mark.parametrize("name", BOARDS)
def test_panels_have_their_own_ids_titles_and_the_chosen_data_source(name: str) -> None:
    board = BOARDS[name]
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    titles = [panel["title"] for panel in panels(board)]
    assert len(set(titles)) == len(titles)
    assert {panel["datasource"]["uid"] for panel in panels(board)} == {"${datasource}"}
    used = set(re.findall(r"\$(\w+)", json.dumps(panels(board)))) - {"__rate_interval"}
    assert used <= {variable["name"] for variable in board["templating"]["list"]}


def test_uids_differ() -> None:
    assert len({board["uid"] for board in BOARDS.values()}) == len(BOARDS) == 5


OURS = "namespace='switchyard',release='switchyard'"


def delivered() -> dict[str, str]:
    """File name to JSON, as the chart has them."""
    (config_map,) = (
        manifest
        for manifest in made(monitoring={"enabled": True})
        if manifest["metadata"]["name"] == "switchyard-dashboards"
    )
    assert config_map["metadata"]["labels"] == {"grafana_dashboard": "1"}
    data: dict[str, str] = config_map["data"]
    return data


def test_the_chart_delivers_every_dashboard() -> None:
    plain = {
        name: json.loads(text.replace(f"{OURS},", "").replace(f"{{{OURS}}}", "")) for name, text in delivered().items()
    }
    of_release = {name: {key: plain[name][key] for key in ("uid", "title")} for name in plain}
    assert plain == {name: {**board, **of_release[name]} for name, board in BOARDS.items()}
    assert all(board["uid"] in of_release[name]["uid"] for name, board in BOARDS.items())


def of_everyone(expr: str) -> list[str]:
    """The series in a query that are not the release's alone."""
    bare = re.sub(r"\b(by|on|group_left|group_right)\s*\([^)]*\)|\[[^]]*\]", "", expr)
    bare = re.sub(r"label_values\((.*), \w+\)", r"\1", bare)
    series = re.findall(r"([a-zA-Z_:][\w:]*)(?![\w:]|\s*\()(\{[^}]*\})?", re.sub(r"(?<=[={~,! ])\"[^\"]*\"", "", bare))
    words = {"or", "and", "unless", "on", "group_left", "bool"}
    return [name for name, labels in series if name not in words and OURS not in labels]


def test_a_dashboard_shows_its_own_release_alone() -> None:
    """Several releases may be in one Prometheus."""
    for text in delivered().values():
        board = json.loads(text)
        asked = [target["expr"] for panel in panels(board) for target in panel["targets"]]
        asked += [variable["query"] for variable in board["templating"]["list"] if variable["type"] == "query"]
        assert [name for expr in asked for name in of_everyone(expr)] == []
    everything = [expr for expr in queries() if "vector" not in expr]
    assert all(of_everyone(expr) for expr in everything), "as they are without the chart"


def test_prometheus_understands_the_charts_queries(tmp_path: Path) -> None:
    queried = [
        target["expr"]
        for text in delivered().values()
        for panel in panels(json.loads(text))
        for target in panel["targets"]
    ]
    assert promtool("check", "rules", as_rules(queried, tmp_path / "queries.yaml"))[0]
