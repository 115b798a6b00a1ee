"""The colours of deployments in the console."""

import re
from collections.abc import Mapping
from itertools import combinations
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.config.schema import Config, parse
from app.server.colours import COLOURS, deployment_colours
from tests.support.processes.project import ROOT


def configured(deployments: int, endpoints: Mapping[str, list[int]]) -> Config:
    """A configuration with these many deployments, of which each endpoint has some."""
    sections: dict[str, Any] = {
        "deployments": {f"d{number}": {"url": "http://127.0.0.1:9", "model": "m"} for number in range(deployments)},
        "endpoints": {
            name: {"tasks": ["chat"], "traffic": {f"d{number}": 100 * (place == 0) for place, number in enumerate(has)}}
            for name, has in endpoints.items()
        },
    }
    return parse(sections)


def test_the_style_sheet_has_every_colour() -> None:
    style = (ROOT / "app" / "pages" / "static" / "css" / "frame.css").read_text()
    assert sorted(map(int, re.findall(r"--arm-(\d+):", style))) == [*range(1, COLOURS + 1)]


def test_a_deployment_has_one_colour_and_differs_from_those_beside_it() -> None:
    colours = deployment_colours(configured(8, {"a": [0, 6], "b": [6, 1], "c": [7, 2]}))
    assert colours == {"d0": 1, "d1": 2, "d2": 3, "d3": 4, "d4": 5, "d5": 6, "d6": 3, "d7": 2}


def test_more_deployments_than_colours_have_one_all_the_same() -> None:
    colours = deployment_colours(configured(9, {"a": [*range(9)]}))
    assert sorted({*colours.values()}) == [*range(1, COLOURS + 1)]


ENDPOINTS = st.lists(st.lists(st.integers(0, 11), min_size=1, max_size=3, unique=True), min_size=1, max_size=4)


@given(ENDPOINTS)
def test_two_of_an_endpoint_differ_unless_they_are_beside_too_many_others(endpoints: list[list[int]]) -> None:
    config = configured(12, {f"e{number}": has for number, has in enumerate(endpoints)})
    colours = deployment_colours(config)
    for endpoint in config.endpoints.values():
        for pair in combinations(endpoint.traffic, 2):
            near = [other.traffic for other in config.endpoints.values() if {*pair} & {*other.traffic}]
            assert colours[pair[0]] != colours[pair[1]] or len({name for names in near for name in names}) > COLOURS
