"""The deployment that serves a request: the order of the rules, the split's accuracy, and stickiness.

The keys that a router saw last.
"""

from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from app.config.schema import Config, Endpoint, Sticky, parse
from app.errors import BadRequest, NotFound
from app.routing.traffic import MOST_KEYS, Assignment, Decision, RecentKeys, assign, rendezvous, weighted


def config(**chat: Any) -> Config:
    endpoint = {"tasks": ["chat", "completions"], "traffic": {"blue": 90, "green": 10, "red": 0}, **chat}
    names = ("blue", "green", "red", "lone")
    return parse(
        {
            "endpoints": {
                "chat": endpoint,
                "embed": {"tasks": ["embeddings"], "traffic": {"mini": 100}},
            },
            "deployments": {
                **{name: {"app": name, "model": "m"} for name in names},
                "mini": {"app": "mini", "model": "e", "tasks": ["embeddings"]},
            },
            "defaults": {"chat": "chat"},
        }
    )


def ask(
    configuration: Config,
    model: str | None = "chat",
    *,
    header: str | None = None,
    key: str | None = None,
    random: Random | None = None,
) -> Assignment:
    return assign(
        configuration,
        task="chat",
        model=model,
        deployment=header,
        sticky_key=lambda sticky: key,
        random=random or Random(1),
    )


def test_the_split_is_accurate_over_20000_assignments() -> None:
    random = Random(20)
    counts = Counter(weighted({"a": 70, "b": 25, "c": 5, "d": 0}, random) for _ in range(20_000))
    assert counts["d"] == 0
    assert chisquare([counts["a"], counts["b"], counts["c"]], [14_000, 5_000, 1_000]).pvalue > 0.001


def test_sticky_keys_split_accurately_over_20000_keys() -> None:
    counts = Counter(rendezvous(f"session-{i}", {"a": 70, "b": 25, "c": 5, "d": 0}) for i in range(20_000))
    assert counts["d"] == 0
    assert chisquare([counts["a"], counts["b"], counts["c"]], [14_000, 5_000, 1_000]).pvalue > 0.001


traffics = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 100), min_size=1).filter(
    lambda traffic: sum(traffic.values()) > 0
)


@given(st.text(), traffics)
def test_the_same_key_always_lands_on_the_same_deployment_with_traffic(key: str, traffic: dict[str, int]) -> None:
    chosen = rendezvous(key, traffic)
    assert traffic[chosen] > 0
    assert rendezvous(key, dict(reversed(traffic.items()))) == chosen


@given(st.text(), traffics, st.sampled_from("abcdef"), st.integers(0, 100))
def test_a_weight_change_moves_a_key_only_from_or_to_the_changed_name(
    key: str, traffic: dict[str, int], changed: str, weight: int
) -> None:
    after = {**traffic, changed: weight}
    if sum(after.values()) == 0:
        return
    old, new = rendezvous(key, traffic), rendezvous(key, after)
    assert old == new or changed in (old, new)


def test_moving_ten_percent_moves_ten_percent_of_the_keys() -> None:
    keys = [f"user-{i}" for i in range(5_000)]
    before, after = {"blue": 90, "green": 10}, {"blue": 80, "green": 20}
    moved = [key for key in keys if rendezvous(key, before) != rendezvous(key, after)]
    assert all(rendezvous(key, after) == "green" for key in moved)
    assert 0.08 < len(moved) / len(keys) < 0.135


def test_the_header_wins_over_stickiness_and_traffic() -> None:
    sticky = config(sticky={"by": "header", "name": "x-session-id"})
    assert ask(sticky, header="red", key="k") == Assignment("chat", "red", "header")


def test_a_sticky_key_wins_over_traffic() -> None:
    sticky = config(sticky={"by": "user"})
    chosen = {ask(sticky, key="k", random=Random(i)).deployment for i in range(50)}
    assert len(chosen) == 1
    assert ask(sticky, key="k").reason == "sticky"


def test_an_endpoints_rules_win_over_the_sticky_key_and_the_header_over_both() -> None:
    def decide(endpoint: str, key: str | None) -> Decision | None:
        rules = (endpoint, key) == ("chat", "ann")
        return Decision("red", "override", {"blue": 40, "green": 60, "red": 0}) if rules else None

    def calls(key: str | None, header: str | None = None) -> Assignment:
        return assign(
            config(sticky={"by": "user"}),
            task="chat",
            model="chat",
            deployment=header,
            sticky_key=lambda sticky: key,
            random=Random(1),
            decide=decide,
        )

    assert calls("ann") == Assignment("chat", "red", "override", ["green", "blue"], "ann")
    assert calls("ann", header="green") == Assignment("chat", "green", "header")
    assert calls("bob").reason == "sticky"
    assert calls(None).reason == "traffic"


def test_without_a_key_a_sticky_endpoint_splits_by_traffic() -> None:
    assert ask(config(sticky={"by": "user"})).reason == "traffic"


def test_an_endpoint_without_sticky_never_reads_a_key() -> None:
    def refuse(sticky: Sticky) -> str:
        raise AssertionError

    assignment = assign(config(), task="chat", model="chat", deployment=None, sticky_key=refuse, random=Random(1))
    assert assignment.reason == "traffic"


def test_a_header_that_names_no_deployment_of_the_endpoint_lists_the_valid_ones() -> None:
    with pytest.raises(NotFound, match="blue, green, red") as raised:
        ask(config(), header="lone")
    assert raised.value.param == "azureml-model-deployment"


def test_a_deployment_named_as_the_model_serves_exactly() -> None:
    assert ask(config(), "green") == Assignment("chat", "green", "model")
    assert ask(config(), "lone") == Assignment("lone", "lone", "model")
    assert ask(config(), "green", header="green").deployment == "green"
    with pytest.raises(NotFound, match="available deployments: green"):
        ask(config(), "green", header="blue")


def test_no_model_means_the_tasks_default() -> None:
    assert ask(config(), None).endpoint == "chat"
    with pytest.raises(BadRequest, match="no default for completions"):
        assign(config(), task="completions", model=None, deployment=None, sticky_key=lambda s: None, random=Random(1))


@pytest.mark.parametrize("model", ["nobody", ""])
def test_an_unknown_name_is_not_found(model: str) -> None:
    with pytest.raises(NotFound, match="chat, embed") as raised:
        ask(config(), model)
    assert raised.value.param == "model"


@pytest.mark.parametrize("model", ["embed", "mini"])
def test_an_unsupported_task_is_rejected(model: str) -> None:
    with pytest.raises(BadRequest, match="does not support chat; it supports embeddings"):
        ask(config(), model)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({}, ["green"], id="default: the others with traffic"),
        pytest.param({"fallback": ["red", "blue"]}, ["red"], id="as declared, without the chosen one"),
        pytest.param({"fallback": []}, [], id="no one"),
        pytest.param({"traffic": {"blue": 100, "green": 0}}, [], id="no other has traffic"),
    ],
)
def test_the_alternatives_are_the_fallback_or_the_other_deployments(
    fields: dict[str, Any], expected: list[str]
) -> None:
    assignment = ask(config(**fields), random=_Fixed(0.0))
    assert assignment.deployment == "blue"
    assert list(assignment.alternatives) == expected


class _Fixed(Random):
    def __init__(self, value: float) -> None:
        super().__init__()
        self._value = value

    def random(self) -> float:
        return self._value


@pytest.mark.parametrize(("value", "expected"), [(0.0, "a"), (0.4999, "a"), (0.5, "b"), (1 - 2**-53, "b")])
def test_the_whole_range_of_draws_is_covered(value: float, expected: str) -> None:
    assert weighted({"z": 0, "a": 50, "b": 50, "y": 0}, _Fixed(value)) == expected


def test_a_directly_named_deployment_counts_under_its_endpoint() -> None:
    behind = config(fallback=["lone"])
    assert [ask(behind, name).endpoint for name in ("blue", "red", "lone")] == ["chat", "chat", "chat"]
    assert ask(config(), "lone").endpoint == "lone"


def named(**models: str) -> Config:
    """Deployments with these engines' names; `a` and `b` are behind `chat`, `c` behind `other`, `d` behind none."""
    traffic = {"chat": {"a": 50, "b": 50}, "other": {"c": 100}}
    return parse(
        {
            "endpoints": {name: {"tasks": ["chat"], "traffic": split} for name, split in traffic.items()},
            "deployments": {name: {"app": name, "model": models.get(name, f"m-{name}")} for name in "abcd"},
        }
    )


@pytest.mark.parametrize(
    ("models", "endpoint", "deployments"),
    [
        ({"a": "m"}, "chat", {"a"}),
        ({"d": "m"}, "d", {"d"}),
        ({"a": "m", "b": "m"}, "chat", {"a", "b"}),
        ({"a": "chat"}, "chat", {"a", "b"}),
    ],
)
def test_an_engines_name_for_its_model_is_taken_where_it_is_unambiguous(
    models: dict[str, str], endpoint: str, deployments: set[str]
) -> None:
    (model,) = set(models.values())
    random = Random(3)
    assigned = [ask(named(**models), model, random=random) for _ in range(30)]
    assert {assignment.deployment for assignment in assigned} == deployments
    assert {assignment.endpoint for assignment in assigned} == {endpoint}


@pytest.mark.parametrize("models", [{"a": "m", "c": "m"}, {"a": "m", "d": "m"}, {"a": "m", "b": "m", "c": "m"}])
def test_an_ambiguous_name_of_engines_does_not_exist(models: dict[str, str]) -> None:
    with pytest.raises(NotFound):
        ask(named(**models), "m")


def test_below_an_endpoint_an_engines_name_is_unambiguous_among_its_deployments() -> None:
    assert ask(named(a="m", c="m"), "chat", header="m").deployment == "a"
    assert {ask(named(a="m", b="m"), "chat", header="m", random=Random(n)).deployment for n in range(30)} == {"a", "b"}
    with pytest.raises(NotFound):
        ask(named(c="m"), "chat", header="m")
    with pytest.raises(NotFound):
        ask(named(), "chat", header="chat")


def sticky_endpoint(**sticky: Any) -> Endpoint:
    return Endpoint.model_validate({"tasks": ["chat"], "traffic": {"blue": 100}, "sticky": sticky or None})


def test_different_keys_are_kept_the_latest_last() -> None:
    keys = RecentKeys()
    for key in ("ann", "bob", "ann"):
        keys.saw("chat", key)
    keys.saw("other", "cy")
    assert (keys.of("chat"), keys.of("other"), keys.of("third")) == (["bob", "ann"], ["cy"], [])


def test_the_oldest_and_the_very_long_ones_are_dropped() -> None:
    keys = RecentKeys()
    for number in range(MOST_KEYS + 10):
        keys.saw("chat", str(number))
    keys.saw("chat", "x" * 1025)
    assert keys.of("chat") == [str(number) for number in range(10, MOST_KEYS + 10)]


def test_another_kind_of_key_starts_over() -> None:
    keys = RecentKeys()
    keys.configure({"chat": sticky_endpoint(by="user"), "other": sticky_endpoint(by="user")})
    keys.saw("chat", "ann")
    keys.saw("other", "bob")
    keys.configure({"chat": sticky_endpoint(by="user"), "other": sticky_endpoint(by="api_key")})
    assert (keys.of("chat"), keys.of("other")) == (["ann"], [])
    keys.configure({})
    assert keys.of("chat") == []


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 30)), max_size=30), st.integers(0, 100))
def test_keys_are_counted_by_the_time_of_their_last_request(requests: list[tuple[str, int]], within: int) -> None:
    now, last = 0, dict[str, int]()
    keys = RecentKeys(lambda: now)
    for key, pause in requests:
        now += pause
        last[key] = now
        keys.saw("chat", key)
    recent = sum(at >= now - within for at in last.values())
    assert keys.seen_within(within) == ({"chat": recent} if requests else {})
