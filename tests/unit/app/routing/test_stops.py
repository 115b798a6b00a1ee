"""A stop moves its deployment's traffic to control, and changes nothing else."""

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from app.routing.rules import effective, stops_of, with_share


class StoppedTraffic(NamedTuple):
    deployment: str
    control: str = "blue"
    endpoint: str = "chat"


TRAFFIC = {"blue": 30, "green": 60, "red": 10, "idle": 0}


def test_a_stopped_deployments_share_is_controls() -> None:
    stops = stops_of("chat", TRAFFIC, [StoppedTraffic("green")])
    assert stops == {"green": "blue"}
    assert effective(TRAFFIC, stops) == {"blue": 90, "green": 0, "red": 10, "idle": 0}
    both = stops_of("chat", TRAFFIC, [StoppedTraffic("green"), StoppedTraffic("red")])
    assert effective(TRAFFIC, both) == {"blue": 100, "green": 0, "red": 0, "idle": 0}
    assert effective(TRAFFIC, {"green": "idle"})["idle"] == 60, "the control has no share itself"


def test_a_stop_of_an_unknown_deployment_is_ignored() -> None:
    nothing = [
        StoppedTraffic("gone"),
        StoppedTraffic("green", "gone"),
        StoppedTraffic("green", endpoint="other"),
        StoppedTraffic("red", "red"),
    ]
    assert stops_of("chat", TRAFFIC, nothing) == {}
    assert stops_of("chat", TRAFFIC, [StoppedTraffic("green"), StoppedTraffic("red", "green")]) == {"green": "blue"}


def test_a_stop_of_a_deployment_without_a_share_changes_nothing() -> None:
    stops = stops_of("chat", TRAFFIC, [StoppedTraffic("idle")])
    assert stops == {"idle": "blue"}
    assert with_share(TRAFFIC, stops) == {}
    assert effective(TRAFFIC, stops) == TRAFFIC


names = st.sampled_from("abcdef")


@given(
    st.dictionaries(names, st.integers(0, 100), min_size=1),
    st.lists(st.builds(StoppedTraffic, names, names, st.sampled_from(["chat", "other"])), max_size=6),
)
def test_stops_take_away_and_no_percent_is_lost(traffic: dict[str, int], stops: list[StoppedTraffic]) -> None:
    found = stops_of("chat", traffic, stops)
    weights = effective(traffic, found)
    assert sum(weights.values()) == sum(traffic.values())
    assert all(weights[deployment] == 0 for deployment in found)
    grown = {name for name in traffic if weights[name] > traffic[name]}
    assert grown <= set(found.values()), "only a control gets more"
    assert effective(weights, found) == weights, "applied twice"
    assert stops_of("chat", traffic, [*stops, *stops]) == found
