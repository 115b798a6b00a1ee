"""The numbered plans of endpoints in the journal."""

import itertools
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.config.schema import Config, parse
from app.experiments.contract.journal import JournalEntry, PlanEntry, history, new_plans, replaced
from app.exposures.plans import plan_of
from app.exposures.wire import Replaced


def config(blue: int = 90, plan: dict[str, Any] | None = None, **endpoint: Any) -> Config:
    chat = {"tasks": ["chat"], "traffic": {"blue": blue, "green": 100 - blue}, "plan": plan or {}, **endpoint}
    deployments = {name: {"url": f"http://{name}", "model": "m"} for name in ("blue", "green")}
    return parse({"endpoints": {"chat": chat}, "deployments": deployments})


def journal(*configs: Config) -> list[JournalEntry]:
    entries: list[JournalEntry] = [JournalEntry(0.0, "controller_started")]
    for number, config in enumerate(configs):
        entries += new_plans(entries, config, 100.0 + number)
    return entries


def numbers(*configs: Config) -> list[int]:
    return [plan.generation for plan in history(journal(*configs), "chat")][::-1]


def test_a_plan_of_a_file_is_numbered_and_one_of_the_api_keeps_its_number() -> None:
    assert numbers(config()) == [0]
    assert numbers(config(), config(80, {"generation": 1})) == [0, 1]
    assert numbers(config(), config(80, {"generation": 1}), config(70)) == [0, 1, 2]
    assert numbers(config(80, {"generation": 7}), config(70), config(60, {"generation": 9})) == [7, 8, 9]


def test_the_same_document_again_is_the_same_generation() -> None:
    assert numbers(config(), config(), config(fallback=["green"])) == [0]
    written = config(80, {"generation": 5, "by": "ann"})
    assert numbers(config(), written, config(80)) == [0, 5, 5]
    assert numbers(config(), written, config(80), config(90)) == [0, 5, 5, 6]


def test_a_number_that_was_given_before_is_not_given_again() -> None:
    """A router that could not ask for the last number counted on from the file's 0."""
    assert numbers(config(80, {"generation": 5}), config(70), config(60, {"generation": 1})) == [5, 6, 7]


def test_an_entry_says_who_made_the_plan_when_and_why() -> None:
    expires = {"at": 2e9, "generation": 0, "weights": {"blue": 90, "green": 10}}
    override = {"unit": "00000000000000ab", "deployment": "green"}
    made = config(
        80,
        {"generation": 1, "by": "ann", "reason": "a try", "since": 99.5, "expires": expires, "overrides": [override]},
    )
    latest, first = history(journal(config(), made), "chat")
    assert latest == PlanEntry(
        endpoint="chat",
        generation=1,
        plan=plan_of("chat", made.endpoints["chat"]).id,
        weights={"blue": 80, "green": 20},
        since=99.5,
        by="ann",
        reason="a try",
        overrides=1,
        expires=2e9,
        content=latest.content,
    )
    assert (first.since, first.by, first.reason, first.expires) == (100.0, None, None, None)
    assert "00000000000000ab" not in str(journal(made)), "the journal is never deleted: it holds no units"


def test_entries_that_are_no_plans_are_left_out() -> None:
    assert (
        history([JournalEntry(1.0, "plan", None, {"endpoint": "chat"}), *journal(config())], "chat")[0].generation == 0
    )
    assert history(journal(config()), "other") == []


steps = st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=12)


@given(steps)
def test_numbers_never_fall_and_differ_for_plans_that_differ(changes: list[tuple[int, bool]]) -> None:
    """Files (True) and API changes, made by routers that cannot ask for the last number."""
    generation, configs = 0, list[Config]()
    for weight, is_file in changes:
        generation = 0 if is_file else generation + 1
        configs.append(config(weight, {"generation": generation}))
    plans = history(journal(*configs), "chat")[::-1]
    assert [plan.generation for plan in plans] == sorted(plan.generation for plan in plans)
    for one, other in itertools.pairwise(plans):
        assert one.plan != other.plan
        assert one.generation < other.generation or one.weights == other.weights


def pinning(blue: int, plan: dict[str, Any] | None = None, **fields: Any) -> Config:
    return config(blue, plan, **{"sticky": {"by": "user"}, "pin_s": 60.0, **fields})


def followed(*configs: tuple[float, Config]) -> list[tuple[int, float]]:
    """The earlier weights by the final journal: the blue share and its end time, the oldest first."""
    entries: list[JournalEntry] = []
    for at, config in configs:
        entries += new_plans(entries, config, at)
    earlier_plans = replaced(entries, config)
    assert {(one.endpoint, one.plan) for one in earlier_plans} <= {
        ("chat", plan_of("chat", config.endpoints["chat"]).id)
    }
    return [(one.weights["blue"], one.until) for one in earlier_plans]


def test_conversations_follow_what_a_file_replaced() -> None:
    assert followed((100.0, pinning(90))) == []
    assert followed((100.0, pinning(90)), (200.0, pinning(80))) == [(90, 260.0)]
    other = pinning(90, mirror={"deployment": "green", "percent": 5})
    assert followed((100.0, pinning(90)), (200.0, other)) == [], "another plan with the same weights"
    assert followed((100.0, pinning(90)), (200.0, pinning(80)), (210.0, pinning(80, pin_s=30.0))) == [(90, 230.0)]


def test_every_change_restarts_the_time_of_all_weights_still_followed() -> None:
    steps = [(100.0, pinning(90)), (200.0, pinning(80)), (250.0, pinning(70))]
    assert followed(*steps) == [(90, 310.0), (80, 310.0)]
    assert followed(*steps, (310.0, pinning(60))) == [(70, 370.0)]
    assert followed(*steps, (300.0, pinning(90))) == [(90, 360.0), (80, 360.0), (70, 360.0)]
    back_and_forth = [(100.0 + number, pinning(90 - number % 2)) for number in range(9)]
    assert followed(*back_and_forth) == [(90, 168.0), (89, 168.0)]
    assert len(followed(*[(100.0 + number, pinning(90 - number)) for number in range(20)])) == 16


def test_weights_that_the_plan_lists_itself_are_left_out() -> None:
    def plan(generation: int, *earlier: int) -> dict[str, Any]:
        listed = [{"weights": {"blue": share, "green": 100 - share}, "until": 2e9} for share in earlier]
        return {"generation": generation, "since": 200.0 + generation, "earlier": listed}

    assert followed((100.0, pinning(90)), (201.0, pinning(80, plan(1, 90)))) == []
    by_file = [(100.0, pinning(90)), (150.0, pinning(80)), (201.0, pinning(70, plan(2, 80)))]
    assert followed(*by_file) == [(90, 262.0), (80, 262.0)], "the plan does not include the previous file"


def test_withdrawn_deployments_are_sent_when_the_present_plan_lacks_them() -> None:
    half, withdrawn = {"weights": {"blue": 50, "green": 50}, "until": 2e9}, {"withdrawn": {"green": "blue"}}
    rolled_back = pinning(100, {"generation": 1, "since": 200.0, "earlier": [half], **withdrawn})
    steps = new_plans([], pinning(50), 100.0)
    steps += new_plans(steps, rolled_back, 200.0)
    assert replaced(steps, rolled_back) == [], "the plan itself has it"
    steps += new_plans(steps, pinning(60), 210.0)
    answer = {tuple(plan.weights.values()): plan.withdrawn for plan in replaced(steps, pinning(60))}
    assert answer == {(50, 50): {"green": "blue"}, (100, 0): {}}


def test_an_endpoint_that_does_not_pin_follows_nothing() -> None:
    for fields in ({"pin_s": 0.0}, {"sticky": None, "pin_s": 1800.0}):
        assert followed((100.0, pinning(90)), (200.0, pinning(80, **fields))) == []


def test_two_controllers_journals_give_the_same_history() -> None:
    first, second = pinning(90), pinning(80)
    one = new_plans([], first, 100.0)
    one += new_plans(one, second, 200.0)
    both = [*one, *new_plans(one[:1], second, 203.0)]
    plan = plan_of("chat", second.endpoints["chat"]).id
    assert replaced(both, second) == replaced(one, second) == [Replaced("chat", plan, {"blue": 90, "green": 10}, 260.0)]
